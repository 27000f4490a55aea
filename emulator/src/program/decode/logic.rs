//! Logic, shifts and bit fields (PTX ISA 9.7.1.13 ff., 9.7.8), including predicates.

use super::{Decoding, Result, integers};
use crate::machine::lanes::lanes;
use crate::numerics::bits::{self, FunnelAmount, Permutation};
use crate::numerics::integer;
use crate::program::op::{Op, PredicateSource};
use crate::program::opcode::Type;

/// How shift amounts that are too large are handled.
#[inline(always)]
fn beyond(modifier: u32) -> FunnelAmount {
    match modifier {
        0 => FunnelAmount::Clamp,
        _ => FunnelAmount::Wrap,
    }
}

/// The position of a found bit. If `modifier` is not 0, it is the register's width, and the result
/// is the shift that moves the bit to the highest position.
#[inline(always)]
fn found(position: u32, modifier: u32) -> u32 {
    match modifier {
        0 => position,
        width => bits::as_shift_amount(position, width),
    }
}

impl Decoding<'_, '_, '_> {
    pub(super) fn logic(&mut self) -> Result<Op> {
        match self.opcode.name {
            "and" | "or" | "xor" | "not" => {
                let kind = self.opcode.kind()?;
                match kind {
                    Type::Predicate => self.predicates(),
                    _ => self.bitwise(kind),
                }
            }
            "cnot" => self.bitwise_of_any_type(),
            "shl" | "shr" => self.shift(),
            "shf" => self.funnel_shift(),
            "lop3" => self.lop3(),
            "prmt" => self.permute_bytes(),
            "bfe" | "bfi" => self.field(),
            "popc" | "clz" | "brev" | "bfind" => self.count(),
            "fns" => {
                let kind = self.opcode.kind()?;
                let compute = lanes!(|mask: u32, base: u32, n: u32| -> u32 {
                    bits::fns(mask, base, n as i32)
                });
                self.compute(compute, kind, 0)
            }
            _ => self.low_bits(),
        }
    }

    fn bitwise_of_any_type(&mut self) -> Result<Op> {
        let kind = self.opcode.kind()?;
        match integers!(kind, |a| if a == 0 { 1 } else { 0 }) {
            Some(compute) => self.compute(compute, kind, 0),
            None => self.opcode.wrong_type(kind),
        }
    }

    fn bitwise(&mut self, kind: Type) -> Result<Op> {
        let compute = match self.opcode.name {
            "and" => integers!(kind, |a, b| a & b),
            "or" => integers!(kind, |a, b| a | b),
            "xor" => integers!(kind, |a, b| a ^ b),
            _ => integers!(kind, |a| !a),
        };
        match compute {
            Some(compute) => self.compute(compute, kind, 0),
            None => self.opcode.wrong_type(kind),
        }
    }

    fn predicates(&mut self) -> Result<Op> {
        let always = PredicateSource { index: None, negated: false };
        let (to, sources, table) = match self.opcode.name {
            "not" => {
                let [to, a] = self.exactly()?;
                (to, [self.lowering.predicate_source(a)?, always], 0b0101)
            }
            name => {
                let [to, a, b] = self.exactly()?;
                let a = self.lowering.predicate_source(a)?;
                let b = self.lowering.predicate_source(b)?;
                let table = match name {
                    "and" => 0b1000,
                    "or" => 0b1110,
                    _ => 0b0110,
                };
                (to, [a, b], table)
            }
        };
        Ok(Op::Predicates { to: self.lowering.predicate(to)?, from: sources, table })
    }

    fn shift(&mut self) -> Result<Op> {
        let kind = self.opcode.kind()?;
        let compute = match (self.opcode.name, kind) {
            ("shl", Type::B16) => {
                lanes!(|a: u32, n: u32| -> u32 { u32::from(integer::shl_b16(a as u16, n)) })
            }
            ("shl", Type::B32) => lanes!(|a: u32, n: u32| -> u32 { integer::shl_b32(a, n) }),
            ("shl", Type::B64) => lanes!(|a: u64, n: u32| -> u64 { integer::shl_b64(a, n) }),
            ("shr", Type::B16 | Type::U16) => {
                lanes!(|a: u32, n: u32| -> u32 { u32::from(integer::shr_u16(a as u16, n)) })
            }
            ("shr", Type::S16) => {
                lanes!(|a: u32, n: u32| -> u32 { u32::from(integer::shr_s16(a as i16, n) as u16) })
            }
            ("shr", Type::B32 | Type::U32) => {
                lanes!(|a: u32, n: u32| -> u32 { integer::shr_u32(a, n) })
            }
            ("shr", Type::S32) => {
                lanes!(|a: u32, n: u32| -> u32 { integer::shr_s32(a as i32, n) as u32 })
            }
            ("shr", Type::B64 | Type::U64) => {
                lanes!(|a: u64, n: u32| -> u64 { integer::shr_u64(a, n) })
            }
            ("shr", Type::S64) => {
                lanes!(|a: u64, n: u32| -> u64 { integer::shr_s64(a as i64, n) as u64 })
            }
            _ => return self.opcode.wrong_type(kind),
        };
        self.compute_of(compute, &[kind, kind, Type::U32], 0, 0)
    }

    fn funnel_shift(&mut self) -> Result<Op> {
        let left = self.opcode.choose(&[("l", true), ("r", false)])?;
        let wrap = self.opcode.choose(&[("wrap", true), ("clamp", false)])?;
        let kind = self.opcode.kind()?;
        let modifier = u32::from(wrap);
        let compute = match (left, kind) {
            (true, Type::B32) => lanes!(modifier = m; |low: u32, high: u32, n: u32| -> u32 {
                bits::shf_l(low, high, n, beyond(m))
            }),
            (false, Type::B32) => lanes!(modifier = m; |low: u32, high: u32, n: u32| -> u32 {
                bits::shf_r(low, high, n, beyond(m))
            }),
            _ => return self.opcode.wrong_type(kind),
        };
        self.compute_of(compute, &[kind; 4], modifier, 0)
    }

    fn lop3(&mut self) -> Result<Op> {
        let kind = self.opcode.kind()?;
        let Some((table, operands)) = self.operands.split_last() else {
            return Err("`lop3` needs operands".into());
        };
        let crate::ptx::syntax::Operand::Integer(table) = table else {
            return Err("the table of `lop3` must be a number".into());
        };
        self.operands = operands;
        let compute = lanes!(modifier = m; |a: u32, b: u32, c: u32| -> u32 {
            bits::lop3(a, b, c, m as u8)
        });
        self.compute_of(compute, &[kind; 4], *table as u32, 0)
    }

    fn permute_bytes(&mut self) -> Result<Op> {
        let mode = self.opcode.take_any(&[
            ("f4e", Permutation::Forward4),
            ("b4e", Permutation::Backward4),
            ("rc8", Permutation::Replicate8),
            ("ecl", Permutation::EdgeClampLeft),
            ("ecr", Permutation::EdgeClampRight),
            ("rc16", Permutation::Replicate16),
        ]);
        let kind = self.opcode.kind()?;
        let compute = match mode {
            None => lanes!(|a: u32, b: u32, s: u32| -> u32 {
                bits::prmt(a, b, s, Permutation::Selected)
            }),
            Some(Permutation::Forward4) => lanes!(|a: u32, b: u32, s: u32| -> u32 {
                bits::prmt(a, b, s, Permutation::Forward4)
            }),
            Some(Permutation::Backward4) => lanes!(|a: u32, b: u32, s: u32| -> u32 {
                bits::prmt(a, b, s, Permutation::Backward4)
            }),
            Some(Permutation::Replicate8) => lanes!(|a: u32, b: u32, s: u32| -> u32 {
                bits::prmt(a, b, s, Permutation::Replicate8)
            }),
            Some(Permutation::EdgeClampLeft) => lanes!(|a: u32, b: u32, s: u32| -> u32 {
                bits::prmt(a, b, s, Permutation::EdgeClampLeft)
            }),
            Some(Permutation::EdgeClampRight) => lanes!(|a: u32, b: u32, s: u32| -> u32 {
                bits::prmt(a, b, s, Permutation::EdgeClampRight)
            }),
            Some(_) => lanes!(|a: u32, b: u32, s: u32| -> u32 {
                bits::prmt(a, b, s, Permutation::Replicate16)
            }),
        };
        self.compute(compute, kind, 0)
    }

    fn field(&mut self) -> Result<Op> {
        let kind = self.opcode.kind()?;
        let n = Type::U32;
        match (self.opcode.name, kind) {
            ("bfe", Type::U32) => {
                let compute =
                    lanes!(|a: u32, at: u32, length: u32| -> u32 { bits::bfe_u32(a, at, length) });
                self.compute_of(compute, &[kind, kind, n, n], 0, 0)
            }
            ("bfe", Type::S32) => {
                let compute =
                    lanes!(|a: u32, at: u32, length: u32| -> u32 { bits::bfe_s32(a, at, length) });
                self.compute_of(compute, &[kind, kind, n, n], 0, 0)
            }
            ("bfe", Type::U64) => {
                let compute =
                    lanes!(|a: u64, at: u32, length: u32| -> u64 { bits::bfe_u64(a, at, length) });
                self.compute_of(compute, &[kind, kind, n, n], 0, 0)
            }
            ("bfe", Type::S64) => {
                let compute =
                    lanes!(|a: u64, at: u32, length: u32| -> u64 { bits::bfe_s64(a, at, length) });
                self.compute_of(compute, &[kind, kind, n, n], 0, 0)
            }
            ("bfi", Type::B32) => {
                let compute = lanes!(|a: u32, b: u32, at: u32, length: u32| -> u32 {
                    bits::bfi_b32(a, b, at, length)
                });
                self.compute_of(compute, &[kind, kind, kind, n, n], 0, 0)
            }
            ("bfi", Type::B64) => {
                let compute = lanes!(|a: u64, b: u64, at: u32, length: u32| -> u64 {
                    bits::bfi_b64(a, b, at, length)
                });
                self.compute_of(compute, &[kind, kind, kind, n, n], 0, 0)
            }
            _ => self.opcode.wrong_type(kind),
        }
    }

    /// `bmsk` and `szext`.
    fn low_bits(&mut self) -> Result<Op> {
        let wrap = self.opcode.choose(&[("wrap", true), ("clamp", false)])?;
        let kind = self.opcode.kind()?;
        let compute = match (self.opcode.name, kind) {
            ("bmsk", Type::B32) => lanes!(modifier = m; |a: u32, b: u32| -> u32 {
                bits::bmsk(a, b, beyond(m))
            }),
            ("szext", Type::U32) => lanes!(modifier = m; |a: u32, b: u32| -> u32 {
                bits::szext_u32(a, b, beyond(m))
            }),
            ("szext", Type::S32) => lanes!(modifier = m; |a: u32, b: u32| -> u32 {
                bits::szext_s32(a, b, beyond(m))
            }),
            _ => return self.opcode.wrong_type(kind),
        };
        self.compute_of(compute, &[kind; 3], u32::from(wrap), 0)
    }

    fn count(&mut self) -> Result<Op> {
        let shift_amount = self.opcode.take("shiftamt");
        let kind = self.opcode.kind()?;
        let (compute, result) = match (self.opcode.name, kind) {
            ("popc", Type::B32) => (lanes!(|a: u32| -> u32 { a.count_ones() }), Type::U32),
            ("popc", Type::B64) => (lanes!(|a: u64| -> u32 { a.count_ones() }), Type::U32),
            ("clz", Type::B32) => (lanes!(|a: u32| -> u32 { a.leading_zeros() }), Type::U32),
            ("clz", Type::B64) => (lanes!(|a: u64| -> u32 { a.leading_zeros() }), Type::U32),
            ("brev", Type::B32) => (lanes!(|a: u32| -> u32 { a.reverse_bits() }), kind),
            ("brev", Type::B64) => (lanes!(|a: u64| -> u64 { a.reverse_bits() }), kind),
            ("bfind", Type::U32) => {
                let compute = lanes!(modifier = m; |a: u32| -> u32 {
                    found(bits::bfind_u32(a), m)
                });
                (compute, Type::U32)
            }
            ("bfind", Type::S32) => {
                let compute = lanes!(modifier = m; |a: u32| -> u32 {
                    found(bits::bfind_s32(a as i32), m)
                });
                (compute, Type::U32)
            }
            ("bfind", Type::U64) => {
                let compute = lanes!(modifier = m; |a: u64| -> u32 {
                    found(bits::bfind_u64(a), m)
                });
                (compute, Type::U32)
            }
            ("bfind", Type::S64) => {
                let compute = lanes!(modifier = m; |a: u64| -> u32 {
                    found(bits::bfind_s64(a as i64), m)
                });
                (compute, Type::U32)
            }
            _ => return self.opcode.wrong_type(kind),
        };
        let modifier = if shift_amount { kind.bits() } else { 0 };
        self.compute_of(compute, &[result, kind], modifier, 0)
    }
}
