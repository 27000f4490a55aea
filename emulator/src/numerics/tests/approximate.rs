//! Tests of the approximate instructions against the f64 functions of the platform's libm.

use super::super::approximate::{self, Approximation};
use super::super::half_precision::{Bf16, F16, Half};
use super::edge_case_f32;

/// An instruction of one operand: ours, libm's, and the largest error that the manual allows, given
/// the operand and its result.
struct Instruction {
    name: &'static str,
    ours: fn(f32, Approximation) -> f32,
    exact: fn(f64) -> f64,
    allowed: fn(f32, f64) -> f64,
}

/// The distance of neighboring f32 at `y`.
fn ulp(y: f64) -> f64 {
    let exponent = y.abs().log2().floor().clamp(-126.0, 127.0) as i32;
    2.0_f64.powi(exponent - 23)
}

fn allowed_of_angle(x: f32) -> f64 {
    if x.abs() <= std::f32::consts::TAU { 2.0_f64.powf(-20.5) } else { 2.0_f64.powf(-14.7) }
}

const INSTRUCTIONS: [Instruction; 8] = [
    Instruction {
        name: "ex2",
        ours: approximate::ex2,
        exact: f64::exp2,
        allowed: |_, y| 2.0 * ulp(y),
    },
    Instruction {
        name: "lg2",
        ours: approximate::lg2,
        exact: f64::log2,
        allowed: |x, y| {
            let near_one = x > 0.5 && x < 2.0;
            2.0_f64.powi(-22) * if near_one { 1.0 } else { y.abs() }
        },
    },
    Instruction { name: "rcp", ours: approximate::rcp, exact: |x| 1.0 / x, allowed: |_, y| ulp(y) },
    Instruction {
        name: "sqrt",
        ours: approximate::sqrt,
        exact: f64::sqrt,
        allowed: |_, y| 2.0_f64.powi(-23) * y,
    },
    Instruction {
        name: "rsqrt",
        ours: approximate::rsqrt,
        exact: |x| 1.0 / x.sqrt(),
        allowed: |_, y| 2.0_f64.powf(-22.9) * y.abs(),
    },
    Instruction {
        name: "sin",
        ours: approximate::sin,
        exact: f64::sin,
        allowed: |x, _| allowed_of_angle(x),
    },
    Instruction {
        name: "cos",
        ours: approximate::cos,
        exact: f64::cos,
        allowed: |x, _| allowed_of_angle(x),
    },
    Instruction {
        name: "tanh",
        ours: approximate::tanh,
        exact: f64::tanh,
        allowed: |_, y| 2.0_f64.powi(-11) * y.abs(),
    },
];

/// One f32 in several thousand, of all signs and magnitudes, and the edge cases.
fn samples() -> impl Iterator<Item = f32> {
    let spread = (0..=u32::MAX).step_by(9973).map(f32::from_bits);
    let small_integers = (-4000..4000).map(|i| i as f32 / 16.0);
    spread.chain(small_integers).chain(edge_case_f32())
}

/// Results are the f32 nearest to the exact value. Where libm's error of a few f64 ulps leaves two
/// candidates, either is accepted.
#[test]
fn rounded_results_are_the_nearest() {
    for instruction in INSTRUCTIONS {
        let mut ambiguous = 0;
        for x in samples() {
            let ours = (instruction.ours)(x, Approximation::Rounded);
            let exact = (instruction.exact)(f64::from(x));
            if exact.is_nan() {
                assert_eq!(ours.to_bits(), 0x7fff_ffff, "{} {x:e}", instruction.name);
                continue;
            }
            if exact.is_infinite() || exact == 0.0 {
                assert_eq!(ours.to_bits(), (exact as f32).to_bits(), "{} {x:e}", instruction.name);
                continue;
            }
            let margin = exact.abs() * 2.0_f64.powi(-49);
            let (low, high) = ((exact - margin) as f32, (exact + margin) as f32);
            if low == high {
                assert_eq!(ours.to_bits(), high.to_bits(), "{} {x:e}", instruction.name);
            } else {
                ambiguous += 1;
                assert!(ours == low || ours == high, "{} {x:e}", instruction.name);
            }
        }
        assert!(ambiguous < 100, "{}: {ambiguous} of half a million", instruction.name);
    }
}

/// Perturbed results are within the documented error, use a good part of it, are reproducible, and
/// differ between seeds.
#[test]
fn perturbed_results_use_the_documented_error() {
    for instruction in INSTRUCTIONS {
        let perturbed = |x, seed| (instruction.ours)(x, Approximation::Perturbed { seed });
        let (mut largest, mut moved, mut other_seed, mut count) = (0.0_f64, 0, 0, 0);
        for x in samples() {
            let exact = (instruction.exact)(f64::from(x));
            let (ours, rounded) = (perturbed(x, 1), exact as f32);
            assert_eq!(ours.to_bits(), perturbed(x, 1).to_bits());
            if exact.is_nan() || rounded.is_infinite() || rounded == 0.0 {
                let rounded = (instruction.ours)(x, Approximation::Rounded);
                assert_eq!(ours.to_bits(), rounded.to_bits(), "{} {x:e}", instruction.name);
                continue;
            }
            // A subnormal result may be off by one, even if the relative bound is smaller.
            let allowed = (instruction.allowed)(x, exact);
            let limit =
                if exact.abs() < 1.2e-38 { allowed.max(2.0_f64.powi(-149)) } else { allowed };
            let error = (f64::from(ours) - exact).abs();
            assert!(error <= limit * (1.0 + 1e-6), "{} {x:e}: {ours:e}", instruction.name);
            largest = largest.max(error / allowed);
            moved += u32::from(ours != rounded);
            other_seed += u32::from(ours != perturbed(x, 2));
            count += 1;
        }
        assert!(largest > 0.8, "{}: only {largest} of what is allowed", instruction.name);
        assert!(moved > count / 20, "{}: {moved} of {count} moved", instruction.name);
        assert!(other_seed > count / 20, "{}: {other_seed} of {count}", instruction.name);
    }
}

/// The manual's tables of special values, for both approximations.
#[test]
fn special_values_follow_the_tables() {
    const INF: f32 = f32::INFINITY;
    const NAN: f32 = f32::NAN;
    let operands = [-INF, -1.5, -0.0, 0.0, INF, NAN];
    let tables: [(&str, [f32; 6]); 6] = [
        ("ex2", [0.0, 0.353_553_38, 1.0, 1.0, INF, NAN]),
        ("lg2", [NAN, NAN, -INF, -INF, INF, NAN]),
        ("rcp", [-0.0, -0.666_666_7, -INF, INF, 0.0, NAN]),
        ("sqrt", [NAN, NAN, -0.0, 0.0, INF, NAN]),
        ("rsqrt", [NAN, NAN, -INF, INF, 0.0, NAN]),
        ("tanh", [-1.0, -0.905_148_27, -0.0, 0.0, 1.0, NAN]),
    ];
    for approximation in [Approximation::Rounded, Approximation::Perturbed { seed: 3 }] {
        for (name, results) in tables {
            let known = INSTRUCTIONS.iter().find(|instruction| instruction.name == name);
            let instruction = known.expect("in the list above");
            for (x, expected) in operands.into_iter().zip(results) {
                let ours = (instruction.ours)(x, approximation);
                if x == -1.5 && !expected.is_nan() {
                    let allowed = (instruction.allowed)(x, expected.into()) as f32;
                    assert!((ours - expected).abs() <= allowed * 1.1, "{name}({x}) = {ours}");
                } else {
                    let expected = if expected.is_nan() { 0x7fff_ffff } else { expected.to_bits() };
                    assert_eq!(ours.to_bits(), expected, "{name}({x}) = {ours}");
                }
            }
        }
        for (x, sine) in [(-0.0, -0.0_f32), (0.0, 0.0)] {
            assert_eq!(approximate::sin(x, approximation).to_bits(), sine.to_bits());
            assert_eq!(approximate::cos(x, approximation), 1.0);
        }
        for x in [-INF, INF, NAN] {
            assert_eq!(approximate::sin(x, approximation).to_bits(), 0x7fff_ffff);
            assert_eq!(approximate::cos(x, approximation).to_bits(), 0x7fff_ffff);
        }
        assert_eq!(approximate::ex2(f32::from_bits(1), approximation), 1.0);
        assert_eq!(approximate::ex2(128.0, approximation), INF);
        assert!(approximate::ex2(-149.0, approximation) >= 0.0);
    }
}

#[test]
fn quotients() {
    let values = edge_case_f32();
    let mut moved = 0;
    for (a, b) in values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b))) {
        let exact = f64::from(a) / f64::from(b);
        let correct = a / b;
        let full = approximate::div_full(a, b, Approximation::Rounded);
        let same = |ours: f32, other: f32| {
            ours.to_bits() == other.to_bits() || other.is_nan() && ours.to_bits() == 0x7fff_ffff
        };
        assert!(same(full, correct), "{a:e} / {b:e} = {full:e}");

        let perturbed = approximate::div_full(a, b, Approximation::Perturbed { seed: 7 });
        if exact == 0.0 || !correct.is_finite() {
            assert!(same(perturbed, correct), "{a:e} / {b:e} = {perturbed:e}");
        } else {
            let error = (f64::from(perturbed) - exact).abs();
            assert!(error <= 2.0 * ulp(exact), "{a:e} / {b:e} = {perturbed:e}");
            moved += u32::from(perturbed != correct);
        }

        let approximated = approximate::div_approx(a, b, Approximation::Rounded);
        let is_beyond = b.abs() > 2.0_f32.powi(126) && b.is_finite();
        let expected = match (is_beyond, a.is_finite()) {
            (false, _) => full,
            (true, false) => f32::NAN,
            (true, true) => 0.0_f32.copysign(a * b.signum()),
        };
        assert!(same(approximated, expected), "{a:e} / {b:e} = {approximated:e}");
    }
    assert!(moved > 100);
}

/// An instruction on halves.
type OnHalves = fn(u16, Approximation) -> u16;

/// For all 16-bit operands, the rounded result is the nearest number of the format, as far as libm
/// can decide. The perturbed result is within the error that the manual allows.
fn check_halves<H: Half>(ours: OnHalves, exact: fn(f64) -> f64, allowed: fn(f64) -> f64) {
    let (mut moved, mut tolerated) = (0, 0);
    for bits in 0..=u16::MAX {
        let (x, result) = (H::widen(bits), ours(bits, Approximation::Rounded));
        let perturbed = ours(bits, Approximation::Perturbed { seed: 5 });
        if x.is_nan() {
            assert_eq!([result, perturbed], [0x7fff; 2], "{bits:x}");
            continue;
        }
        let exact = exact(f64::from(x));
        let error = |half: u16| (f64::from(H::widen(half)) - exact).abs();
        if !H::widen(result).is_finite() {
            let largest = f64::from(H::widen(H::narrow(f32::INFINITY) - 1));
            assert!(exact > largest, "{bits:x}");
            continue;
        }
        let neighbors = [result.wrapping_sub(1), result.wrapping_add(1)];
        for other in neighbors.into_iter().filter(|&other| !error(other).is_nan()) {
            assert!(error(result) <= error(other) * (1.0 + 1e-9), "{bits:x}");
        }
        if x == 0.0 || x.is_infinite() {
            assert_eq!(perturbed, result, "{bits:x}");
        }
        // Near subnormals and infinity, a relative error means little.
        let is_ordinary = result & 0x7fff >= H::SMALLEST_NORMAL && H::widen(result + 1).is_finite();
        if is_ordinary {
            assert!(error(perturbed) <= allowed(exact), "{bits:x}: {perturbed:x} for {result:x}");
            moved += u32::from(perturbed != result);
            tolerated += 1;
        }
    }
    assert!(moved > tolerated / 100, "{moved} of {tolerated}");
}

#[test]
fn halves() {
    use super::super::approximate::{ex2_half, tanh_half};
    check_halves::<F16>(ex2_half::<F16>, f64::exp2, |y| 2.0_f64.powf(-9.9) * y);
    check_halves::<Bf16>(ex2_half::<Bf16>, f64::exp2, |y| 2.0_f64.powi(-7) * y);
    check_halves::<F16>(tanh_half::<F16>, f64::tanh, |_| 2.0_f64.powf(-10.987));
    check_halves::<Bf16>(tanh_half::<Bf16>, f64::tanh, |_| 2.0_f64.powi(-8));
}

/// The coarse f64 reciprocals: 20 correct bits, lower words ignored and zero, subnormals flushed.
#[test]
fn coarse_f64_reciprocals() {
    let mut x = 1e-300;
    while x < 1e300 {
        for (ours, exact) in [
            (approximate::coarse_rcp_f64(x), 1.0 / x),
            (approximate::coarse_rcp_f64(-x), -1.0 / x),
            (approximate::coarse_rsqrt_f64(x), 1.0 / x.sqrt()),
        ] {
            assert!((ours / exact - 1.0).abs() < 2.0_f64.powi(-19), "{x:e}: {ours:e}");
            assert_eq!(ours.to_bits() as u32, 0);
        }
        let full = approximate::rsqrt_f64(x);
        assert!((full * full * x - 1.0).abs() < 2.0_f64.powi(-50), "{x:e}: {full:e}");
        let same_upper_word = f64::from_bits(x.to_bits() ^ 0xffff_ffff);
        assert_eq!(approximate::coarse_rcp_f64(x), approximate::coarse_rcp_f64(same_upper_word));
        x *= 1.37;
    }
    let (tiny, huge) = (f64::from_bits(1 << 40), f64::MAX);
    let rcp = [0.0, -0.0, tiny, -tiny, f64::INFINITY, f64::NEG_INFINITY, -huge];
    let inf = f64::INFINITY;
    assert_eq!(
        rcp.map(|x| approximate::coarse_rcp_f64(x).to_bits()),
        [inf, -inf, inf, -inf, 0.0, -0.0, -0.0].map(f64::to_bits),
    );
    assert_eq!([0.0, -0.0, -tiny, inf].map(approximate::coarse_rsqrt_f64), [inf, -inf, -inf, 0.0]);
    for nan in [approximate::coarse_rcp_f64(f64::NAN), approximate::coarse_rsqrt_f64(-1.0)] {
        assert_eq!(nan.to_bits(), 0x7fff_ffff_0000_0000);
    }
}
