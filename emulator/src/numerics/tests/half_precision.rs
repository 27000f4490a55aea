//! Tests of f16 and bf16 arithmetic. The references are the `half` crate for conversions, and exact
//! sums and products for arithmetic.

use proptest::prelude::*;

use super::super::compare::NanOperand::{Ignored, Propagated};
use super::super::exact::{BFLOAT16, BINARY16, Exact, Format, Rounding};
use super::super::half_precision::{self as half_ops, Bf16, F16, Half, NAN_HALF};
use super::any_f32;

/// Any half, with the edges of both formats overrepresented.
fn any_half() -> impl Strategy<Value = u16> {
    let edges = vec![
        0, 1, 2, 0x7f, 0x80, 0x81, 0x3ff, 0x400, 0x401, 0x3c00, 0x3f80, 0x7bff, 0x7c00, 0x7c01,
        0x7f7f, 0x7f80, 0x7f81, 0x7fff, 0x8000, 0x8001, 0xfbff, 0xfc00, 0xff7f, 0xff80,
    ];
    prop_oneof![4 => any::<u16>(), 1 => proptest::sample::select(edges)]
}

#[test]
fn widening_matches_the_half_crate() {
    for bits in 0..=u16::MAX {
        let (ours, theirs) = (F16::widen(bits), half::f16::from_bits(bits).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:x}");
        let (ours, theirs) = (Bf16::widen(bits), half::bf16::from_bits(bits).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:x}");
    }
}

fn check_narrowing(x: f32) {
    if x.is_nan() {
        assert_eq!((F16::narrow(x), Bf16::narrow(x)), (NAN_HALF, NAN_HALF));
        return;
    }
    assert_eq!(F16::narrow(x), half::f16::from_f32(x).to_bits(), "f16 of {x:e}");
    assert_eq!(Bf16::narrow(x), half::bf16::from_f32(x).to_bits(), "bf16 of {x:e}");
}

/// Every number of both formats, every midpoint between two numbers, and their neighbors.
#[test]
fn narrowing_matches_the_half_crate() {
    for bits in 0..=u16::MAX {
        for x in [F16::widen(bits), Bf16::widen(bits)] {
            let midpoint = f32::from_bits(x.to_bits() ^ 0x1000);
            let bf16_midpoint = f32::from_bits(x.to_bits() ^ 0x8000);
            let tiny_midpoint = x + f32::from_bits((127 - 25) << 23);
            for near in [x, midpoint, bf16_midpoint, tiny_midpoint] {
                check_narrowing(near);
                check_narrowing(f32::from_bits(near.to_bits().wrapping_add(1)));
                check_narrowing(f32::from_bits(near.to_bits().wrapping_sub(1)));
            }
        }
    }
}

/// a * b + c, rounded once.
fn fused_reference<H: Half>(format: Format, a: u16, b: u16, c: u16) -> u16 {
    let [a, b, c] = [a, b, c].map(|x| f64::from(H::widen(x)));
    let in_f64 = a * b + c;
    if in_f64.is_nan() {
        return NAN_HALF;
    }
    if in_f64.is_infinite() {
        return format.infinity() as u16 | u16::from(in_f64 < 0.0) << 15;
    }
    let product = Exact::product(Exact::of(a), Exact::of(b));
    let sum = Exact::sum(product, Exact::of(c), Rounding::Nearest);
    format.round(sum, Rounding::Nearest) as u16
}

fn check_arithmetic<H: Half>(format: Format, one: u16, a: u16, b: u16, c: u16) {
    let fused = |a, b, c| fused_reference::<H>(format, a, b, c);
    let minus_zero = 0x8000;
    // A zero product must keep its sign: add the zero that does not change it.
    let product = fused(a, b, if (a ^ b) & 0x8000 != 0 { minus_zero } else { 0 });
    assert_eq!(half_ops::fma::<H>(a, b, c), fused(a, b, c), "fma {a:x} {b:x} {c:x}");
    assert_eq!(half_ops::mul::<H>(a, b), product, "mul {a:x} {b:x}");
    assert_eq!(half_ops::add::<H>(a, b), fused(a, one, b), "add {a:x} {b:x}");
    assert_eq!(half_ops::sub::<H>(a, b), fused(a, one, half_ops::neg(b)), "sub {a:x} {b:x}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn arithmetic_rounds_once(a in any_half(), b in any_half(), c in any_half()) {
        check_arithmetic::<F16>(BINARY16, 0x3c00, a, b, c);
        check_arithmetic::<Bf16>(BFLOAT16, 0x3f80, a, b, c);
    }

    /// The fused operation rounds once, even if c breaks a tie from far below.
    #[test]
    fn fused_ties_are_broken(a in any_half(), b in any_half(), distance in 0_u16..0x3f) {
        let product = half_ops::mul::<Bf16>(a, b) & 0x7f80;
        let c = product.saturating_sub(distance << 7);
        check_arithmetic::<Bf16>(BFLOAT16, 0x3f80, a, b, c);
        check_arithmetic::<Bf16>(BFLOAT16, 0x3f80, a, b, c | 0x8000);
    }

    #[test]
    fn narrowing_of_any_f32(x in any_f32()) {
        check_narrowing(x);
    }

    #[test]
    fn packed_is_scalar_twice(a in any::<u32>(), b in any::<u32>(), c in any::<u32>()) {
        let [low, high] = [0, 16].map(|shift| {
            let half = |x: u32| (x >> shift) as u16;
            half_ops::fma::<F16>(half(a), half(b), half(c))
        });
        let packed = half_ops::both3(a, b, c, half_ops::fma::<F16>);
        prop_assert_eq!(packed, u32::from(high) << 16 | u32::from(low));
        let sum = half_ops::both2(a, b, half_ops::add::<Bf16>);
        prop_assert_eq!(half_ops::unpack(sum)[1],
            half_ops::add::<Bf16>((a >> 16) as u16, (b >> 16) as u16));
        prop_assert_eq!(half_ops::both(a, half_ops::neg), a ^ 0x8000_8000);
        prop_assert_eq!(half_ops::both(a, half_ops::abs), a & 0x7fff_7fff);
    }
}

/// Bit patterns at the edges, written by hand: f16 unless the name says otherwise.
#[test]
fn minima_maxima_and_modifiers() {
    const ONE: u16 = 0x3c00;
    const NAN: u16 = 0x7e01;
    let min = |a, b| half_ops::min::<F16>(a, b, Ignored);
    let max = |a, b| half_ops::max::<F16>(a, b, Ignored);
    assert_eq!((min(0, 0x8000), max(0x8000, 0)), (0x8000, 0), "minus zero is below plus zero");
    assert_eq!((min(NAN, ONE), max(ONE, NAN)), (ONE, ONE), "one NaN loses");
    assert_eq!((min(NAN, NAN), max(0xfe00, NAN)), (NAN_HALF, NAN_HALF), "two NaN win");
    assert_eq!(half_ops::min::<F16>(NAN, ONE, Propagated), NAN_HALF);
    assert_eq!(half_ops::max::<Bf16>(0x3f80, 0xff81, Propagated), NAN_HALF);
    assert_eq!(half_ops::xorsign::<F16>(ONE, 0xc000, 0x3c00), 0xbc00);

    assert_eq!(half_ops::flush::<F16>(0x83ff), 0x8000);
    assert_eq!(half_ops::flush::<F16>(0x0400), 0x0400);
    assert_eq!(half_ops::flush::<Bf16>(0x007f), 0);
    assert_eq!(
        [NAN, 0x8000, 0xbc00, 0x3800, 0x4000].map(half_ops::saturate::<F16>),
        [0, 0, 0, 0x3800, ONE]
    );
    assert_eq!(
        [NAN, 0x8000, 0xbc00, 0x3800, 0x7c00].map(half_ops::relu::<F16>),
        [NAN_HALF, 0, 0, 0x3800, 0x7c00]
    );
}
