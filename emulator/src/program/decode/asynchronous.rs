//! Asynchronous copies (PTX ISA 9.7.9.25).

use super::{Decoding, Result};
use crate::program::op::{ArriveForCopies, CopyAsync, Op};
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

impl Decoding<'_, '_, '_> {
    pub(super) fn asynchronous(&mut self) -> Result<Op> {
        if !self.opcode.take("async") {
            return Err("`cp` without `.async` is not supported".into());
        }
        self.lowering.copies = true;
        if self.opcode.take("commit_group") {
            let [] = self.exactly()?;
            return Ok(Op::CommitCopies);
        }
        if self.opcode.take("wait_all") {
            let [] = self.exactly()?;
            return Ok(Op::WaitCopies(None));
        }
        if self.opcode.take("wait_group") {
            let [Operand::Integer(groups)] = self.exactly()? else {
                return Err("the operand of `cp.async.wait_group` must be a number".into());
            };
            return Ok(Op::WaitCopies(Some(*groups as u32)));
        }
        if self.opcode.take("mbarrier") {
            return self.arrive_for_copies();
        }
        self.copy()
    }

    fn arrive_for_copies(&mut self) -> Result<Op> {
        self.opcode.choose(&[("arrive", ())])?;
        let increments = !self.opcode.take("noinc");
        let space = self.own_shared_or_generic();
        self.opcode.kind()?;
        let [address] = self.exactly()?;
        let (address, _) = self.lowering.address(address)?;
        Ok(Op::ArriveForCopies(ArriveForCopies { address, space, increments }))
    }

    fn copy(&mut self) -> Result<Op> {
        let whole_lines = self.opcode.choose(&[("ca", false), ("cg", true)])?;
        let shared = [("shared", ()), ("shared::cta", ())];
        self.opcode.choose(&shared)?;
        self.opcode.choose(&[("global", ())])?;
        let operands = self.without_policy()?;
        self.opcode.take_where(|it| it.starts_with("L2::"));
        let [to, from, Operand::Integer(bytes), rest @ ..] = operands else {
            return Err("expected two addresses and a size".into());
        };
        let bytes = *bytes as usize;
        let allowed: &[usize] = if whole_lines { &[16] } else { &[4, 8, 16] };
        if !allowed.contains(&bytes) {
            return Err(format!("the copy has {bytes} bytes; the size must be one of {allowed:?}"));
        }
        let (source_bytes, ignore) = match rest {
            [] => (None, None),
            [only] => match self.lowering.predicate_source(only) {
                Ok(predicate) if predicate.index.is_some() => (None, Some(predicate)),
                _ => (Some(self.lowering.source(only, Type::U32)?), None),
            },
            _ => return Err("too many operands".into()),
        };
        Ok(Op::CopyAsync(CopyAsync {
            to: self.lowering.address(to)?.0,
            from: self.lowering.address(from)?.0,
            bytes,
            source_bytes,
            ignore,
        }))
    }
}
