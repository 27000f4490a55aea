//! f64 arithmetic in the four rounding modes.
//!
//! Implements PTX ISA, "Floating-Point Instructions", for `.f64`. The processor's instructions
//! round to nearest even. The directed modes are rarely used; they round exact results.
//!
//! NaN: f64 instructions keep payloads. A NaN result is the first NaN operand, quieted; without one
//! (0 * inf, inf - inf) it is `0xfff8000000000000`. PTX does not specify which of several NaN
//! operands is kept.

use super::exact::{BINARY64, Exact, Rounding};

/// The NaN of an invalid operation on numbers.
pub(crate) const INVALID_F64: f64 = f64::from_bits(0xfff8_0000_0000_0000);

const QUIET: u64 = 1 << 51;
const INFINITY: u64 = 0x7ff << 52;

/// `result`, or the NaN that the operands determine. Computed on integers, because the compiler may
/// replace one NaN by another.
#[inline(always)]
pub(crate) fn with_payload<const N: usize>(result: f64, operands: [f64; N]) -> f64 {
    let is_nan = |bits: u64| bits & (u64::MAX >> 1) > INFINITY;
    let first = operands.into_iter().map(f64::to_bits).find(|&bits| is_nan(bits));
    let nan = first.map_or(INVALID_F64.to_bits(), |bits| bits | QUIET);
    f64::from_bits(if is_nan(result.to_bits()) { nan } else { result.to_bits() })
}

fn round(exact: Exact, rounding: Rounding) -> f64 {
    f64::from_bits(BINARY64.round(exact, rounding))
}

/// `add.f64`.
#[inline(always)]
pub(crate) fn add_f64(a: f64, b: f64, rounding: Rounding) -> f64 {
    let is_nearest = rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite();
    if is_nearest {
        return with_payload(a + b, [a, b]);
    }
    round(Exact::sum(Exact::of(a), Exact::of(b), rounding), rounding)
}

/// `sub.f64`.
#[inline(always)]
pub(crate) fn sub_f64(a: f64, b: f64, rounding: Rounding) -> f64 {
    let is_nearest = rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite();
    if is_nearest {
        return with_payload(a - b, [a, b]);
    }
    round(Exact::sum(Exact::of(a), Exact::of(-b), rounding), rounding)
}

/// `mul.f64`.
#[inline(always)]
pub(crate) fn mul_f64(a: f64, b: f64, rounding: Rounding) -> f64 {
    let is_nearest = rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite();
    if is_nearest {
        return with_payload(a * b, [a, b]);
    }
    round(Exact::product(Exact::of(a), Exact::of(b)), rounding)
}

/// `fma.f64`: a * b + c with one rounding.
#[inline(always)]
pub(crate) fn fma_f64(a: f64, b: f64, c: f64, rounding: Rounding) -> f64 {
    let finite = a.is_finite() && b.is_finite() && c.is_finite();
    if rounding == Rounding::Nearest || !finite {
        return with_payload(a.mul_add(b, c), [a, b, c]);
    }
    let product = Exact::product(Exact::of(a), Exact::of(b));
    round(Exact::sum(product, Exact::of(c), rounding), rounding)
}

/// `div.f64`.
#[inline(always)]
pub(crate) fn div_f64(a: f64, b: f64, rounding: Rounding) -> f64 {
    let is_nearest = rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite();
    if is_nearest || b == 0.0 {
        return with_payload(a / b, [a, b]);
    }
    round(Exact::quotient(Exact::of(a), Exact::of(b)), rounding)
}

/// `rcp.f64` with a rounding modifier.
#[inline(always)]
pub(crate) fn rcp_f64(x: f64, rounding: Rounding) -> f64 {
    div_f64(1.0, x, rounding)
}

/// `sqrt.f64`.
#[inline(always)]
pub(crate) fn sqrt_f64(x: f64, rounding: Rounding) -> f64 {
    let has_root = x.is_finite() && x > 0.0;
    if rounding == Rounding::Nearest || !has_root {
        return with_payload(x.sqrt(), [x]);
    }
    round(Exact::of(x).square_root(), rounding)
}
