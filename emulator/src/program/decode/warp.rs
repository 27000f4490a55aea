//! Data exchange between the lanes of a warp (PTX ISA 9.7.9.6, 9.7.13.8 ff.).

use super::{Decoding, Result};
use crate::program::op::{Op, Shuffle, ShuffleMode, Vote, VoteKind};
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

const VOTES: [(&str, VoteKind); 4] = [
    ("all", VoteKind::All),
    ("any", VoteKind::Any),
    ("uni", VoteKind::Uniform),
    ("ballot", VoteKind::Ballot),
];

impl Decoding<'_, '_, '_> {
    pub(super) fn warp(&mut self) -> Result<Op> {
        if self.opcode.name == "activemask" {
            let kind = self.opcode.kind()?;
            if kind != Type::B32 {
                return self.opcode.wrong_type(kind);
            }
            let [to] = self.exactly()?;
            return Ok(Op::ActiveMask(self.lowering.destination(to, kind)?));
        }
        if !self.opcode.take("sync") {
            let name = self.opcode.name;
            return Err(format!("`{name}` without `.sync` is not supported since sm_70"));
        }
        match self.opcode.name {
            "shfl" => self.shuffle(),
            "vote" => self.vote(),
            "match" => self.match_values(),
            _ => self.reduce(),
        }
    }

    fn shuffle(&mut self) -> Result<Op> {
        let mode = self.opcode.choose(&[
            ("up", ShuffleMode::Up),
            ("down", ShuffleMode::Down),
            ("bfly", ShuffleMode::Butterfly),
            ("idx", ShuffleMode::Index),
        ])?;
        let kind = self.opcode.kind()?;
        if kind.bits() != 32 {
            return self.opcode.wrong_type(kind);
        }
        let [to, from, lane, clamp, members] = self.exactly()?;
        let (to, valid) = match to {
            Operand::Pair(to, valid) => (&**to, Some(self.lowering.predicate(valid)?)),
            to => (to, None),
        };
        Ok(Op::Shuffle(Shuffle {
            mode,
            to: self.lowering.destination(to, kind)?,
            valid,
            from: self.lowering.source(from, kind)?,
            lane: self.lowering.source(lane, Type::U32)?,
            clamp: self.lowering.source(clamp, Type::U32)?,
            members: self.lowering.source(members, Type::U32)?,
        }))
    }

    fn vote(&mut self) -> Result<Op> {
        let kind = self.opcode.choose(&VOTES)?;
        self.opcode.kind()?;
        let [to, from, members] = self.exactly()?;
        let to = match kind {
            VoteKind::Ballot => self.lowering.destination(to, Type::B32)?,
            _ => self.lowering.predicate(to)?,
        };
        Ok(Op::Vote(Vote {
            kind,
            to,
            from: self.lowering.predicate_source(from)?,
            members: self.lowering.source(members, Type::U32)?,
        }))
    }

    fn match_values(&mut self) -> Result<Op> {
        let all = self.opcode.choose(&[("all", true), ("any", false)])?;
        let kind = self.opcode.kind()?;
        let [to, from, members] = self.exactly()?;
        let (to, predicate) = match to {
            Operand::Pair(..) if !all => return Err("`match.any` has no predicate".into()),
            Operand::Pair(to, predicate) => (&**to, Some(self.lowering.predicate(predicate)?)),
            to => (to, None),
        };
        Ok(Op::Match {
            to: self.lowering.destination(to, Type::B32)?,
            all: all.then_some(predicate),
            from: self.lowering.source(from, kind)?,
            wide: kind.bits() == 64,
            members: self.lowering.source(members, Type::U32)?,
        })
    }

    fn reduce(&mut self) -> Result<Op> {
        let what = self.opcode.choose(&[
            ("add", 0),
            ("min", 1),
            ("max", 2),
            ("and", 3),
            ("or", 4),
            ("xor", 5),
        ])?;
        let kind = self.opcode.kind()?;
        let combine: fn(u32, u32) -> u32 = match (what, kind) {
            (0, Type::U32 | Type::S32) => |a, b| a.wrapping_add(b),
            (1, Type::U32) => |a, b| a.min(b),
            (1, Type::S32) => |a, b| (a as i32).min(b as i32) as u32,
            (2, Type::U32) => |a, b| a.max(b),
            (2, Type::S32) => |a, b| (a as i32).max(b as i32) as u32,
            (3, Type::B32) => |a, b| a & b,
            (4, Type::B32) => |a, b| a | b,
            (5, Type::B32) => |a, b| a ^ b,
            _ => return self.opcode.wrong_type(kind),
        };
        let [to, from, members] = self.exactly()?;
        Ok(Op::Reduce {
            to: self.lowering.destination(to, kind)?,
            from: self.lowering.source(from, kind)?,
            members: self.lowering.source(members, Type::U32)?,
            combine,
        })
    }
}
