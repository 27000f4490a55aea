//! Floating-point arithmetic (PTX ISA 9.7.3). f16 and bf16 are passed on to [`super::half`].

use super::rounding::{
    BY_SIGNS, FLUSH, NAN, ROUNDINGS, SATURATE, flag, input_f32, modifier_of, nan_operand,
    output_f32, rounding_of,
};
use super::{Decoding, Result};
use crate::machine::lanes::{Compute, lanes};
use crate::numerics::compare::{
    copysign_f32, copysign_f64, max_f32, max_f64, min_f32, min_f64, with_product_of_signs,
};
use crate::numerics::double;
use crate::numerics::rounding::{self, Rounding, canonical, flush};
use crate::program::op::Op;
use crate::program::opcode::Type;

/// f32 arithmetic. Without a modifier or with `.ftz` only, `$plain` uses the processor's
/// instruction; `$general` evaluates all other modifiers.
macro_rules! f32_arithmetic {
    ($modifier:expr, |$($a:ident),+| $plain:expr, |$r:ident| $general:expr) => {
        match $modifier {
            0 => lanes!(|$($a: u32),+| -> u32 {
                $(let $a = f32::from_bits($a);)+
                canonical($plain).to_bits()
            }),
            FLUSH => lanes!(|$($a: u32),+| -> u32 {
                $(let $a = flush(f32::from_bits($a));)+
                flush(canonical($plain)).to_bits()
            }),
            _ => lanes!(modifier = m; |$($a: u32),+| -> u32 {
                let $r = rounding_of(m);
                $(let $a = input_f32($a, m);)+
                output_f32($general, m)
            }),
        }
    };
}

macro_rules! f64_arithmetic {
    ($modifier:expr, |$($a:ident),+| $plain:expr, |$r:ident| $general:expr) => {
        match $modifier {
            0 => lanes!(|$($a: u64),+| -> u64 {
                $(let $a = f64::from_bits($a);)+
                ($plain).to_bits()
            }),
            _ => lanes!(modifier = m; |$($a: u64),+| -> u64 {
                let $r = rounding_of(m);
                $(let $a = f64::from_bits($a);)+
                ($general).to_bits()
            }),
        }
    };
}

impl Decoding<'_, '_, '_> {
    pub(super) fn float_arithmetic(&mut self, kind: Type, saturate: bool) -> Result<Op> {
        if kind.bits() == 16 || matches!(kind, Type::F16x2 | Type::BF16x2) {
            return self.half_arithmetic(kind, saturate);
        }
        match self.opcode.name {
            "min" | "max" => return self.extremum(kind),
            "neg" | "abs" => return self.sign(kind),
            "div" if kind == Type::F32 => {
                let approximate = [("approx", false), ("full", true)];
                if let Some(full) = self.opcode.take_any(&approximate) {
                    return self.approximate_division(full);
                }
            }
            _ => {}
        }
        let flush = self.opcode.take("ftz");
        let rounding = self.opcode.take_any(&ROUNDINGS);
        let modifier = modifier_of(rounding.unwrap_or(Rounding::Nearest))
            | flag(flush, FLUSH)
            | flag(saturate, SATURATE);
        let name = match self.opcode.name {
            "mad" => "fma",
            name => name,
        };
        let (compute, flops) = match kind {
            Type::F32 => f32_of(name, modifier),
            Type::F64 if !flush && !saturate => f64_of(name, modifier),
            _ => None,
        }
        .ok_or_else(|| format!("`{name}` is not supported for {kind}"))?;
        self.uniform(compute, kind, modifier, flops)
    }

    fn extremum(&mut self, kind: Type) -> Result<Op> {
        let flushes = self.opcode.take("ftz");
        let nan = self.opcode.take("NaN");
        let by_signs = self.opcode.take("xorsign") && self.opcode.take("abs");
        let modifier = flag(flushes, FLUSH) | flag(nan, NAN) | flag(by_signs, BY_SIGNS);
        let max = self.opcode.name == "max";
        let compute: Compute = match (kind, max) {
            (Type::F32, true) => lanes!(modifier = m; |a: u32, b: u32| -> u32 {
                let (a, b) = (input_f32(a, m), input_f32(b, m));
                if m & BY_SIGNS != 0 {
                    let larger = max_f32(a.abs(), b.abs(), nan_operand(m));
                    output_f32(with_product_of_signs(larger, a, b), m & FLUSH)
                } else {
                    output_f32(max_f32(a, b, nan_operand(m)), m & FLUSH)
                }
            }),
            (Type::F32, false) => lanes!(modifier = m; |a: u32, b: u32| -> u32 {
                let (a, b) = (input_f32(a, m), input_f32(b, m));
                if m & BY_SIGNS != 0 {
                    let smaller = min_f32(a.abs(), b.abs(), nan_operand(m));
                    output_f32(with_product_of_signs(smaller, a, b), m & FLUSH)
                } else {
                    output_f32(min_f32(a, b, nan_operand(m)), m & FLUSH)
                }
            }),
            (Type::F64, true) if modifier == 0 => lanes!(|a: u64, b: u64| -> u64 {
                max_f64(f64::from_bits(a), f64::from_bits(b)).to_bits()
            }),
            (Type::F64, false) if modifier == 0 => lanes!(|a: u64, b: u64| -> u64 {
                min_f64(f64::from_bits(a), f64::from_bits(b)).to_bits()
            }),
            _ => return self.opcode.wrong_type(kind),
        };
        self.compute_of(compute, &[kind; 3], modifier, 1)
    }

    fn sign(&mut self, kind: Type) -> Result<Op> {
        let modifier = flag(self.opcode.take("ftz"), FLUSH);
        let negates = self.opcode.name == "neg";
        let compute: Compute = match (kind, negates) {
            // The PTX ISA leaves the payload of a NaN open; an H100 returns the canonical one.
            (Type::F32, true) => lanes!(modifier = m; |a: u32| -> u32 {
                output_f32(canonical(-input_f32(a, m)), m)
            }),
            (Type::F32, false) => lanes!(modifier = m; |a: u32| -> u32 {
                output_f32(canonical(input_f32(a, m).abs()), m)
            }),
            (Type::F64, true) => lanes!(|a: u64| -> u64 { a ^ 1 << 63 }),
            (Type::F64, false) => lanes!(|a: u64| -> u64 { a & !(1 << 63) }),
            _ => return self.opcode.wrong_type(kind),
        };
        self.compute_of(compute, &[kind; 2], modifier, 0)
    }

    /// `rcp`, `sqrt`, `rsqrt`, the transcendental functions and `copysign`.
    pub(super) fn float_function(&mut self) -> Result<Op> {
        if self.opcode.name == "copysign" {
            return self.copysign();
        }
        if self.opcode.take("approx") || self.opcode.name == "tanh" {
            return self.approximation();
        }
        let flush = self.opcode.take("ftz");
        let rounding = self.opcode.choose(&ROUNDINGS)?;
        let kind = self.opcode.kind()?;
        let modifier = modifier_of(rounding) | flag(flush, FLUSH);
        let compute = match (self.opcode.name, kind) {
            ("rcp", Type::F32) => {
                f32_arithmetic!(modifier, |a| 1.0 / a, |r| rounding::rcp(a, r))
            }
            ("sqrt", Type::F32) => {
                f32_arithmetic!(modifier, |a| a.sqrt(), |r| rounding::sqrt(a, r))
            }
            ("rcp", Type::F64) => {
                f64_arithmetic!(modifier, |a| double::rcp_f64(a, Rounding::Nearest), |r| {
                    double::rcp_f64(a, r)
                })
            }
            ("sqrt", Type::F64) => {
                f64_arithmetic!(modifier, |a| double::sqrt_f64(a, Rounding::Nearest), |r| {
                    double::sqrt_f64(a, r)
                })
            }
            _ => return self.opcode.wrong_type(kind),
        };
        self.compute_of(compute, &[kind; 2], modifier, 1)
    }

    /// The magnitude of the second operand with the sign of the first.
    fn copysign(&mut self) -> Result<Op> {
        let kind = self.opcode.kind()?;
        let compute: Compute = match kind {
            Type::F32 => lanes!(|a: u32, b: u32| -> u32 { copysign_f32(a, b) }),
            Type::F64 => lanes!(|a: u64, b: u64| -> u64 { copysign_f64(a, b) }),
            _ => return self.opcode.wrong_type(kind),
        };
        self.compute(compute, kind, 0)
    }
}

fn f32_of(name: &str, modifier: u32) -> Option<(Compute, u8)> {
    Some(match name {
        "add" => (f32_arithmetic!(modifier, |a, b| a + b, |r| rounding::add(a, b, r)), 1),
        "sub" => (f32_arithmetic!(modifier, |a, b| a - b, |r| rounding::sub(a, b, r)), 1),
        "mul" => (f32_arithmetic!(modifier, |a, b| a * b, |r| rounding::mul(a, b, r)), 1),
        "div" => (f32_arithmetic!(modifier, |a, b| a / b, |r| rounding::div(a, b, r)), 1),
        "fma" => {
            (f32_arithmetic!(modifier, |a, b, c| a.mul_add(b, c), |r| rounding::fma(a, b, c, r)), 2)
        }
        _ => return None,
    })
}

fn f64_of(name: &str, modifier: u32) -> Option<(Compute, u8)> {
    const NEAREST: Rounding = Rounding::Nearest;
    Some(match name {
        "add" => (
            f64_arithmetic!(modifier, |a, b| double::add_f64(a, b, NEAREST), |r| {
                double::add_f64(a, b, r)
            }),
            1,
        ),
        "sub" => (
            f64_arithmetic!(modifier, |a, b| double::sub_f64(a, b, NEAREST), |r| {
                double::sub_f64(a, b, r)
            }),
            1,
        ),
        "mul" => (
            f64_arithmetic!(modifier, |a, b| double::mul_f64(a, b, NEAREST), |r| {
                double::mul_f64(a, b, r)
            }),
            1,
        ),
        "div" => (
            f64_arithmetic!(modifier, |a, b| double::div_f64(a, b, NEAREST), |r| {
                double::div_f64(a, b, r)
            }),
            1,
        ),
        "fma" => (
            f64_arithmetic!(modifier, |a, b, c| double::fma_f64(a, b, c, NEAREST), |r| {
                double::fma_f64(a, b, c, r)
            }),
            2,
        ),
        _ => return None,
    })
}
