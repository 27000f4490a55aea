//! Conversions (PTX ISA 9.7.9.21). Source and destination registers may be wider than their types.

use super::rounding::{
    FLUSH, FREE_BITS, INTEGER_ROUNDINGS, RELU, ROUNDINGS, SATURATE, flag, modifier_of, output_f32,
    output_half, rounding_of,
};
use super::{Decoding, Result};
use crate::machine::lanes::{Compute, Operands, lanes};
use crate::machine::shadow::{Rule, Shadow};
use crate::numerics::convert::{self, Float8, Integer, Tf32Rounding};
use crate::numerics::half_precision::{Bf16, F16, Half, relu_f32};
use crate::numerics::rounding::{Rounding, flush, narrow};
use crate::program::op::Op;
use crate::program::opcode::Type;

/// The parameters of a conversion, packed into an instruction's modifier: types, rounding, `.ftz`,
/// `.sat`, `.relu`, whether it rounds to an integer, and the size of the result's register.
#[derive(Clone, Copy)]
struct Conversion(u32);

impl Conversion {
    fn new(from: Type, to: Type, rounding: Rounding) -> Conversion {
        Conversion(modifier_of(rounding) | code(from) << FROM | code(to) << TO)
    }

    fn with(self, set: bool, bit: u32) -> Conversion {
        Conversion(self.0 | flag(set, bit))
    }

    #[inline(always)]
    fn from(self) -> u32 {
        self.0 >> FROM & 15
    }

    #[inline(always)]
    fn to(self) -> u32 {
        self.0 >> TO & 15
    }

    #[inline(always)]
    fn rounding(self) -> Rounding {
        rounding_of(self.0)
    }

    #[inline(always)]
    fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

/// Bit positions of the types in a modifier, 4 bits each, and of the flags after them.
const FROM: u32 = FREE_BITS;
const TO: u32 = FROM + 4;
const INTEGRAL: u32 = 1 << (TO + 4);
const SHORT: u32 = 1 << (TO + 5);

/// Types as numbers; integers are below 8.
fn code(kind: Type) -> u32 {
    match kind {
        Type::U8 | Type::B8 => 0,
        Type::S8 => 1,
        Type::U16 | Type::B16 => 2,
        Type::S16 => 3,
        Type::U32 | Type::B32 => 4,
        Type::S32 => 5,
        Type::U64 | Type::B64 => 6,
        Type::S64 => 7,
        Type::F16 => F16_CODE,
        Type::BF16 => BF16_CODE,
        Type::F32 => F32_CODE,
        _ => F64_CODE,
    }
}

const F16_CODE: u32 = 8;
const BF16_CODE: u32 = 9;
const F32_CODE: u32 = 10;
const F64_CODE: u32 = 11;

/// The integer types by number.
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

#[inline(always)]
fn integer(code: u32) -> Integer {
    INTEGERS[code as usize & 7]
}

impl Decoding<'_, '_, '_> {
    pub(super) fn conversion(&mut self) -> Result<Op> {
        let ties_away = self.opcode.take("rna");
        let rounding = self.opcode.take_any(&ROUNDINGS);
        let whole = self.opcode.take_any(&INTEGER_ROUNDINGS);
        let flush = self.opcode.take("ftz");
        let saturate = self.opcode.take("sat");
        let relu = self.opcode.take("relu");
        let (to, from) = (self.opcode.kind()?, self.opcode.kind()?);
        let chosen = rounding.or(whole).unwrap_or(Rounding::Nearest);
        let conversion = Conversion::new(from, to, chosen)
            .with(flush, FLUSH)
            .with(saturate, SATURATE)
            .with(relu, RELU)
            .with(whole.is_some(), INTEGRAL);
        match (to, from) {
            (Type::TF32, Type::F32) if ties_away => {
                self.tf32(Tf32Rounding::NearestAway, conversion)
            }
            (Type::TF32, Type::F32) => match chosen {
                Rounding::Zero => self.tf32(Tf32Rounding::Zero, conversion),
                _ => self.tf32(Tf32Rounding::NearestEven, conversion),
            },
            (Type::F16x2 | Type::BF16x2, Type::F32) => self.pair(to, conversion),
            (Type::E4M3x2, Type::F32) => self.narrow_to_float8(Float8::E4M3, conversion),
            (Type::E5M2x2, Type::F32) => self.narrow_to_float8(Float8::E5M2, conversion),
            (Type::F16x2, Type::E4M3x2) => self.widen_float8(Float8::E4M3, conversion),
            (Type::F16x2, Type::E5M2x2) => self.widen_float8(Float8::E5M2, conversion),
            _ if !single(to) || !single(from) => self.opcode.wrong_type(to),
            _ => self.single(to, from, conversion),
        }
    }

    fn tf32(&mut self, rounding: Tf32Rounding, conversion: Conversion) -> Result<Op> {
        let compute: Compute = match rounding {
            Tf32Rounding::NearestAway => lanes!(modifier = m; |a: u32| -> u32 {
                to_tf32(a, Tf32Rounding::NearestAway, Conversion(m))
            }),
            Tf32Rounding::NearestEven => lanes!(modifier = m; |a: u32| -> u32 {
                to_tf32(a, Tf32Rounding::NearestEven, Conversion(m))
            }),
            Tf32Rounding::Zero => lanes!(modifier = m; |a: u32| -> u32 {
                to_tf32(a, Tf32Rounding::Zero, Conversion(m))
            }),
        };
        self.compute_of(compute, &[Type::B32, Type::F32], conversion.0, 0)
    }

    /// Converts two f32 to a pair of f16 or bf16; the first operand becomes the upper half.
    fn pair(&mut self, to: Type, conversion: Conversion) -> Result<Op> {
        let compute: Compute = match to {
            Type::F16x2 => lanes!(modifier = m; |a: u32, b: u32| -> u32 {
                let (a, b) = (pair_input(a, Conversion(m)), pair_input(b, Conversion(m)));
                convert::f32_pair_to_f16(a, b, Conversion(m).rounding())
            }),
            _ => lanes!(modifier = m; |a: u32, b: u32| -> u32 {
                let (a, b) = (pair_input(a, Conversion(m)), pair_input(b, Conversion(m)));
                convert::f32_pair_to_bf16(a, b, Conversion(m).rounding())
            }),
        };
        self.compute_of(compute, &[Type::B32, Type::F32, Type::F32], conversion.0, 0)
    }

    /// Converts two f32 to a pair of 8-bit floats; the first operand becomes the upper one.
    fn narrow_to_float8(&mut self, format: Float8, conversion: Conversion) -> Result<Op> {
        self.opcode.choose(&[("satfinite", ())])?;
        let compute: Compute = match format {
            Float8::E4M3 => lanes!(modifier = m; |a: u32, b: u32| -> u32 {
                let (a, b) = (f32::from_bits(a), f32::from_bits(b));
                u32::from(Float8::E4M3.narrow_pair(a, b, Conversion(m).has(RELU)))
            }),
            Float8::E5M2 => lanes!(modifier = m; |a: u32, b: u32| -> u32 {
                let (a, b) = (f32::from_bits(a), f32::from_bits(b));
                u32::from(Float8::E5M2.narrow_pair(a, b, Conversion(m).has(RELU)))
            }),
        };
        self.compute_of(compute, &[Type::B16, Type::F32, Type::F32], conversion.0, 0)
    }

    /// Converts a pair of 8-bit floats to a pair of f16.
    fn widen_float8(&mut self, format: Float8, conversion: Conversion) -> Result<Op> {
        if conversion.has(RELU) {
            return self.opcode.wrong_type(Type::F16x2);
        }
        let compute: Compute = match format {
            Float8::E4M3 => lanes!(|a: u32| -> u32 { Float8::E4M3.widen_pair(a as u16) }),
            Float8::E5M2 => lanes!(|a: u32| -> u32 { Float8::E5M2.widen_pair(a as u16) }),
        };
        self.compute_of(compute, &[Type::B32, Type::B16], 0, 0)
    }

    fn single(&mut self, to: Type, from: Type, conversion: Conversion) -> Result<Op> {
        let [destination, source] = self.exactly()?;
        let (slot, bits) = self.lowering.register(destination)?;
        if bits < to.bits() {
            return Err(format!("a register of {bits} bits cannot hold {to}"));
        }
        let (source, source_bits) = match self.lowering.register(source) {
            Ok((slot, bits)) if bits >= from.bits() => (slot, bits),
            Ok((_, bits)) => return Err(format!("a register of {bits} bits cannot hold {from}")),
            Err(_) => {
                let slot = self.lowering.source(source, from)?;
                (slot, from.bits().max(32))
            }
        };
        let conversion = conversion.with(bits == 16, SHORT);
        let rule = match is_integer_type(to) && is_integer_type(from) {
            true if !conversion.has(SATURATE) => Rule::Bits { data: 1 },
            _ => Rule::Whole,
        };
        let plain = is_integer_type(to) && !conversion.has(SATURATE) && bits != 16;
        let compute: Compute = match (source_bits == 64, bits == 64) {
            (false, true) if plain && from == Type::U32 => {
                lanes!(|a: u32| -> u64 { u64::from(a) })
            }
            (false, true) if plain && from == Type::S32 => {
                lanes!(|a: u32| -> u64 { i64::from(a as i32) as u64 })
            }
            (true, false)
                if plain && is_integer_type(to) && is_integer_type(from) && to.bits() == 32 =>
            {
                lanes!(|a: u64| -> u32 { a as u32 })
            }
            (false, false) => lanes!(modifier = m; |a: u32| -> u32 {
                convert_one(u64::from(a), Conversion(m)) as u32
            }),
            (false, true) => lanes!(modifier = m; |a: u32| -> u64 {
                convert_one(u64::from(a), Conversion(m))
            }),
            (true, false) => lanes!(modifier = m; |a: u64| -> u32 {
                convert_one(a, Conversion(m)) as u32
            }),
            (true, true) => lanes!(modifier = m; |a: u64| -> u64 { convert_one(a, Conversion(m)) }),
        };
        Ok(Op::Compute {
            compute,
            operands: Operands {
                destination: slot,
                sources: [source, 0, 0, 0],
                count: 1,
                modifier: conversion.0,
            },
            shadow: Shadow::new(rule, [bits, source_bits]),
            flops: 0,
        })
    }
}

fn single(kind: Type) -> bool {
    !matches!(
        kind,
        Type::F16x2
            | Type::BF16x2
            | Type::E4M3x2
            | Type::E5M2x2
            | Type::TF32
            | Type::B128
            | Type::Predicate
    )
}

fn is_integer_type(kind: Type) -> bool {
    !kind.is_float()
}

#[inline(always)]
fn pair_input(a: u32, conversion: Conversion) -> f32 {
    relu_input(f32::from_bits(a), conversion)
}

#[inline(always)]
fn to_tf32(a: u32, rounding: Tf32Rounding, conversion: Conversion) -> u32 {
    convert::f32_to_tf32(pair_input(a, conversion), rounding).to_bits()
}

/// Converts the low bits of a register.
#[inline(always)]
fn convert_one(a: u64, conversion: Conversion) -> u64 {
    let bits = match conversion.from() {
        code if code < 8 => from_integer(a, integer(code), conversion),
        F64_CODE => from_f64(f64::from_bits(a), conversion),
        F16_CODE => from_f32(F16::widen(a as u16), conversion),
        BF16_CODE => from_f32(Bf16::widen(a as u16), conversion),
        _ => from_f32(f32::from_bits(a as u32), conversion),
    };
    if conversion.has(SHORT) { bits & 0xffff } else { bits }
}

#[inline(always)]
fn from_integer(a: u64, from: Integer, conversion: Conversion) -> u64 {
    match conversion.to() {
        code if code < 8 => {
            convert::integer_to_integer(a, from, integer(code), conversion.has(SATURATE))
        }
        F16_CODE => {
            finish_half::<F16>(convert::integer_to_f16(a, from, conversion.rounding()), conversion)
        }
        BF16_CODE => finish_half::<Bf16>(
            convert::integer_to_bf16(a, from, conversion.rounding()),
            conversion,
        ),
        F64_CODE => finish_f64(convert::integer_to_f64(a, from, conversion.rounding()), conversion),
        _ => finish_f32(convert::integer_to_f32(a, from, conversion.rounding()), conversion),
    }
}

#[inline(always)]
fn from_f32(a: f32, conversion: Conversion) -> u64 {
    let a = if conversion.has(FLUSH) { flush(a) } else { a };
    let a = relu_input(a, conversion);
    let a = match conversion.has(INTEGRAL) && conversion.to() >= 8 {
        true => convert::integral_f32(a, conversion.rounding()),
        false => a,
    };
    match conversion.to() {
        code if code < 8 => convert::f32_to_integer(a, conversion.rounding(), integer(code)),
        F16_CODE => finish_half::<F16>(convert::f32_to_f16(a, conversion.rounding()), conversion),
        BF16_CODE => {
            finish_half::<Bf16>(convert::f32_to_bf16(a, conversion.rounding()), conversion)
        }
        F64_CODE => finish_f64(convert::f32_to_f64(a), conversion),
        _ => finish_f32(a, conversion),
    }
}

#[inline(always)]
fn from_f64(a: f64, conversion: Conversion) -> u64 {
    match conversion.to() {
        code if code < 8 => convert::f64_to_integer(a, conversion.rounding(), integer(code)),
        F16_CODE => finish_half::<F16>(convert::f64_to_f16(a, conversion.rounding()), conversion),
        BF16_CODE => {
            finish_half::<Bf16>(convert::f64_to_bf16(a, conversion.rounding()), conversion)
        }
        F64_CODE if conversion.has(INTEGRAL) => {
            finish_f64(convert::integral_f64(a, conversion.rounding()), conversion)
        }
        F64_CODE => finish_f64(a, conversion),
        _ => finish_f32(narrow(a, conversion.rounding()), conversion),
    }
}

#[inline(always)]
fn relu_input(a: f32, conversion: Conversion) -> f32 {
    if conversion.has(RELU) { relu_f32(a) } else { a }
}

/// Applies `.ftz` and `.sat` to a result; returns the destination's bits.
#[inline(always)]
fn finish_f32(value: f32, conversion: Conversion) -> u64 {
    u64::from(output_f32(value, conversion.0))
}

#[inline(always)]
fn finish_f64(value: f64, conversion: Conversion) -> u64 {
    match conversion.has(SATURATE) {
        true if value > 0.0 => value.min(1.0).to_bits(),
        // Includes NaN.
        true => 0,
        false => value.to_bits(),
    }
}

/// `.ftz` applies to f32 only.
#[inline(always)]
fn finish_half<H: Half>(value: u16, conversion: Conversion) -> u64 {
    u64::from(output_half::<H>(value, conversion.0 & SATURATE))
}
