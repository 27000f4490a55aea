//! f32 arithmetic in the four rounding modes, and the modifiers `.ftz` and `.sat`.
//!
//! Implements PTX ISA, "Floating-Point Instructions": add, sub, mul, fma, div, rcp and sqrt with
//! `.rn`, `.rz`, `.rm` and `.rp`. Results equal IEEE 754's bit for bit.
//!
//! The processor's instructions round to nearest even. The directed modes are computed in f64. The
//! product of two f32 is exact in f64, and for a sum, quotient or root the exact sign of the error
//! is known (error-free transformations: Knuth's TwoSum, and residuals by fused multiply-add).
//! *Rounding to odd* encodes that sign in the last bit of the f64. Since f64 has more than two
//! extra bits, rounding this again gives the same as one rounding of the exact result (Boldo and
//! Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
//!
//! NaN: f32 instructions drop payloads. GPUs return `0x7fffffff`, and so does every function here.
//!
//! `.ftz` and `.sat` compose: `saturate(flush(add(flush(a), flush(b), mode)))`.

pub(crate) use super::exact::Rounding;

/// The NaN of all f32 results.
pub(crate) const NAN_F32: f32 = f32::from_bits(0x7fff_ffff);

/// The canonical NaN if `is_nan`, else `x`.
///
/// Computed on integers, because the compiler considers all NaNs equal and drops a selection
/// between floating-point values that differ only in the NaN.
#[inline(always)]
pub(crate) fn nan_if(is_nan: bool, x: f32) -> f32 {
    f32::from_bits(if is_nan { NAN_F32.to_bits() } else { x.to_bits() })
}

/// `x`, with every NaN replaced by the canonical one.
#[inline(always)]
pub(crate) fn canonical(x: f32) -> f32 {
    nan_if(x.to_bits() & 0x7fff_ffff > 0x7f80_0000, x)
}

/// `.ftz`: a subnormal becomes a zero of the same sign. Applies to operands and results.
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    let kept = if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits };
    f32::from_bits(kept)
}

/// `.sat`: clamped to [0, 1]; NaN and minus zero become plus zero.
#[inline(always)]
pub(crate) fn saturate(x: f32) -> f32 {
    let at_least_zero = if x > 0.0 { x } else { 0.0 };
    if at_least_zero > 1.0 { 1.0 } else { at_least_zero }
}

/// `add.f32`.
#[inline(always)]
pub(crate) fn add(a: f32, b: f32, rounding: Rounding) -> f32 {
    match rounding {
        Rounding::Nearest => canonical(a + b),
        directed => sum(f64::from(a), f64::from(b), directed),
    }
}

/// `sub.f32`.
#[inline(always)]
pub(crate) fn sub(a: f32, b: f32, rounding: Rounding) -> f32 {
    match rounding {
        Rounding::Nearest => canonical(a - b),
        directed => sum(f64::from(a), -f64::from(b), directed),
    }
}

/// `mul.f32`.
#[inline(always)]
pub(crate) fn mul(a: f32, b: f32, rounding: Rounding) -> f32 {
    match rounding {
        Rounding::Nearest => canonical(a * b),
        directed => narrow(f64::from(a) * f64::from(b), directed),
    }
}

/// `fma.f32`: a * b + c with one rounding.
#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32, rounding: Rounding) -> f32 {
    match rounding {
        Rounding::Nearest => canonical(a.mul_add(b, c)),
        directed => sum(f64::from(a) * f64::from(b), f64::from(c), directed),
    }
}

/// `div.f32` with a rounding modifier.
#[inline(always)]
pub(crate) fn div(a: f32, b: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::Nearest {
        return canonical(a / b);
    }
    let (a, b) = (f64::from(a), f64::from(b));
    let quotient = a / b;
    let residual = (-quotient).mul_add(b, a);
    let error = if b.is_sign_negative() { -residual } else { residual };
    // An infinite divisor gives a zero quotient and a NaN residual, which counts as no error.
    narrow(to_odd(quotient, error), rounding)
}

/// `rcp.f32` with a rounding modifier.
#[inline(always)]
pub(crate) fn rcp(x: f32, rounding: Rounding) -> f32 {
    div(1.0, x, rounding)
}

/// `sqrt.f32` with a rounding modifier.
#[inline(always)]
pub(crate) fn sqrt(x: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::Nearest {
        return canonical(x.sqrt());
    }
    let x = f64::from(x);
    let root = x.sqrt();
    narrow(to_odd(root, (-root).mul_add(root, x)), rounding)
}

/// a + b rounded to f32, where each operand is a product of at most two f32.
#[inline(always)]
fn sum(a: f64, b: f64, rounding: Rounding) -> f32 {
    let total = sum_to_odd(a, b);
    // Opposite numbers sum to plus zero, or to minus zero when rounding down (IEEE 754, 6.3).
    let canceled = total == 0.0 && a.is_sign_negative() != b.is_sign_negative();
    let total = if canceled && rounding == Rounding::Down { -0.0 } else { total };
    narrow(total, rounding)
}

/// a + b rounded to odd in f64, where each operand is a product of at most two f32.
#[inline(always)]
pub(crate) fn sum_to_odd(a: f64, b: f64) -> f64 {
    let total = a + b;
    let b_part = total - a;
    let error = (a - (total - b_part)) + (b - b_part);
    to_odd(total, error)
}

/// `nearest`, moved to the neighbor with an odd last bit if the exact value `nearest + error` is
/// not representable. A NaN error, which occurs with infinities, counts as zero.
#[inline(always)]
fn to_odd(nearest: f64, error: f64) -> f64 {
    let bits = nearest.to_bits();
    let inexact = error.abs() > 0.0;
    let outwards = error.is_sign_negative() == nearest.is_sign_negative();
    let odd = if outwards { bits | 1 } else { bits.wrapping_sub(1) };
    f64::from_bits(if inexact && bits & 1 == 0 { odd } else { bits })
}

/// An f64 rounded to f32: `cvt.f32.f64`.
#[inline(always)]
pub(crate) fn narrow(x: f64, rounding: Rounding) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    let bits = nearest.to_bits();

    let too_large = match rounding {
        Rounding::Nearest => false,
        Rounding::Zero => back.abs() > x.abs(),
        Rounding::Down => back > x,
        Rounding::Up => back < x,
    };
    // To the next number toward zero, or away from it if the mode rounds that way.
    let outwards = match rounding {
        Rounding::Nearest | Rounding::Zero => false,
        Rounding::Down => nearest.is_sign_negative(),
        Rounding::Up => !nearest.is_sign_negative(),
    };
    let neighbor = if outwards { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    canonical(f32::from_bits(if too_large { neighbor } else { bits }))
}

/// Rounds an f64 to odd in f32. The result may then be rounded again to at most 22 bits.
#[inline(always)]
pub(crate) fn narrow_to_odd(x: f64) -> f32 {
    let truncated = narrow(x, Rounding::Zero);
    // The canonical NaN, which differs from itself, already has its last bit set.
    let inexact = f64::from(truncated) != x;
    f32::from_bits(truncated.to_bits() | u32::from(inexact))
}
