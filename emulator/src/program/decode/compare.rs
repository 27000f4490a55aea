//! Comparison and selection (PTX ISA 9.7.6, 9.7.7).

use super::{Decoding, Result};
use crate::machine::lanes::{Compare, Compute, compare, lanes};
use crate::numerics::compare::{Class, Comparison};
use crate::numerics::half_precision::{Bf16, F16, Half};
use crate::program::op::{Combine, Op, SetPredicate};
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

const COMPARISONS: [(&str, Comparison); 18] = [
    ("eq", Comparison::Equal),
    ("ne", Comparison::NotEqual),
    ("lt", Comparison::Less),
    ("le", Comparison::LessOrEqual),
    ("gt", Comparison::Greater),
    ("ge", Comparison::GreaterOrEqual),
    ("lo", Comparison::Less),
    ("ls", Comparison::LessOrEqual),
    ("hi", Comparison::Greater),
    ("hs", Comparison::GreaterOrEqual),
    ("equ", Comparison::EqualOrUnordered),
    ("neu", Comparison::NotEqualOrUnordered),
    ("ltu", Comparison::LessOrUnordered),
    ("leu", Comparison::LessOrEqualOrUnordered),
    ("gtu", Comparison::GreaterOrUnordered),
    ("geu", Comparison::GreaterOrEqualOrUnordered),
    ("num", Comparison::Ordered),
    ("nan", Comparison::Unordered),
];

const COMBINES: [(&str, Combine); 3] = [
    ("and", Combine::And),
    ("or", Combine::Or),
    ("xor", Combine::Xor),
];

/// The comparison of two lanes as a type sees them. `$see` turns a lane into that type.
macro_rules! by_comparison {
    ($comparison:expr, $L:ty, $see:expr) => {
        by_comparison!(@one $comparison, $L, $see,
            Equal NotEqual Less LessOrEqual Greater GreaterOrEqual
            EqualOrUnordered NotEqualOrUnordered LessOrUnordered LessOrEqualOrUnordered
            GreaterOrUnordered GreaterOrEqualOrUnordered Ordered Unordered)
    };
    (@one $comparison:expr, $L:ty, $see:expr, $($which:ident)+) => {
        match $comparison {
            $(Comparison::$which => {
                compare!(|a: $L, b: $L| Comparison::$which.holds($see(a), $see(b)))
            })+
        }
    };
}

/// Whether a number is of a class, as a comparison of which the second operand is not looked at.
macro_rules! by_class {
    ($class:expr, $L:ty, $see:expr, $contains:ident) => {
        by_class!(@one $class, $L, $see, $contains,
            Finite Infinite Number NotANumber Normal Subnormal)
    };
    (@one $class:expr, $L:ty, $see:expr, $contains:ident, $($which:ident)+) => {
        match $class {
            $(Class::$which => compare!(|a: $L, _b: $L| Class::$which.$contains($see(a))),)+
        }
    };
}

#[inline(always)]
fn flushed(a: u32) -> f32 {
    let value = f32::from_bits(a);
    if value.is_subnormal() { 0.0 } else { value }
}

#[inline(always)]
fn f16(a: u32) -> f32 {
    F16::widen(a as u16)
}

#[inline(always)]
fn bf16(a: u32) -> f32 {
    Bf16::widen(a as u16)
}

impl Decoding<'_, '_, '_> {
    pub(super) fn comparison(&mut self) -> Result<Op> {
        match self.opcode.name {
            "setp" => self.set_predicate(),
            "set" => self.set(),
            "selp" => self.select(),
            "testp" => self.test_class(),
            _ => self.select_by_sign(),
        }
    }

    fn set_predicate(&mut self) -> Result<Op> {
        let comparison = self.opcode.choose(&COMPARISONS)?;
        let combine = self.opcode.take_any(&COMBINES);
        let flush = self.opcode.take("ftz");
        let kind = self.opcode.kind()?;
        let compare = self.compare(comparison, kind, flush)?;
        let [to, a, b] = match combine {
            Some(_) => {
                let [to, a, b, _] = self.exactly()?;
                [to, a, b]
            }
            None => self.exactly()?,
        };
        let sources = [
            self.lowering.source(a, kind)?,
            self.lowering.source(b, kind)?,
        ];
        let (to, negated_to) = match to {
            Operand::Pair(to, negated) => (&**to, Some(&**negated)),
            to => (to, None),
        };
        let predicate = |operand: &Operand| match operand {
            Operand::Name(name) if name == "_" => Ok(None),
            other => self.lowering.predicate(other).map(Some),
        };
        let (to, negated_to) = (
            predicate(to)?,
            negated_to.map(predicate).transpose()?.flatten(),
        );
        let combine = match combine {
            Some(combine) => {
                let with = self.lowering.predicate_source(&self.operands[3])?;
                Some((combine, with))
            }
            None => None,
        };
        Ok(Op::SetPredicate(SetPredicate {
            compare,
            sources,
            to,
            negated_to,
            combine,
        }))
    }

    fn compare(&self, comparison: Comparison, kind: Type, flush: bool) -> Result<Compare> {
        Ok(match kind {
            Type::U16 | Type::B16 => by_comparison!(comparison, u32, |a| a as u16),
            Type::S16 => by_comparison!(comparison, u32, |a| a as i16),
            Type::U32 | Type::B32 => by_comparison!(comparison, u32, |a: u32| a),
            Type::S32 => by_comparison!(comparison, u32, |a| a as i32),
            Type::U64 | Type::B64 => by_comparison!(comparison, u64, |a: u64| a),
            Type::S64 => by_comparison!(comparison, u64, |a| a as i64),
            Type::F32 if flush => by_comparison!(comparison, u32, flushed),
            Type::F32 => by_comparison!(comparison, u32, f32::from_bits),
            Type::F64 => by_comparison!(comparison, u64, f64::from_bits),
            Type::F16 => by_comparison!(comparison, u32, f16),
            Type::BF16 => by_comparison!(comparison, u32, bf16),
            _ => return self.opcode.wrong_type(kind),
        })
    }

    /// `set`: all ones or zero, or 1.0 or 0.0.
    fn set(&mut self) -> Result<Op> {
        let comparison = self.opcode.choose(&COMPARISONS)?;
        let combine = self.opcode.take_any(&COMBINES);
        let flush = self.opcode.take("ftz");
        let (result, kind) = (self.opcode.kind()?, self.opcode.kind()?);
        if combine.is_some() {
            return self.opcode.wrong_type(kind);
        }
        let compare = self.compare(comparison, kind, flush)?;
        let [to, a, b] = self.exactly()?;
        let truth = match result {
            Type::F32 => 1f32.to_bits(),
            Type::U32 | Type::S32 | Type::B32 => u32::MAX,
            Type::U16 | Type::S16 => 0xffff,
            _ => return self.opcode.wrong_type(result),
        };
        Ok(Op::Set {
            compare,
            to: self.lowering.destination(to, result)?,
            sources: [
                self.lowering.source(a, kind)?,
                self.lowering.source(b, kind)?,
            ],
            truth,
        })
    }

    /// `testp`: the class of a number.
    fn test_class(&mut self) -> Result<Op> {
        let class = self.opcode.choose(&[
            ("finite", Class::Finite),
            ("infinite", Class::Infinite),
            ("number", Class::Number),
            ("notanumber", Class::NotANumber),
            ("normal", Class::Normal),
            ("subnormal", Class::Subnormal),
        ])?;
        let kind = self.opcode.kind()?;
        let compare = match kind {
            Type::F32 => by_class!(class, u32, f32::from_bits, contains_f32),
            Type::F64 => by_class!(class, u64, f64::from_bits, contains_f64),
            _ => return self.opcode.wrong_type(kind),
        };
        let [to, from] = self.exactly()?;
        let from = self.lowering.source(from, kind)?;
        Ok(Op::SetPredicate(SetPredicate {
            compare,
            sources: [from, from],
            to: Some(self.lowering.predicate(to)?),
            negated_to: None,
            combine: None,
        }))
    }

    fn select(&mut self) -> Result<Op> {
        let kind = self.opcode.kind()?;
        let [to, a, b, predicate] = self.exactly()?;
        let source = self.lowering.predicate_source(predicate)?;
        let Some(index) = source.index else {
            return Err("`selp` needs a predicate".into());
        };
        let (mut a, mut b) = (
            self.lowering.source(a, kind)?,
            self.lowering.source(b, kind)?,
        );
        if source.negated {
            (a, b) = (b, a);
        }
        Ok(Op::Select {
            to: self.lowering.destination(to, kind)?,
            sources: [a, b],
            predicate: index,
            wide: kind.bits() == 64,
        })
    }

    fn select_by_sign(&mut self) -> Result<Op> {
        let flush = self.opcode.take("ftz");
        let (kind, sign) = (self.opcode.kind()?, self.opcode.kind()?);
        let compute: Compute = match (kind.bits(), sign) {
            (64, Type::S32) => {
                lanes!(|a: u64, b: u64, c: u32| -> u64 { if (c as i32) >= 0 { a } else { b } })
            }
            (_, Type::S32) => {
                lanes!(|a: u32, b: u32, c: u32| -> u32 { if (c as i32) >= 0 { a } else { b } })
            }
            (32, Type::F32) if !flush => lanes!(|a: u32, b: u32, c: u32| -> u32 {
                if f32::from_bits(c) >= 0.0 { a } else { b }
            }),
            (32, Type::F32) => {
                lanes!(|a: u32, b: u32, c: u32| -> u32 { if flushed(c) >= 0.0 { a } else { b } })
            }
            _ => return self.opcode.wrong_type(sign),
        };
        self.compute_of(compute, &[kind, kind, kind, sign], 0, 0)
    }
}
