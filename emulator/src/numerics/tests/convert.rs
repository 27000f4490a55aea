//! Tests of conversions against 128-bit integers, the processor and the `half` crate.

use proptest::prelude::*;

use super::super::convert::*;
use super::super::half_precision::{F16, Half, NAN_HALF};
use super::super::rounding::{NAN_F32, Rounding};
use super::{MODES, any_f32, any_f64};

const INTEGERS: [Integer; 8] = [
    Integer::U8,
    Integer::S8,
    Integer::U16,
    Integer::S16,
    Integer::U32,
    Integer::S32,
    Integer::U64,
    Integer::S64,
];

/// The value of a type's low bits in a register.
fn value(register: u64, of: Integer) -> i128 {
    let modulus = 1_i128 << of.bits;
    let low = i128::from(register) & (modulus - 1);
    if of.signed && low >= modulus / 2 { low - modulus } else { low }
}

fn range(of: Integer) -> (i128, i128) {
    let modulus = 1_i128 << of.bits;
    if of.signed { (-modulus / 2, modulus / 2 - 1) } else { (0, modulus - 1) }
}

/// Registers, with the edges of all types overrepresented.
fn any_register() -> impl Strategy<Value = u64> {
    let near_power = (0_u32..64, -2_i64..=2, any::<bool>()).prop_map(|(power, offset, negate)| {
        let near = (1_u64 << power).wrapping_add(offset as u64);
        if negate { near.wrapping_neg() } else { near }
    });
    let shifted = (any::<u64>(), 0_u32..64).prop_map(|(bits, shift)| bits >> shift);
    prop_oneof![any::<u64>(), near_power, shifted]
}

/// Rounds an f64 to a 128-bit integer; the magnitude is below 2^100.
fn integral(x: f64, mode: Rounding) -> i128 {
    let truncated = x as i128;
    let rest = x - truncated as f64;
    let up = i128::from(rest > 0.0);
    let down = i128::from(rest < 0.0);
    match mode {
        Rounding::Zero => truncated,
        Rounding::Up => truncated + up,
        Rounding::Down => truncated - down,
        Rounding::Nearest if rest.abs() == 0.5 => truncated + (truncated & 1) * (up - down),
        Rounding::Nearest if rest.abs() > 0.5 => truncated + up - down,
        Rounding::Nearest => truncated,
    }
}

/// The result of converting a number to an integer, in 64 bits.
fn integer_reference(x: f64, mode: Rounding, to: Integer) -> u64 {
    let (low, high) = range(to);
    integral(x.clamp(-1e20, 1e20), mode).clamp(low, high) as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn integers_wrap_or_saturate(register in any_register()) {
        for from in INTEGERS {
            let source = value(register, from);
            prop_assert_eq!(from.extend(register), source as u64);
            for to in INTEGERS {
                let wrapped = value(source as u64, to) as u64;
                prop_assert_eq!(integer_to_integer(register, from, to, false), wrapped);
                let (low, high) = range(to);
                let clamped = source.clamp(low, high) as u64;
                prop_assert_eq!(integer_to_integer(register, from, to, true), clamped);
            }
        }
    }

    #[test]
    fn floats_become_clamped_integers(
        x in any_f32(), y in any_f64(), register in any_register(), half in -3_i32..=3,
    ) {
        // Integers and half integers near the edges of the types.
        let near = value(register, Integer::S64) as f64 + f64::from(half) / 2.0;
        for (to, mode) in INTEGERS.into_iter().flat_map(|to| MODES.map(|mode| (to, mode))) {
            for x in [x, near as f32] {
                if !x.is_nan() {
                    let expected = integer_reference(f64::from(x), mode, to);
                    prop_assert_eq!(f32_to_integer(x, mode, to), expected, "{} {:?}", x, mode);
                }
            }
            for y in [y, near] {
                if !y.is_nan() {
                    let expected = integer_reference(y, mode, to);
                    prop_assert_eq!(f64_to_integer(y, mode, to), expected, "{} {:?}", y, mode);
                }
            }
        }
    }

    /// Rounding to an integral float equals conversion to an integer if that is in range; numbers
    /// without a fraction do not change.
    #[test]
    fn integral_floats(x in any_f32(), y in any_f64()) {
        for mode in MODES {
            let rounded = integral_f32(x, mode);
            if x.abs() < 1e9 {
                prop_assert_eq!(rounded as i128, integral(f64::from(x), mode));
                prop_assert_eq!(rounded.is_sign_negative(), x.is_sign_negative());
            } else {
                let expected = if x.is_nan() { NAN_F32 } else { x };
                prop_assert_eq!(rounded.to_bits(), expected.to_bits());
            }
            if y.abs() < 1e15 {
                prop_assert_eq!(integral_f64(y, mode) as i128, integral(y, mode));
            }
        }
    }

    /// f32 to f16 and bf16: down and up enclose the exact value, and the other modes choose one.
    #[test]
    fn directed_halves_enclose(x in any_f32()) {
        if x.is_nan() {
            for mode in MODES {
                prop_assert_eq!([f32_to_f16(x, mode), f32_to_bf16(x, mode)], [NAN_HALF; 2]);
            }
            return Ok(());
        }
        let to_f16 = |mode| f64::from(F16::widen(f32_to_f16(x, mode)));
        let to_bf16 = |mode| f64::from(f32::from_bits(u32::from(f32_to_bf16(x, mode)) << 16));
        let exact = f64::from(x);
        for round in [&to_f16 as &dyn Fn(Rounding) -> f64, &to_bf16] {
            let [nearest, zero, down, up] = MODES.map(round);
            prop_assert!(down <= exact && exact <= up && (down == up) == (down == exact));
            prop_assert!(nearest == down || nearest == up);
            prop_assert_eq!(zero, if exact < 0.0 { up } else { down });
        }
        let f16_gap = f32_to_f16(x, Rounding::Up).abs_diff(f32_to_f16(x, Rounding::Down));
        let bf16_gap = f32_to_bf16(x, Rounding::Up).abs_diff(f32_to_bf16(x, Rounding::Down));
        prop_assert!(f16_gap <= 1 && bf16_gap <= 1);
    }

    /// Direct conversion from f64 is at least as accurate as through f32, and equal for numbers
    /// that f32 represents.
    #[test]
    fn f64_to_half(x in any_f32(), y in any_f64()) {
        for mode in MODES {
            prop_assert_eq!(f64_to_f16(f64::from(x), mode), f32_to_f16(x, mode));
            prop_assert_eq!(f64_to_bf16(f64::from(x), mode), f32_to_bf16(x, mode));
        }
        if y.abs() < 65504.0 {
            let error = |half: u16| (f64::from(F16::widen(half)) - y).abs();
            let direct = f64_to_f16(y, Rounding::Nearest);
            prop_assert!(error(direct) <= error(direct ^ 1));
            prop_assert!(error(direct) <= error(f32_to_f16(y as f32, Rounding::Nearest)));
        }
    }

    #[test]
    fn tf32_keeps_eleven_bits(x in any_f32()) {
        let [away, even, zero] =
            [Tf32Rounding::NearestAway, Tf32Rounding::NearestEven, Tf32Rounding::Zero]
                .map(|mode| f32_to_tf32(x, mode));
        if x.is_nan() {
            prop_assert_eq!([away, even, zero].map(f32::to_bits), [NAN_F32.to_bits(); 3]);
            return Ok(());
        }
        let (below, above) = (x.to_bits() & !0x1fff, (x.to_bits() | 0x1fff) + 1);
        let rest = x.to_bits() & 0x1fff;
        let even_choice = if below & 0x2000 == 0 { below } else { above };
        let nearest = |tie| match rest.cmp(&0x1000) {
            std::cmp::Ordering::Less => below,
            std::cmp::Ordering::Equal => tie,
            std::cmp::Ordering::Greater => above,
        };
        prop_assert_eq!(zero.to_bits(), below);
        prop_assert_eq!(away.to_bits(), nearest(above));
        prop_assert_eq!(even.to_bits(), nearest(even_choice));
    }

    #[test]
    fn float8_takes_the_nearest(x in any_f32()) {
        for kind in [Float8::E4M3, Float8::E5M2] {
            let value = |bits: u8| f64::from(F16::widen(kind.widen(bits)));
            let narrow = kind.narrow(x);
            if x.is_nan() {
                prop_assert_eq!(narrow, 0x7f);
                continue;
            }
            let error = |bits: u8| (value(bits) - f64::from(x)).abs();
            let finite = (0..=255_u8).filter(|&bits| value(bits).is_finite());
            let least = finite.map(error).fold(f64::INFINITY, f64::min);
            prop_assert!(x.is_infinite() || error(narrow) == least, "{x:e} {narrow:x}");
            prop_assert_eq!(narrow >> 7 == 1, x.is_sign_negative());
            // On a tie, the even neighbor wins.
            for neighbor in [narrow.wrapping_sub(1), narrow.wrapping_add(1)] {
                let tie = x.abs() < 57344.0 && error(neighbor) == least && neighbor & 0x7f != 0;
                prop_assert!(!tie || narrow & 1 == 0);
            }
        }
    }
}

/// Integers to floating point, and f64 to f32, equal the processor's results in each mode.
#[cfg(target_arch = "x86_64")]
mod as_the_processor {
    use super::super::processor;
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn integers_to_floats(register in any_register()) {
            for (from, mode) in INTEGERS.into_iter().flat_map(|of| MODES.map(|mode| (of, mode))) {
                let source = value(register, from);
                // The processor has no u64 conversion: halve large values, with a
                // sticky bit for the bit shifted out.
                let (source, factor) = match i64::try_from(source) {
                    Ok(source) => (source, 1.0),
                    Err(_) => ((source >> 1 | source & 1) as i64, 2.0),
                };
                let in_f32 = processor::s64_to_f32(source, mode) * factor;
                prop_assert_eq!(integer_to_f32(register, from, mode).to_bits(), in_f32.to_bits());
                let in_f64 = processor::s64_to_f64(source, mode) * f64::from(factor);
                prop_assert_eq!(integer_to_f64(register, from, mode).to_bits(), in_f64.to_bits());

                // f16 and bf16 of integers that f64 represents exactly.
                if source.unsigned_abs() < 1 << 52 {
                    let exact = source as f64;
                    let half = integer_to_f16(register, from, mode);
                    prop_assert_eq!(half, f64_to_f16(exact, mode));
                    let brain = integer_to_bf16(register, from, mode);
                    prop_assert_eq!(brain, f64_to_bf16(exact, mode));
                }
            }
        }

        #[test]
        fn floats_to_s64(x in any_f32(), y in any_f64()) {
            for mode in MODES {
                // The processor returns the same value for NaN and all numbers out of range.
                if x.is_nan() || x.abs() < 9.2e18 {
                    let ours = f32_to_integer(x, mode, Integer::S64) as i64;
                    prop_assert_eq!(ours, processor::f32_to_s64(x, mode));
                }
                if y.is_nan() || y.abs() < 9.2e18 {
                    let ours = f64_to_integer(y, mode, Integer::S64) as i64;
                    prop_assert_eq!(ours, processor::f64_to_s64(y, mode));
                }
            }
        }
    }
}

#[test]
fn nan_converts_as_the_manual_specifies() {
    let of = |convert: &dyn Fn(Integer) -> u64| INTEGERS.map(convert);
    let from_f32 = of(&|to| f32_to_integer(f32::NAN, Rounding::Nearest, to));
    assert_eq!(from_f32, [0, 0, 0, 0, 0, 0, 1 << 63, 1 << 63]);
    let from_f64 = of(&|to| f64_to_integer(f64::NAN, Rounding::Zero, to));
    let top = |bits: u32| 1_u64 << (bits - 1);
    let signed = |bits: u32| top(bits).wrapping_neg();
    let expected =
        [top(8), signed(8), top(16), signed(16), top(32), signed(32), top(64), signed(64)];
    assert_eq!(from_f64, expected);

    assert_eq!(f32_to_f64(f32::from_bits(0xff80_0001)).to_bits(), 0xfff8_0000_2000_0000);
    assert_eq!(f32_to_f64(f32::NEG_INFINITY), f64::NEG_INFINITY);
    assert_eq!(f32_to_f64(f32::from_bits(1)), 2.0_f64.powi(-149));
}

#[test]
fn the_first_operand_is_the_upper_half_of_a_pair() {
    assert_eq!(f32_pair_to_f16(1.0, -2.0, Rounding::Nearest), 0x3c00_c000);
    assert_eq!(f32_pair_to_bf16(1.0, -2.0, Rounding::Nearest), 0x3f80_c000);
    assert_eq!(Float8::E4M3.narrow_pair(1e9, -1.0, false), 0x7eb8);
    assert_eq!(Float8::E4M3.narrow_pair(1e9, -1.0, true), 0x7e00);
    assert_eq!(Float8::E5M2.narrow_pair(f32::NEG_INFINITY, 1.0, false), 0xfb3c);
    assert_eq!(Float8::E4M3.widen_pair(0x7eb8), 0x5f00_bc00);
    assert_eq!(Float8::E5M2.widen_pair(0x7c3c), 0x7c00_3c00);
}

/// All 8-bit numbers survive the round trip through f16 and f32.
#[test]
fn float8_round_trips() {
    for bits in 0..=255_u8 {
        for kind in [Float8::E4M3, Float8::E5M2] {
            let wide = F16::widen(kind.widen(bits));
            if wide.is_finite() {
                assert_eq!(kind.narrow(wide), bits, "{kind:?} {bits:x}");
            }
        }
    }
}
