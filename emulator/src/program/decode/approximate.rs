//! Functions whose results PTX specifies only within an error bound (PTX ISA 9.7.3, `.approx`).

use super::{Decoding, Result};
use crate::machine::lanes::{Compute, lanes};
use crate::numerics::Approximation;
use crate::numerics::approximate as functions;
use crate::numerics::half_precision::{self as half, Bf16, F16};
use crate::numerics::rounding::flush;
use crate::program::op::Op;
use crate::program::opcode::Type;

/// The lowest bit of the modifier: `.ftz`. The other bits are the perturbation seed, zero for none.
const FLUSH: u32 = 1;

#[inline(always)]
fn approximation(modifier: u32) -> Approximation {
    match modifier >> 1 {
        0 => Approximation::Rounded,
        seed => Approximation::Perturbed { seed: u64::from(seed) },
    }
}

/// A function of f32, with and without `.ftz`.
macro_rules! function {
    (|$a:ident, $how:ident| $value:expr) => {
        lanes!(modifier = m; |a: u32| -> u32 {
            let $how = approximation(m);
            let $a = f32::from_bits(a);
            let $a = if m & FLUSH != 0 { flush($a) } else { $a };
            let value = $value;
            let value = if m & FLUSH != 0 { flush(value) } else { value };
            value.to_bits()
        })
    };
}

/// A function of two f32, with and without `.ftz`.
macro_rules! function2 {
    ($function:path) => {
        lanes!(modifier = m; |a: u32, b: u32| -> u32 {
            let (a, b) = (f32::from_bits(a), f32::from_bits(b));
            let flushed = |x: f32| if m & FLUSH != 0 { flush(x) } else { x };
            flushed($function(flushed(a), flushed(b), approximation(m))).to_bits()
        })
    };
}

impl Decoding<'_, '_, '_> {
    /// `div.approx` and `div.full`. The caller has already taken the modifier.
    pub(super) fn approximate_division(&mut self, full: bool) -> Result<Op> {
        let modifier = self.approximation_modifier();
        let compute: Compute = match full {
            true => function2!(functions::div_full),
            false => function2!(functions::div_approx),
        };
        self.compute_of(compute, &[Type::F32; 3], modifier, 1)
    }

    /// Functions of one operand. The caller has already taken `.approx`.
    pub(super) fn approximation(&mut self) -> Result<Op> {
        let modifier = self.approximation_modifier();
        let kind = self.opcode.kind()?;
        let compute: Compute = match (self.opcode.name, kind) {
            ("ex2", Type::F32) => function!(|a, how| functions::ex2(a, how)),
            ("lg2", Type::F32) => function!(|a, how| functions::lg2(a, how)),
            ("rcp", Type::F32) => function!(|a, how| functions::rcp(a, how)),
            ("sqrt", Type::F32) => function!(|a, how| functions::sqrt(a, how)),
            ("rsqrt", Type::F32) => function!(|a, how| functions::rsqrt(a, how)),
            ("sin", Type::F32) => function!(|a, how| functions::sin(a, how)),
            ("cos", Type::F32) => function!(|a, how| functions::cos(a, how)),
            ("tanh", Type::F32) => function!(|a, how| functions::tanh(a, how)),
            ("rcp", Type::F64) => {
                lanes!(|a: u64| -> u64 { functions::coarse_rcp_f64(f64::from_bits(a)).to_bits() })
            }
            ("rsqrt", Type::F64) if modifier & FLUSH != 0 => {
                lanes!(|a: u64| -> u64 { functions::coarse_rsqrt_f64(f64::from_bits(a)).to_bits() })
            }
            ("rsqrt", Type::F64) => {
                lanes!(|a: u64| -> u64 { functions::rsqrt_f64(f64::from_bits(a)).to_bits() })
            }
            (name, _) => match half_function(name, kind) {
                Some(compute) => compute,
                None => return self.opcode.wrong_type(kind),
            },
        };
        self.compute_of(compute, &[kind; 2], modifier, 1)
    }

    fn approximation_modifier(&mut self) -> u32 {
        let seed = self.lowering.perturbation();
        u32::from(self.opcode.take("ftz")) | seed << 1
    }
}

/// `ex2` and `tanh` of f16 and bf16.
fn half_function(name: &str, kind: Type) -> Option<Compute> {
    Some(match (name, kind) {
        ("ex2", Type::F16) => lanes!(modifier = m; |a: u32| -> u32 {
            u32::from(functions::ex2_half::<F16>(a as u16, approximation(m)))
        }),
        ("ex2", Type::BF16) => lanes!(modifier = m; |a: u32| -> u32 {
            u32::from(functions::ex2_half::<Bf16>(a as u16, approximation(m)))
        }),
        ("ex2", Type::F16x2) => lanes!(modifier = m; |a: u32| -> u32 {
            half::both(a, |x| functions::ex2_half::<F16>(x, approximation(m)))
        }),
        ("ex2", Type::BF16x2) => lanes!(modifier = m; |a: u32| -> u32 {
            half::both(a, |x| functions::ex2_half::<Bf16>(x, approximation(m)))
        }),
        ("tanh", Type::F16) => lanes!(modifier = m; |a: u32| -> u32 {
            u32::from(functions::tanh_half::<F16>(a as u16, approximation(m)))
        }),
        ("tanh", Type::BF16) => lanes!(modifier = m; |a: u32| -> u32 {
            u32::from(functions::tanh_half::<Bf16>(a as u16, approximation(m)))
        }),
        ("tanh", Type::F16x2) => lanes!(modifier = m; |a: u32| -> u32 {
            half::both(a, |x| functions::tanh_half::<F16>(x, approximation(m)))
        }),
        ("tanh", Type::BF16x2) => lanes!(modifier = m; |a: u32| -> u32 {
            half::both(a, |x| functions::tanh_half::<Bf16>(x, approximation(m)))
        }),
        _ => return None,
    })
}
