//! Tests of f32 and f64 arithmetic in all rounding modes.

use proptest::prelude::*;

use super::super::rounding::{self, Rounding};
use super::{MODES, any_f32, any_f64, edge_case_f32};

/// Fails unless both have the same bits. A NaN of `theirs` counts as the canonical one.
#[track_caller]
fn assert_same(ours: f32, theirs: f32, what: &str) {
    let theirs = if theirs.is_nan() { rounding::NAN_F32 } else { theirs };
    assert_eq!(ours.to_bits(), theirs.to_bits(), "{what}: {ours:e} but {theirs:e}");
}

/// Every operation in every mode gives the same bits as the processor with its control word set to
/// that mode, except for NaN.
#[cfg(target_arch = "x86_64")]
mod as_the_processor {
    use super::super::super::double;
    use super::super::processor;
    use super::*;

    fn check_f32(a: f32, b: f32, c: f32) {
        for mode in MODES {
            let what = |name: &str| format!("{name} {a:e}, {b:e}, {c:e} {mode:?}");
            assert_same(rounding::add(a, b, mode), processor::add(a, b, mode), &what("add"));
            assert_same(rounding::sub(a, b, mode), processor::sub(a, b, mode), &what("sub"));
            assert_same(rounding::mul(a, b, mode), processor::mul(a, b, mode), &what("mul"));
            assert_same(rounding::div(a, b, mode), processor::div(a, b, mode), &what("div"));
            assert_same(rounding::rcp(b, mode), processor::div(1.0, b, mode), &what("rcp"));
            let root = processor::sqrt_of_second(b, b, mode);
            assert_same(rounding::sqrt(b, mode), root, &what("sqrt"));
            if std::is_x86_feature_detected!("fma") {
                let fused = processor::fma(a, b, c, mode);
                assert_same(rounding::fma(a, b, c, mode), fused, &what("fma"));
            }
        }
    }

    /// Fails unless both have the same bits. A NaN must be the first NaN operand, quieted, or the
    /// NaN of an invalid operation.
    fn assert_same_f64(ours: f64, theirs: f64, operands: &[f64], what: &str) {
        if !theirs.is_nan() {
            assert_eq!(ours.to_bits(), theirs.to_bits(), "{what}: {ours:e} but {theirs:e}");
            return;
        }
        let first = operands.iter().find(|x| x.is_nan());
        let quiet = first.map_or(0xfff8 << 48, |nan| nan.to_bits() | 1 << 51);
        assert_eq!(ours.to_bits(), quiet, "{what}: NaN");
    }

    fn check_f64(a: f64, b: f64, c: f64) {
        for mode in MODES {
            let what = |name: &str| format!("{name} {a:e}, {b:e}, {c:e} {mode:?}");
            let two = [a, b];
            let pairs = [
                ("add", double::add_f64(a, b, mode), processor::add_f64(a, b, mode)),
                ("sub", double::sub_f64(a, b, mode), processor::sub_f64(a, b, mode)),
                ("mul", double::mul_f64(a, b, mode), processor::mul_f64(a, b, mode)),
                ("div", double::div_f64(a, b, mode), processor::div_f64(a, b, mode)),
            ];
            for (name, ours, theirs) in pairs {
                assert_same_f64(ours, theirs, &two, &what(name));
            }
            let (ours, theirs) = (double::rcp_f64(b, mode), processor::div_f64(1.0, b, mode));
            assert_same_f64(ours, theirs, &[b], &what("rcp"));
            let root = processor::sqrt_of_second_f64(b, b, mode);
            assert_same_f64(double::sqrt_f64(b, mode), root, &[b], &what("sqrt"));
            if std::is_x86_feature_detected!("fma") {
                let (ours, theirs) =
                    (double::fma_f64(a, b, c, mode), processor::fma_f64(a, b, c, mode));
                assert_same_f64(ours, theirs, &[a, b, c], &what("fma"));
            }
            let narrowed = processor::f64_to_f32(a, mode);
            assert_same(rounding::narrow(a, mode), narrowed, &what("narrow"));
        }
    }

    #[test]
    fn edge_cases() {
        let values = edge_case_f32();
        for &a in &values {
            for &b in &values {
                for c in [0.0, -0.0, 1.0, f32::from_bits(1), -f32::MAX, a, -(a * b)] {
                    check_f32(a, b, c);
                    check_f64(f64::from(a), f64::from(b), f64::from(c));
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn any_values(a in any_f32(), b in any_f32(), c in any_f32()) {
            check_f32(a, b, c);
            check_f32(a, b, -(a * b));
        }

        #[test]
        fn any_values_f64(a in any_f64(), b in any_f64(), c in any_f64()) {
            check_f64(a, b, c);
            check_f64(a, b, -(a * b));
        }
    }
}

proptest! {
    /// Down and up enclose the exact value: they are equal, or neighbors that the other two modes
    /// choose between. Negating the exact value exchanges them.
    #[test]
    fn directed_modes_enclose_nearest(a in any_f32(), b in any_f32(), c in any_f32()) {
        let [nearest, zero, down, up] = MODES.map(|mode| rounding::fma(a, b, c, mode));
        if nearest.is_nan() {
            return Ok(());
        }
        prop_assert!(down == up || down.next_up() == up);
        prop_assert!(nearest == down || nearest == up);
        let truncated = if up > 0.0 { down } else { up };
        prop_assert!(zero == truncated);
        let mirrored = rounding::fma(-a, b, -c, Rounding::Up);
        prop_assert!(mirrored == -down);
    }
}

#[test]
fn flush_keeps_signs_and_saturate_drops_them() {
    let cases: [(f32, f32, f32); 8] = [
        (f32::from_bits(1), 0.0, f32::from_bits(1)),
        (-f32::from_bits(0x7f_ffff), -0.0, 0.0),
        (f32::MIN_POSITIVE, f32::MIN_POSITIVE, f32::MIN_POSITIVE),
        (-0.0, -0.0, 0.0),
        (0.5, 0.5, 0.5),
        (1.5, 1.5, 1.0),
        (f32::INFINITY, f32::INFINITY, 1.0),
        (f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0),
    ];
    for (x, flushed, saturated) in cases {
        assert_eq!(rounding::flush(x).to_bits(), flushed.to_bits(), "flush {x:e}");
        assert_eq!(rounding::saturate(x).to_bits(), saturated.to_bits(), "saturate {x:e}");
    }
    assert_eq!(rounding::saturate(f32::NAN).to_bits(), 0);
    assert!(rounding::flush(f32::NAN).is_nan());
}
