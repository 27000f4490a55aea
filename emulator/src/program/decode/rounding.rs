//! Rounding, flushing and clamping, encoded in an instruction's modifier.

use crate::numerics::compare::NanOperand;
use crate::numerics::half_precision::{self as half, Half};
use crate::numerics::rounding::{Rounding, flush, saturate};

/// Rounding to the type.
pub(super) const ROUNDINGS: [(&str, Rounding); 4] = [
    ("rn", Rounding::Nearest),
    ("rz", Rounding::Zero),
    ("rm", Rounding::Down),
    ("rp", Rounding::Up),
];

/// Rounding to an integer.
pub(super) const INTEGER_ROUNDINGS: [(&str, Rounding); 4] = [
    ("rni", Rounding::Nearest),
    ("rzi", Rounding::Zero),
    ("rmi", Rounding::Down),
    ("rpi", Rounding::Up),
];

// The bits of a modifier. The lowest two are the rounding mode.
pub(super) const FLUSH: u32 = 1 << 2;
pub(super) const SATURATE: u32 = 1 << 3;
pub(super) const RELU: u32 = 1 << 4;
pub(super) const NAN: u32 = 1 << 5;
/// `.xorsign.abs`.
pub(super) const BY_SIGNS: u32 = 1 << 6;
/// The first free bit.
pub(super) const FREE_BITS: u32 = 8;

pub(super) fn modifier_of(rounding: Rounding) -> u32 {
    match rounding {
        Rounding::Nearest => 0,
        Rounding::Zero => 1,
        Rounding::Down => 2,
        Rounding::Up => 3,
    }
}

/// The bit if `set`, else 0.
pub(super) fn flag(set: bool, bit: u32) -> u32 {
    if set { bit } else { 0 }
}

#[inline(always)]
pub(super) fn rounding_of(modifier: u32) -> Rounding {
    match modifier & 3 {
        0 => Rounding::Nearest,
        1 => Rounding::Zero,
        2 => Rounding::Down,
        _ => Rounding::Up,
    }
}

#[inline(always)]
pub(super) fn nan_operand(modifier: u32) -> NanOperand {
    match modifier & NAN {
        0 => NanOperand::Ignored,
        _ => NanOperand::Propagated,
    }
}

#[inline(always)]
pub(super) fn input_f32(a: u32, modifier: u32) -> f32 {
    let a = f32::from_bits(a);
    if modifier & FLUSH != 0 { flush(a) } else { a }
}

#[inline(always)]
pub(super) fn output_f32(value: f32, modifier: u32) -> u32 {
    let value = if modifier & FLUSH != 0 { flush(value) } else { value };
    let value = if modifier & SATURATE != 0 { saturate(value) } else { value };
    value.to_bits()
}

#[inline(always)]
pub(super) fn input_half<H: Half>(a: u16, modifier: u32) -> u16 {
    if modifier & FLUSH != 0 { half::flush::<H>(a) } else { a }
}

#[inline(always)]
pub(super) fn output_half<H: Half>(value: u16, modifier: u32) -> u16 {
    let value = input_half::<H>(value, modifier);
    let value = if modifier & SATURATE != 0 { half::saturate::<H>(value) } else { value };
    if modifier & RELU != 0 { half::relu::<H>(value) } else { value }
}
