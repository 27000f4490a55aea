//! Comparison and selection (PTX ISA 9.7.6, 9.7.7).

use super::{Decoding, Result};
use crate::machine::lanes::{Compare, Compute, compare, lanes};
use crate::machine::registers::Slot;
use crate::numerics::compare::{Class, Comparison};
use crate::numerics::half_precision::{self as half, Bf16, F16, Half};
use crate::program::op::{Combine, Op, PredicateSource, Set, SetPredicate};
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

const COMBINES: [(&str, Combine); 3] =
    [("and", Combine::And), ("or", Combine::Or), ("xor", Combine::Xor)];

/// A [`Compare`] for a comparison. `$see` converts the bits of a lane to the compared type. Each
/// relation has its own code, so that its loop over the lanes vectorizes.
macro_rules! by_comparison {
    ($comparison:expr, $L:ty, $see:expr) => {
        by_comparison!(
            @among $comparison, $L, $see,
            Equal NotEqual Less LessOrEqual Greater GreaterOrEqual
            EqualOrUnordered NotEqualOrUnordered LessOrUnordered LessOrEqualOrUnordered
            GreaterOrUnordered GreaterOrEqualOrUnordered Ordered Unordered
        )
    };
    (@among $comparison:expr, $L:ty, $see:expr, $($name:ident)+) => {
        match $comparison {
            $(Comparison::$name => {
                compare!(|a: $L, b: $L| Comparison::$name.holds($see(a), $see(b)))
            })+
        }
    };
}

/// A [`Compare`] that tests whether its first operand is of a class, and ignores the second.
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
fn flushed_f16(a: u32) -> f32 {
    F16::widen(half::flush::<F16>(a as u16))
}

#[inline(always)]
fn bf16(a: u32) -> f32 {
    Bf16::widen(a as u16)
}

/// The combination of a comparison with a predicate.
type Combined = Option<(Combine, PredicateSource)>;

impl<'i> Decoding<'_, '_, 'i> {
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
        let second = self.compare_high(comparison, kind, flush);
        let (to, sources, combine) = self.compared(kind, combine)?;
        let (to, second_to) = match to {
            Operand::Pair(..) if matches!(kind, Type::F16 | Type::BF16) => {
                return Err(format!("{kind} has no second result"));
            }
            Operand::Pair(to, second) => (&**to, Some(&**second)),
            to => (to, None),
        };
        let predicate = |operand: &Operand| match operand {
            Operand::Name(name) if name == "_" => Ok(None),
            other => self.lowering.predicate(other).map(Some),
        };
        let (to, second_to) = (predicate(to)?, second_to.map(predicate).transpose()?.flatten());
        Ok(Op::SetPredicate(SetPredicate { compare, sources, to, second_to, second, combine }))
    }

    /// The destination, the sources, and the combination.
    fn compared(
        &mut self,
        kind: Type,
        combine: Option<Combine>,
    ) -> Result<(&'i Operand, [Slot; 2], Combined)> {
        let ([to, a, b], combine) = match combine {
            None => (self.exactly()?, None),
            Some(combine) => {
                let [to, a, b, with] = self.exactly()?;
                let with = self.lowering.predicate_source(with)?;
                ([to, a, b], Some((combine, with)))
            }
        };
        let sources = [self.lowering.source(a, kind)?, self.lowering.source(b, kind)?];
        Ok((to, sources, combine))
    }

    /// The comparison of two registers, or of their low halves.
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
            Type::F16 | Type::F16x2 if flush => by_comparison!(comparison, u32, flushed_f16),
            Type::F16 | Type::F16x2 => by_comparison!(comparison, u32, f16),
            Type::BF16 | Type::BF16x2 => by_comparison!(comparison, u32, bf16),
            _ => return self.opcode.wrong_type(kind),
        })
    }

    /// The comparison of the high halves of two registers, for packed types.
    fn compare_high(&self, comparison: Comparison, kind: Type, flush: bool) -> Option<Compare> {
        Some(match kind {
            Type::F16x2 if flush => by_comparison!(comparison, u32, |a| flushed_f16(a >> 16)),
            Type::F16x2 => by_comparison!(comparison, u32, |a| f16(a >> 16)),
            Type::BF16x2 => by_comparison!(comparison, u32, |a| bf16(a >> 16)),
            _ => return None,
        })
    }

    /// `set`: writes all ones or 1.0 for true, and 0 for false; per half for packed types.
    fn set(&mut self) -> Result<Op> {
        let comparison = self.opcode.choose(&COMPARISONS)?;
        let combine = self.opcode.take_any(&COMBINES);
        let flush = self.opcode.take("ftz");
        let (result, kind) = (self.opcode.kind()?, self.opcode.kind()?);
        let low = self.compare(comparison, kind, flush)?;
        let high = self.compare_high(comparison, kind, flush);
        let Some(truth) = truth(result, kind) else {
            return self.opcode.wrong_type(result);
        };
        let compares = match high {
            None => vec![(low, truth)],
            Some(high) => vec![(low, truth & 0xffff), (high, truth & 0xffff_0000)],
        };
        let (to, sources, combine) = self.compared(kind, combine)?;
        Ok(Op::Set(Set { compares, sources, to: self.lowering.destination(to, result)?, combine }))
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
            second_to: None,
            second: None,
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
        let (mut a, mut b) = (self.lowering.source(a, kind)?, self.lowering.source(b, kind)?);
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
            (64, Type::F32) => lanes!(modifier = m; |a: u64, b: u64, c: u32| -> u64 {
                if is_positive(c, m) { a } else { b }
            }),
            (_, Type::F32) => lanes!(modifier = m; |a: u32, b: u32, c: u32| -> u32 {
                if is_positive(c, m) { a } else { b }
            }),
            _ => return self.opcode.wrong_type(sign),
        };
        self.compute_of(compute, &[kind, kind, kind, sign], u32::from(flush), 0)
    }
}

/// Whether `slct` selects its first source: `c` is positive or a zero of either sign. With `.ftz`,
/// subnormals count as zeros.
#[inline(always)]
fn is_positive(c: u32, flushes: u32) -> bool {
    match flushes {
        0 => f32::from_bits(c) >= 0.0,
        _ => flushed(c) >= 0.0,
    }
}

/// The bits that `set` writes for true.
fn truth(result: Type, kind: Type) -> Option<u32> {
    let packed = matches!(kind, Type::F16x2 | Type::BF16x2);
    Some(match result {
        Type::U32 | Type::S32 | Type::B32 => u32::MAX,
        Type::F16x2 if kind == Type::F16x2 => 0x3c00_3c00,
        Type::BF16x2 if kind == Type::BF16x2 => 0x3f80_3f80,
        _ if packed => return None,
        Type::F32 => 1f32.to_bits(),
        Type::F16 => 0x3c00,
        Type::BF16 => 0x3f80,
        Type::U16 | Type::S16 => 0xffff,
        _ => return None,
    })
}
