//! Tests of matrix products: layouts against the tables of the PTX manual, results against exact
//! dot products.

use proptest::prelude::*;

use super::super::fragment::*;
use super::super::half_precision::{Bf16, F16, Half};
use super::super::tensor_core::{multiply, multiply_f64};

fn kind(a: Operand, b: Operand, accumulator: Accumulator, k: usize) -> MmaKind {
    MmaKind::new(a, b, accumulator, k).expect("an instruction of PTX")
}

/// Every `MmaKind` that the emulator supports.
fn all_kinds() -> Vec<MmaKind> {
    let operands = [Operand::F16, Operand::Bf16, Operand::Tf32, Operand::S8, Operand::U8];
    let accumulators =
        [Accumulator::F32, Accumulator::F16, Accumulator::S32, Accumulator::SaturatedS32];
    let mut kinds = Vec::new();
    for (a, b) in operands.iter().flat_map(|&a| operands.map(|b| (a, b))) {
        for accumulator in accumulators {
            kinds.extend(
                [4, 8, 16, 32].map(|k| MmaKind::new(a, b, accumulator, k)).iter().flatten(),
            );
        }
    }
    kinds
}

/// The formulas of the manual's sections on fragments, transcribed per element: row and column of
/// a_i, where a register packs several i.
fn manual_a(kind: MmaKind, lane: usize, i: usize) -> (usize, usize) {
    let (group, thread) = (lane >> 2, lane % 4);
    match (kind.a().per_register(), kind.k()) {
        (1, 4) => (if i == 0 { group } else { group + 8 }, thread),
        (1, _) => (if i & 1 == 0 { group } else { group + 8 }, thread + if i < 2 { 0 } else { 4 }),
        (2, 8) => (if i < 2 { group } else { group + 8 }, thread * 2 + (i & 1)),
        (2, _) => {
            let upper = i < 2 || (4..6).contains(&i);
            let column = thread * 2 + (i & 1) + if i >= 4 { 8 } else { 0 };
            (if upper { group } else { group + 8 }, column)
        }
        (_, 16) => (if i < 4 { group } else { group + 8 }, thread * 4 + (i & 3)),
        _ => {
            let upper = i < 4 || (8..12).contains(&i);
            let column = thread * 4 + (i & 3) + if i >= 8 { 16 } else { 0 };
            (if upper { group } else { group + 8 }, column)
        }
    }
}

fn manual_b(kind: MmaKind, lane: usize, i: usize) -> (usize, usize) {
    let (group, thread) = (lane >> 2, lane % 4);
    let row = match kind.b().per_register() {
        1 => thread + 4 * i,
        2 => thread * 2 + (i & 1) + if i < 2 { 0 } else { 8 },
        _ => thread * 4 + (i & 3) + if i < 4 { 0 } else { 16 },
    };
    (row, group)
}

#[test]
fn layouts_match_the_manual() {
    for kind in all_kinds() {
        let packed = kind.a().per_register();
        for (lane, i) in (0..32).flat_map(|lane| (0..16 * kind.k() / 32).map(move |i| (lane, i))) {
            let (row, column) = a_position(lane, i / packed, packed);
            assert_eq!((row, column + i % packed), manual_a(kind, lane, i), "{kind:?} {lane} {i}");
        }
        for (lane, i) in (0..32).flat_map(|lane| (0..8 * kind.k() / 32).map(move |i| (lane, i))) {
            let (row, column) = b_position(lane, i / packed, packed);
            assert_eq!((row + i % packed, column), manual_b(kind, lane, i), "{kind:?} {lane} {i}");
        }
    }
    for (lane, i) in (0..32).flat_map(|lane| (0..4).map(move |i| (lane, i))) {
        let row = if i < 2 { lane >> 2 } else { (lane >> 2) + 8 };
        assert_eq!(accumulator_position(lane, i), (row, (lane % 4) * 2 + (i & 1)));
    }
}

/// The number of supported kinds, and the manual's register counts for seven of them.
#[test]
fn register_counts() {
    use {Accumulator as Acc, Operand as Op};
    let cases = [
        (kind(Op::F16, Op::F16, Acc::F32, 16), [4, 2, 4]),
        (kind(Op::F16, Op::F16, Acc::F16, 16), [4, 2, 2]),
        (kind(Op::Bf16, Op::Bf16, Acc::F32, 8), [2, 1, 4]),
        (kind(Op::Tf32, Op::Tf32, Acc::F32, 4), [2, 1, 4]),
        (kind(Op::Tf32, Op::Tf32, Acc::F32, 8), [4, 2, 4]),
        (kind(Op::S8, Op::U8, Acc::S32, 16), [2, 1, 4]),
        (kind(Op::U8, Op::S8, Acc::SaturatedS32, 32), [4, 2, 4]),
    ];
    for (kind, registers) in cases {
        let ours = [kind.a_registers(), kind.b_registers(), kind.accumulator_registers()];
        assert_eq!(ours, registers, "{kind:?}");
    }
    assert_eq!(all_kinds().len(), 4 + 2 + 2 + 4 * 2 * 2);
    assert_eq!(kind(Op::F16, Op::F16, Acc::F32, 16).operations(), 4096);
    assert_eq!(MmaKind::new(Op::Bf16, Op::Bf16, Acc::F16, 16), None);
    assert_eq!(MmaKind::new(Op::F16, Op::Bf16, Acc::F32, 16), None);
}

/// The element of A (or B), as a number.
fn decode(operand: Operand, word: u32, part: usize) -> f64 {
    match operand {
        Operand::F16 => f64::from(F16::widen((word >> (16 * part)) as u16)),
        Operand::Bf16 => f64::from(Bf16::widen((word >> (16 * part)) as u16)),
        Operand::Tf32 => f64::from(f32::from_bits(word & 0xffff_e000)),
        Operand::S8 => f64::from((word >> (8 * part)) as i8),
        Operand::U8 => f64::from((word >> (8 * part)) as u8),
    }
}

/// A random word whose elements are small multiples of a quarter, so that sums are exact.
fn small_word(operand: Operand, random: u32) -> u32 {
    let quarter = |shift: u32| f32::from((random >> shift) as i8) / 4.0;
    match operand {
        Operand::F16 => {
            u32::from(F16::narrow(quarter(0))) | u32::from(F16::narrow(quarter(8))) << 16
        }
        Operand::Bf16 => {
            u32::from(Bf16::narrow(quarter(0))) | u32::from(Bf16::narrow(quarter(8))) << 16
        }
        Operand::Tf32 => quarter(0).to_bits() | random >> 19,
        Operand::S8 | Operand::U8 => random,
    }
}

fn words() -> impl Strategy<Value = Vec<Plane>> {
    let plane = proptest::collection::vec(any::<u32>(), 32);
    let plane = plane.prop_map(|words| Plane::try_from(words).expect("32 lanes"));
    proptest::collection::vec(plane, 12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With operands whose sums are exact, each element of D is its dot product.
    #[test]
    fn products_are_dot_products(random in words()) {
        for kind in all_kinds() {
            let (packed_a, packed_b) = (kind.a().per_register(), kind.b().per_register());
            let small = |of: Operand, planes: &[Plane]| -> Vec<Plane> {
                planes.iter().map(|plane| plane.map(|word| small_word(of, word))).collect()
            };
            let (a, b) = (small(kind.a(), &random[..4]), small(kind.b(), &random[4..6]));
            let c: Vec<Plane> = match kind.accumulator() {
                Accumulator::F16 => small(Operand::F16, &random[6..8]),
                Accumulator::F32 => small(Operand::Tf32, &random[6..10]),
                _ => random[6..10].to_vec(),
            };
            let (mut dense_a, mut dense_b) = ([[0.0; 32]; 16], [[0.0; 8]; 32]);
            for lane in 0..32 {
                for i in 0..16 * kind.k() / 32 {
                    let (row, column) = manual_a(kind, lane, i);
                    dense_a[row][column] = decode(kind.a(), a[i / packed_a][lane], i % packed_a);
                }
                for i in 0..8 * kind.k() / 32 {
                    let (row, column) = manual_b(kind, lane, i);
                    dense_b[row][column] = decode(kind.b(), b[i / packed_b][lane], i % packed_b);
                }
            }

            let mut d = [[0_u32; 32]; 4];
            multiply(kind, &a, &b, &c, &mut d);

            for (lane, i) in (0..32).flat_map(|lane| (0..4).map(move |i| (lane, i))) {
                let row = if i < 2 { lane >> 2 } else { (lane >> 2) + 8 };
                let column = (lane % 4) * 2 + (i & 1);
                let dot: f64 = (0..kind.k()).map(|k| dense_a[row][k] * dense_b[k][column]).sum();
                let half = |plane: &Plane| (plane[lane] >> (16 * (i % 2))) as u16;
                match kind.accumulator() {
                    Accumulator::F32 => {
                        let expected = dot + f64::from(f32::from_bits(c[i][lane]));
                        prop_assert_eq!(f32::from_bits(d[i][lane]), expected as f32);
                    }
                    Accumulator::F16 => {
                        let expected = dot + f64::from(F16::widen(half(&c[i / 2])));
                        let expected = half::f16::from_f32(expected as f32).to_bits();
                        prop_assert_eq!(half(&d[i / 2]), expected);
                    }
                    Accumulator::S32 => {
                        let expected = (dot as i64 + i64::from(c[i][lane] as i32)) as u32;
                        prop_assert_eq!(d[i][lane], expected);
                    }
                    Accumulator::SaturatedS32 => {
                        let sum = dot as i64 + i64::from(c[i][lane] as i32);
                        let expected = sum.clamp(i32::MIN.into(), i32::MAX.into()) as u32;
                        prop_assert_eq!(d[i][lane], expected);
                    }
                }
            }
        }
    }

    /// A product of f64 with exact sums.
    #[test]
    fn doubles(random in words()) {
        let small = |plane: &Plane| plane.map(|word| f64::from(word as i16) / 8.0);
        let [a, b, c0, c1] = [0, 1, 2, 3].map(|plane| small(&random[plane]));
        let (mut d0, mut d1) = ([0.0; 32], [0.0; 32]);
        multiply_f64(&a, &b, [&c0, &c1], [&mut d0, &mut d1]);
        for lane in 0..32 {
            let (row, thread) = (lane >> 2, lane % 4);
            for (column, c, d) in [(2 * thread, c0, d0), (2 * thread + 1, c1, d1)] {
                // Lane 4g + t holds A[g][t] and B[t][g].
                let dot: f64 = (0..4).map(|k| a[row * 4 + k] * b[column * 4 + k]).sum();
                prop_assert_eq!(d[lane], dot + c[lane]);
            }
        }
    }
}

/// One rounding: a product far below half an ulp of the accumulator breaks the tie that another
/// product makes. Adding them separately in f32 would lose it.
#[test]
fn sums_round_once() {
    let kind = kind(Operand::F16, Operand::F16, Accumulator::F32, 16);
    let f16 = |x: f32| u32::from(F16::narrow(x));
    let mut a = [[0; 32]; 4];
    let mut b = [[0; 32]; 2];
    // A[0][0] B[0][0] = 2^-24, half an ulp of 1; A[0][1] B[1][0] = 2^-40.
    a[0][0] = f16(2.0_f32.powi(-12)) | f16(2.0_f32.powi(-20)) << 16;
    b[0][0] = f16(2.0_f32.powi(-12)) | f16(2.0_f32.powi(-20)) << 16;
    let c = [[1.0_f32.to_bits(); 32]; 4];
    let mut d = [[0; 32]; 4];
    multiply(kind, &a, &b, &c, &mut d);
    assert_eq!(f32::from_bits(d[0][0]), 1.0_f32.next_up());
    assert_eq!(f32::from_bits(d[0][1]), 1.0);
}

#[test]
fn nan_results_are_canonical() {
    let kind = kind(Operand::Bf16, Operand::Bf16, Accumulator::F32, 8);
    let infinity_times_zero = [[0x7f80; 32]; 2];
    let mut d = [[0; 32]; 4];
    multiply(kind, &infinity_times_zero, &[[0; 32]], &[[0; 32]; 4], &mut d);
    assert!(d.iter().flatten().all(|&bits| bits == 0x7fff_ffff));
}
