//! Integer arithmetic (PTX ISA 9.7.1, 9.7.2). Floating-point types are passed on to
//! [`super::float`].

use super::{Decoding, Result, integers};
use crate::machine::lanes::{Compute, lanes};
use crate::numerics::integer;
use crate::program::op::{Carry, CarryOperation, Op};
use crate::program::opcode::Type;

/// The requested part of a product.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Low,
    High,
    Wide,
}

const PARTS: [(&str, Part); 3] = [("lo", Part::Low), ("hi", Part::High), ("wide", Part::Wide)];

/// A function of two integers, defined for each type.
macro_rules! binary_of_type {
    ($kind:expr, $u16:ident $s16:ident $u32:ident $s32:ident $u64:ident $s64:ident) => {
        match $kind {
            Type::U16 => Some(lanes!(|a: u32, b: u32| -> u32 {
                u32::from(integer::$u16(a as u16, b as u16))
            })),
            Type::S16 => Some(lanes!(|a: u32, b: u32| -> u32 {
                u32::from(integer::$s16(a as i16, b as i16) as u16)
            })),
            Type::U32 => Some(lanes!(|a: u32, b: u32| -> u32 { integer::$u32(a, b) })),
            Type::S32 => {
                Some(lanes!(|a: u32, b: u32| -> u32 { integer::$s32(a as i32, b as i32) as u32 }))
            }
            Type::U64 => Some(lanes!(|a: u64, b: u64| -> u64 { integer::$u64(a, b) })),
            Type::S64 => {
                Some(lanes!(|a: u64, b: u64| -> u64 { integer::$s64(a as i64, b as i64) as u64 }))
            }
            _ => None,
        }
    };
}

impl Decoding<'_, '_, '_> {
    pub(super) fn arithmetic(&mut self) -> Result<Op> {
        match self.opcode.name {
            "mul24" | "mad24" => return self.product_of_24_bits(),
            "dp4a" => return self.dot_of_bytes(),
            "dp2a" => return self.dot_of_halves(),
            "addc" | "subc" | "madc" => return self.with_carry(),
            _ => {}
        }
        if self.opcode.has("cc") {
            return self.with_carry();
        }
        let part = self.opcode.take_any(&PARTS);
        let saturate = self.opcode.take("sat");
        let kind = self.opcode.kind()?;
        if kind.is_float() {
            return self.float_arithmetic(kind, saturate);
        }
        match self.opcode.name {
            "mul" | "mad" => self.product(part.unwrap_or(Part::Low), kind, saturate),
            _ if part.is_some() => self.opcode.wrong_type(kind),
            _ if saturate => self.saturating(kind),
            _ => self.plain(kind),
        }
    }

    fn plain(&mut self, kind: Type) -> Result<Op> {
        let compute = match self.opcode.name {
            "add" => integers!(kind, |a, b| a.wrapping_add(b)),
            "sub" => integers!(kind, |a, b| a.wrapping_sub(b)),
            "min" => integers!(kind, |a, b| a.min(b)),
            "max" => integers!(kind, |a, b| a.max(b)),
            "div" => binary_of_type!(kind, div_u16 div_s16 div_u32 div_s32 div_u64 div_s64),
            "rem" => binary_of_type!(kind, rem_u16 rem_s16 rem_u32 rem_s32 rem_u64 rem_s64),
            "neg" => integers!(kind, |a| a.wrapping_neg()),
            "abs" => signed_abs(kind),
            "sad" => sum_of_differences(kind),
            _ => None,
        };
        match compute {
            Some(compute) => self.compute(compute, kind, 0),
            None => self.opcode.wrong_type(kind),
        }
    }

    fn saturating(&mut self, kind: Type) -> Result<Op> {
        let compute = match (self.opcode.name, kind) {
            ("add", Type::S32) => {
                lanes!(|a: u32, b: u32| -> u32 { (a as i32).saturating_add(b as i32) as u32 })
            }
            ("sub", Type::S32) => {
                lanes!(|a: u32, b: u32| -> u32 { (a as i32).saturating_sub(b as i32) as u32 })
            }
            _ => return self.opcode.wrong_type(kind),
        };
        self.compute(compute, kind, 0)
    }

    fn product(&mut self, part: Part, kind: Type, saturate: bool) -> Result<Op> {
        let adds = self.opcode.name == "mad";
        if part == Part::Wide {
            return self.wide_product(kind, adds);
        }
        let compute = match (part, adds) {
            (Part::High, true) if saturate && kind == Type::S32 => {
                Some(lanes!(|a: u32, b: u32, c: u32| -> u32 {
                    integer::mad_hi_sat_s32(a as i32, b as i32, c as i32) as u32
                }))
            }
            _ if saturate => None,
            (Part::Low, false) => integers!(kind, |a, b| a.wrapping_mul(b)),
            (Part::Low, true) => integers!(kind, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
            (_, false) => integers!(kind, |a, b| High::high(a, b)),
            (_, true) => integers!(kind, |a, b, c| High::high(a, b).wrapping_add(c)),
        };
        match compute {
            Some(compute) => self.compute(compute, kind, 0),
            None => self.opcode.wrong_type(kind),
        }
    }

    fn wide_product(&mut self, kind: Type, adds: bool) -> Result<Op> {
        let (compute, wide): (Compute, Type) = match (kind, adds) {
            (Type::U16, false) => {
                let compute = lanes!(|a: u32, b: u32| -> u32 { (a & 0xffff) * (b & 0xffff) });
                (compute, Type::U32)
            }
            (Type::U16, true) => {
                let compute = lanes!(|a: u32, b: u32, c: u32| -> u32 {
                    ((a & 0xffff) * (b & 0xffff)).wrapping_add(c)
                });
                (compute, Type::U32)
            }
            (Type::S16, false) => {
                let compute = lanes!(|a: u32, b: u32| -> u32 {
                    (i32::from(a as i16) * i32::from(b as i16)) as u32
                });
                (compute, Type::S32)
            }
            (Type::S16, true) => {
                let compute = lanes!(|a: u32, b: u32, c: u32| -> u32 {
                    (i32::from(a as i16) * i32::from(b as i16)).wrapping_add(c as i32) as u32
                });
                (compute, Type::S32)
            }
            (Type::U32, false) => {
                let compute = lanes!(|a: u32, b: u32| -> u64 { u64::from(a) * u64::from(b) });
                (compute, Type::U64)
            }
            (Type::U32, true) => {
                let compute = lanes!(|a: u32, b: u32, c: u64| -> u64 {
                    (u64::from(a) * u64::from(b)).wrapping_add(c)
                });
                (compute, Type::U64)
            }
            (Type::S32, false) => {
                let compute = lanes!(|a: u32, b: u32| -> u64 {
                    (i64::from(a as i32) * i64::from(b as i32)) as u64
                });
                (compute, Type::S64)
            }
            (Type::S32, true) => {
                let compute = lanes!(|a: u32, b: u32, c: u64| -> u64 {
                    (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64
                });
                (compute, Type::S64)
            }
            _ => return self.opcode.wrong_type(kind),
        };
        let kinds = [wide, kind, kind, wide];
        self.compute_of(compute, &kinds[..3 + usize::from(adds)], 0, 0)
    }

    fn product_of_24_bits(&mut self) -> Result<Op> {
        let part = self.opcode.choose(&PARTS[..2])?;
        let kind = self.opcode.kind()?;
        let adds = self.opcode.name == "mad24";
        let compute = match (kind, part, adds) {
            (Type::U32, Part::Low, false) => {
                lanes!(|a: u32, b: u32| -> u32 { integer::mul24_lo_u32(a, b) })
            }
            (Type::U32, Part::Low, true) => lanes!(|a: u32, b: u32, c: u32| -> u32 {
                integer::mul24_lo_u32(a, b).wrapping_add(c)
            }),
            (Type::U32, _, false) => {
                lanes!(|a: u32, b: u32| -> u32 { integer::mul24_hi_u32(a, b) })
            }
            (Type::U32, _, true) => lanes!(|a: u32, b: u32, c: u32| -> u32 {
                integer::mul24_hi_u32(a, b).wrapping_add(c)
            }),
            (Type::S32, Part::Low, false) => {
                lanes!(|a: u32, b: u32| -> u32 { integer::mul24_lo_s32(a as i32, b as i32) as u32 })
            }
            (Type::S32, Part::Low, true) => lanes!(|a: u32, b: u32, c: u32| -> u32 {
                (integer::mul24_lo_s32(a as i32, b as i32) as u32).wrapping_add(c)
            }),
            (Type::S32, _, false) => {
                lanes!(|a: u32, b: u32| -> u32 { integer::mul24_hi_s32(a as i32, b as i32) as u32 })
            }
            (Type::S32, _, true) => lanes!(|a: u32, b: u32, c: u32| -> u32 {
                (integer::mul24_hi_s32(a as i32, b as i32) as u32).wrapping_add(c)
            }),
            _ => return self.opcode.wrong_type(kind),
        };
        self.compute(compute, kind, 0)
    }

    fn dot_of_bytes(&mut self) -> Result<Op> {
        let (a, b) = (self.opcode.kind()?, self.opcode.kind()?);
        let modifier = u32::from(a.is_signed()) | u32::from(b.is_signed()) << 1;
        let compute = lanes!(modifier = m; |a: u32, b: u32, c: u32| -> u32 {
            integer::dp4a(a, m & 1 != 0, b, m & 2 != 0, c)
        });
        self.compute_of(compute, &[Type::B32; 4], modifier, 0)
    }

    fn dot_of_halves(&mut self) -> Result<Op> {
        let high = self.opcode.choose(&[("lo", false), ("hi", true)])?;
        let (a, b) = (self.opcode.kind()?, self.opcode.kind()?);
        let modifier =
            u32::from(a.is_signed()) | u32::from(b.is_signed()) << 1 | u32::from(high) << 2;
        let compute = lanes!(modifier = m; |a: u32, b: u32, c: u32| -> u32 {
            integer::dp2a(a, m & 1 != 0, b, m & 2 != 0, m & 4 != 0, c)
        });
        self.compute_of(compute, &[Type::B32; 4], modifier, 0)
    }

    /// Extended-precision arithmetic (PTX ISA 9.7.2): `add.cc`, `subc`, `madc.hi.cc` and so on.
    fn with_carry(&mut self) -> Result<Op> {
        let sets = self.opcode.take("cc");
        let part = self.opcode.take_any(&PARTS[..2]);
        let kind = self.opcode.kind()?;
        let (name, reads) = match self.opcode.name {
            "addc" => ("add", true),
            "subc" => ("sub", true),
            "madc" => ("mad", true),
            name => (name, false),
        };
        let operation = match (name, part) {
            ("add", None) => CarryOperation::Add,
            ("sub", None) => CarryOperation::Subtract,
            ("mad", Some(Part::Low)) => CarryOperation::MultiplyLow,
            ("mad", Some(Part::High)) => CarryOperation::MultiplyHigh,
            _ => return self.opcode.wrong_type(kind),
        };
        if kind.bits() < 32 || kind.is_float() {
            return self.opcode.wrong_type(kind);
        }
        let Some((to, sources)) = self.operands.split_first() else {
            return Err(format!("`{name}` needs operands"));
        };
        let sources = sources
            .iter()
            .map(|operand| self.lowering.source(operand, kind))
            .collect::<Result<Vec<_>>>()?;
        let needed = if part.is_some() { 3 } else { 2 };
        if sources.len() != needed {
            let given = sources.len();
            return Err(format!("`{name}` has {given} sources; expected {needed}"));
        }
        let carry = self.lowering.carry();
        Ok(Op::Carry(Carry {
            operation,
            to: self.lowering.destination(to, kind)?,
            sources,
            wide: kind.bits() == 64,
            signed: kind.is_signed(),
            reads: reads.then_some(carry),
            sets: sets.then_some(carry),
        }))
    }
}

fn signed_abs(kind: Type) -> Option<Compute> {
    match kind {
        Type::S16 => Some(lanes!(|a: u32| -> u32 { u32::from((a as i16).unsigned_abs()) })),
        Type::S32 => Some(lanes!(|a: u32| -> u32 { (a as i32).unsigned_abs() })),
        Type::S64 => Some(lanes!(|a: u64| -> u64 { (a as i64).unsigned_abs() })),
        _ => None,
    }
}

/// `sad`: c + |a - b|.
fn sum_of_differences(kind: Type) -> Option<Compute> {
    Some(match kind {
        Type::U16 => lanes!(|a: u32, b: u32, c: u32| -> u32 {
            integer::sad_u32(a & 0xffff, b & 0xffff, c) & 0xffff
        }),
        Type::S16 => lanes!(|a: u32, b: u32, c: u32| -> u32 {
            let (a, b) = (i32::from(a as i16), i32::from(b as i16));
            integer::sad_s32(a, b, c as i32) as u32 & 0xffff
        }),
        Type::U32 => lanes!(|a: u32, b: u32, c: u32| -> u32 { integer::sad_u32(a, b, c) }),
        Type::S32 => lanes!(|a: u32, b: u32, c: u32| -> u32 {
            integer::sad_s32(a as i32, b as i32, c as i32) as u32
        }),
        Type::U64 => lanes!(|a: u64, b: u64, c: u64| -> u64 { integer::sad_u64(a, b, c) }),
        Type::S64 => lanes!(|a: u64, b: u64, c: u64| -> u64 {
            integer::sad_s64(a as i64, b as i64, c as i64) as u64
        }),
        _ => return None,
    })
}

/// The upper half of a product.
trait High {
    fn high(a: Self, b: Self) -> Self;
}

macro_rules! high {
    ($($T:ty, $function:ident;)+) => {
        $(
            impl High for $T {
                #[inline(always)]
                fn high(a: $T, b: $T) -> $T {
                    integer::$function(a, b)
                }
            }
        )+
    };
}

high! {
    u16, mul_hi_u16; i16, mul_hi_s16; u32, mul_hi_u32; i32, mul_hi_s32; u64, mul_hi_u64;
    i64, mul_hi_s64;
}
