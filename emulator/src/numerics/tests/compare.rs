//! Tests of comparisons, minima, maxima and classes.

use proptest::prelude::*;

use super::super::compare::NanOperand::{Ignored, Propagated};
use super::super::compare::*;
use super::super::rounding::NAN_F32;
use super::{any_f32, edge_case_f32};

/// The table of relations in PTX ISA, "Floating-Point Comparisons": results for a < b, a = b, a >
/// b, and one NaN.
const TABLE: [(Comparison, [bool; 4]); 14] = [
    (Comparison::Equal, [false, true, false, false]),
    (Comparison::NotEqual, [true, false, true, false]),
    (Comparison::Less, [true, false, false, false]),
    (Comparison::LessOrEqual, [true, true, false, false]),
    (Comparison::Greater, [false, false, true, false]),
    (Comparison::GreaterOrEqual, [false, true, true, false]),
    (Comparison::EqualOrUnordered, [false, true, false, true]),
    (Comparison::NotEqualOrUnordered, [true, false, true, true]),
    (Comparison::LessOrUnordered, [true, false, false, true]),
    (Comparison::LessOrEqualOrUnordered, [true, true, false, true]),
    (Comparison::GreaterOrUnordered, [false, false, true, true]),
    (Comparison::GreaterOrEqualOrUnordered, [false, true, true, true]),
    (Comparison::Ordered, [true, true, true, false]),
    (Comparison::Unordered, [false, false, false, true]),
];

#[test]
fn relations_follow_the_table() {
    for (relation, expected) in TABLE {
        let pairs = [(1.0, 2.0), (0.0, -0.0), (3.0, 2.0), (1.0, f32::NAN)];
        assert_eq!(pairs.map(|(a, b)| relation.holds(a, b)), expected, "{relation:?}");
        assert_eq!(relation.holds(f64::NAN, 1.0), expected[3], "{relation:?}");
        let integers = [(-1, 2), (7, 7), (3, i32::MIN)];
        assert_eq!(integers.map(|(a, b)| relation.holds(a, b)), expected[..3], "{relation:?}");
    }
}

#[test]
fn minima_and_maxima_order_zeros_and_drop_nan() {
    for a in edge_case_f32() {
        for b in edge_case_f32() {
            let (low, high) = (min_f32(a, b, Ignored), max_f32(a, b, Ignored));
            let (low64, high64) =
                (min_f64(f64::from(a), f64::from(b)), max_f64(f64::from(a), f64::from(b)));
            let expected = match (a.is_nan(), b.is_nan()) {
                (true, true) => [NAN_F32; 2],
                (true, false) => [b; 2],
                (false, true) => [a; 2],
                (false, false) if a.total_cmp(&b).is_lt() => [a, b],
                (false, false) => [b, a],
            };
            assert_eq!([low, high].map(f32::to_bits), expected.map(f32::to_bits), "{a:e}, {b:e}");
            if !low.is_nan() {
                let expected = expected.map(|x| f64::from(x).to_bits());
                assert_eq!([low64, high64].map(f64::to_bits), expected, "{a:e}, {b:e}");
            }
            assert_eq!(low.is_nan(), low64.is_nan() && high64.is_nan());

            let poisoned = a.is_nan() || b.is_nan();
            let strict = [min_f32(a, b, Propagated), max_f32(a, b, Propagated)];
            let expected = if poisoned { [NAN_F32; 2] } else { expected };
            assert_eq!(strict.map(f32::to_bits), expected.map(f32::to_bits), "{a:e}, {b:e}");
        }
    }
}

proptest! {
    #[test]
    fn copysign_takes_the_sign_of_the_first_operand(a in any_f32(), b in any_f32()) {
        prop_assert_eq!(copysign_f32(a.to_bits(), b.to_bits()), b.copysign(a).to_bits());
        let (a64, b64) = (f64::from(a), f64::from(b));
        prop_assert_eq!(copysign_f64(a64.to_bits(), b64.to_bits()), b64.copysign(a64).to_bits());

        let magnitude = min_f32(a.abs(), b.abs(), Ignored);
        let signed = with_product_of_signs(magnitude, a, b);
        prop_assert_eq!(signed.is_nan(), magnitude.is_nan());
        if !signed.is_nan() {
            let negative = a.is_sign_negative() != b.is_sign_negative();
            prop_assert_eq!(signed.abs(), magnitude);
            prop_assert_eq!(signed.is_sign_negative(), negative);
        }
    }

    /// Every number is in exactly one of: subnormal, normal or zero, infinite, NaN.
    #[test]
    fn classes_partition_the_numbers(x in any_f32()) {
        let is = |class: Class| class.contains_f32(x);
        let parts = [is(Class::Subnormal), is(Class::Normal), is(Class::Infinite),
            is(Class::NotANumber)];
        prop_assert_eq!(parts.iter().filter(|&&part| part).count(), 1);
        prop_assert_eq!(is(Class::Finite), !is(Class::Infinite) && !is(Class::NotANumber));
        prop_assert_eq!(is(Class::Number), !is(Class::NotANumber));
        let wide = f64::from(x);
        prop_assert!(x != 0.0 || is(Class::Normal));
        prop_assert!(!Class::Subnormal.contains_f64(wide));
        prop_assert_eq!(Class::Normal.contains_f64(wide), is(Class::Finite));
        prop_assert_eq!(Class::Infinite.contains_f64(wide), is(Class::Infinite));
        prop_assert_eq!(Class::NotANumber.contains_f64(wide), is(Class::NotANumber));
        prop_assert_eq!(Class::Number.contains_f64(wide), is(Class::Number));
        prop_assert_eq!(Class::Finite.contains_f64(wide), is(Class::Finite));
    }
}
