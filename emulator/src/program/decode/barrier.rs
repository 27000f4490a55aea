//! Barriers and fences (PTX ISA 9.7.13.1 to 9.7.13.5).

use super::memory::SCOPES;
use super::{Decoding, Result};
use crate::program::op::{Barrier, BarrierAction, Op, Scope, VoteKind};
use crate::program::opcode::Type;
use crate::ptx::syntax::Operand;

impl Decoding<'_, '_, '_> {
    pub(super) fn barrier(&mut self) -> Result<Op> {
        if matches!(self.opcode.name, "membar" | "fence") {
            return self.fence();
        }
        if self.opcode.take("warp") {
            self.opcode.take("sync");
            let [members] = self.exactly()?;
            let members = self.lowering.source(members, Type::U32)?;
            return Ok(Op::WarpBarrier { members });
        }
        self.opcode.take("cta");
        // `bar` is always aligned; `barrier` only with `.aligned`.
        let aligned = self.opcode.take("aligned") || self.opcode.name == "bar";
        if self.opcode.take("red") {
            return self.barrier_with_reduction(aligned);
        }
        let action = self
            .opcode
            .choose(&[("sync", BarrierAction::Sync), ("arrive", BarrierAction::Arrive)])?;
        let (id, threads) = match self.operands {
            [id] => (id, None),
            [id, threads] => (id, Some(threads)),
            _ => return Err("expected a barrier and an optional thread count".into()),
        };
        if threads.is_none() && matches!(action, BarrierAction::Arrive) {
            return Err("`.arrive` needs a thread count".into());
        }
        self.barrier_op(action, id, threads, aligned)
    }

    fn barrier_with_reduction(&mut self, aligned: bool) -> Result<Op> {
        let counts = self.opcode.take("popc");
        let vote = self.opcode.take_any(&[("and", VoteKind::All), ("or", VoteKind::Any)]);
        self.opcode.kind()?;
        let (to, id, threads, from) = match self.operands {
            [to, id, from] => (to, id, None, from),
            [to, id, threads, from] => (to, id, Some(threads), from),
            _ => return Err("expected a result, a barrier and a predicate".into()),
        };
        let from = self.lowering.predicate_source(from)?;
        let action = match (counts, vote) {
            (true, None) => {
                BarrierAction::Count { to: self.lowering.destination(to, Type::U32)?, from }
            }
            (false, Some(kind)) => {
                BarrierAction::Reduce { kind, to: self.lowering.predicate(to)?, from }
            }
            _ => return Err("expected `.popc`, `.and` or `.or`".into()),
        };
        self.barrier_op(action, id, threads, aligned)
    }

    fn barrier_op(
        &mut self,
        action: BarrierAction,
        id: &Operand,
        threads: Option<&Operand>,
        aligned: bool,
    ) -> Result<Op> {
        let id = self.lowering.source(id, Type::U32)?;
        let threads = threads.map(|threads| self.lowering.source(threads, Type::U32));
        Ok(Op::Barrier(Barrier { action, id, threads: threads.transpose()?, aligned }))
    }

    fn fence(&mut self) -> Result<Op> {
        let [] = self.exactly()?;
        if self.opcode.take("proxy") {
            return self.proxy_fence();
        }
        self.opcode.take_any(&[("sc", ()), ("acq_rel", ()), ("acquire", ()), ("release", ())]);
        let scope = self.opcode.choose(&SCOPES)?;
        self.lowering.communicates |= scope == Scope::Gpu;
        Ok(Op::Fence(scope))
    }

    /// The spaces select which accesses are ordered; we order those of shared memory in any case.
    fn proxy_fence(&mut self) -> Result<Op> {
        self.require_sm90("`fence.proxy.async`")?;
        self.opcode.choose(&[("async", ())])?;
        let spaces = [("shared::cta", true), ("global", false)];
        match self.opcode.take_any(&spaces).unwrap_or(true) {
            true => Ok(Op::ProxyFence),
            false => Ok(Op::Nothing),
        }
    }
}
