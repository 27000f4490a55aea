//! Arithmetic on f16 and bf16, single and in pairs (PTX ISA 9.7.4).

use super::rounding::{
    BY_SIGNS, FLUSH, NAN, RELU, SATURATE, flag, input_half, nan_operand, output_half,
};
use super::{Decoding, Result};
use crate::machine::lanes::{Compute, lanes};
use crate::numerics::compare::NanOperand;
use crate::numerics::half_precision::{self as half, Bf16, F16, Half};
use crate::program::op::Op;
use crate::program::opcode::Type;

/// The same arithmetic for f16, bf16 and pairs of them. In the body, `H` is the format.
macro_rules! halves {
    ($kind:expr, |$a:ident| $body:expr) => {
        halves!(@all $kind, both, |$a| $body)
    };
    ($kind:expr, |$a:ident, $b:ident| $body:expr) => {
        halves!(@all $kind, both2, |$a, $b| $body)
    };
    ($kind:expr, |$a:ident, $b:ident, $c:ident| $body:expr) => {
        halves!(@all $kind, both3, |$a, $b, $c| $body)
    };
    (@all $kind:expr, $both:ident, |$($a:ident),+| $body:expr) => {
        match $kind {
            Type::F16 => Some(halves!(@one F16, |$($a),+| $body)),
            Type::BF16 => Some(halves!(@one Bf16, |$($a),+| $body)),
            Type::F16x2 => Some(halves!(@two F16, $both, |$($a),+| $body)),
            Type::BF16x2 => Some(halves!(@two Bf16, $both, |$($a),+| $body)),
            _ => None,
        }
    };
    (@one $H:ty, |$($a:ident),+| $body:expr) => {
        lanes!(modifier = m; |$($a: u32),+| -> u32 {
            type H = $H;
            $(let $a = input_half::<H>($a as u16, m);)+
            let of = Modified(m);
            u32::from(output_half::<H>(of.apply::<H>($body), m))
        })
    };
    (@two $H:ty, $both:ident, |$($a:ident),+| $body:expr) => {
        lanes!(modifier = m; |$($a: u32),+| -> u32 {
            type H = $H;
            half::$both($($a),+, |$($a),+| {
                $(let $a = input_half::<H>($a, m);)+
                let of = Modified(m);
                output_half::<H>(of.apply::<H>($body), m)
            })
        })
    };
}

/// The instruction's modifier, for bodies that use it.
#[derive(Clone, Copy)]
struct Modified(u32);

impl Modified {
    #[inline(always)]
    fn apply<H: Half>(self, body: impl FnOnce(Modified) -> u16) -> u16 {
        body(self)
    }

    fn nan(self) -> NanOperand {
        nan_operand(self.0)
    }
}

impl Decoding<'_, '_, '_> {
    pub(super) fn half_arithmetic(&mut self, kind: Type, saturate: bool) -> Result<Op> {
        // The only rounding mode.
        self.opcode.take("rn");
        let modifier = flag(self.opcode.take("ftz"), FLUSH)
            | flag(saturate || self.opcode.take("sat"), SATURATE)
            | flag(self.opcode.take("relu"), RELU)
            | flag(self.opcode.take("NaN"), NAN)
            | flag(self.opcode.take("xorsign") && self.opcode.take("abs"), BY_SIGNS);
        let Some((compute, flops)) = half_of(self.opcode.name, kind) else {
            return self.opcode.wrong_type(kind);
        };
        self.uniform(compute, kind, modifier, flops)
    }
}

fn half_of(name: &str, kind: Type) -> Option<(Compute, u8)> {
    let compute = match name {
        "add" => halves!(kind, |a, b| |_| half::add::<H>(a, b)),
        "sub" => halves!(kind, |a, b| |_| half::sub::<H>(a, b)),
        "mul" => halves!(kind, |a, b| |_| half::mul::<H>(a, b)),
        "fma" => halves!(kind, |a, b, c| |_| half::fma::<H>(a, b, c)),
        "neg" => halves!(kind, |a| |_| half::neg(a)),
        "abs" => halves!(kind, |a| |_| half::abs(a)),
        "min" => halves!(kind, |a, b| |of: Modified| extremum::<H>(a, b, of, half::min::<H>)),
        "max" => halves!(kind, |a, b| |of: Modified| extremum::<H>(a, b, of, half::max::<H>)),
        _ => None,
    }?;
    let pairs = 1 + u8::from(kind.bits() == 32);
    let flops = match name {
        "fma" => 2,
        "neg" | "abs" => 0,
        _ => 1,
    };
    Some((compute, flops * pairs))
}

#[inline(always)]
fn extremum<H: Half>(
    a: u16,
    b: u16,
    of: Modified,
    choose: impl Fn(u16, u16, NanOperand) -> u16,
) -> u16 {
    match of.0 & BY_SIGNS {
        0 => choose(a, b, of.nan()),
        _ => half::xorsign::<H>(choose(half::abs(a), half::abs(b), of.nan()), a, b),
    }
}
