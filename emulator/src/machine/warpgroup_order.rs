//! The four warps of a warpgroup must start the same products in the same order.

use super::cta::Cta;
use super::fault::Fault;
use super::products::{Shared, WARPS, Warpgroup};
use super::warp::Warp;
use crate::report::FindingKind;

impl Cta<'_> {
    /// Checks that a new product of a warp is that of the other warps.
    pub(super) fn agree_on_product(&mut self, warp: &Warp, new: Shared) -> Result<(), Box<Fault>> {
        let (group, member) = (warp.index / WARPS, warp.index % WARPS);
        if self.warpgroups.len() <= group {
            self.warpgroups.resize(group + 1, Warpgroup::default());
        }
        let state = &mut self.warpgroups[group];
        let number = state.started[member];
        if let Some(gone) = (0..WARPS).find(|it| state.exited[*it] && state.started[*it] <= number)
        {
            let gone = group * WARPS + gone;
            let message = format!(
                "all four warps of a warpgroup must execute `wgmma.mma_async`, but warp {gone} has \
                 exited"
            );
            return Err(divergent(message));
        }
        let at = (number - state.common) as usize;
        match state.log.get(at).copied() {
            None => state.log.push_back(new),
            Some(first) if first == new => {}
            Some(first) => return Err(divergent(self.disagreement(warp, first, new))),
        }
        self.warpgroups[group].advance(member);
        Ok(())
    }

    fn disagreement(&self, warp: &Warp, first: Shared, new: Shared) -> String {
        let code = &self.grid.kernel.code;
        if first.pc != new.pc {
            let line = code[first.pc as usize].line;
            return format!(
                "all four warps of a warpgroup must execute the same `wgmma.mma_async`, but \
                 another warp than warp {} executes the one at ptx line {line}",
                warp.index
            );
        }
        let [(a, b), (other_a, other_b)] =
            [new, first].map(|it| (it.descriptors[0], it.descriptors[1]));
        format!(
            "the descriptors and the predicate of `wgmma.mma_async` must be the same in all four \
             warps: warp {} has A {a:#018x}, B {b:#018x}, {}, and another warp of its warpgroup \
             A {other_a:#018x}, B {other_b:#018x}, {}",
            warp.index, new.accumulates, first.accumulates
        )
    }

    /// Checks, when a warp has exited, that it has started the products of the other warps.
    pub(super) fn end_products(&mut self, warp: &Warp) -> Result<(), Box<Fault>> {
        let (group, member) = (warp.index / WARPS, warp.index % WARPS);
        if self.warpgroups.len() <= group {
            self.warpgroups.resize(group + 1, Warpgroup::default());
        }
        let state = &mut self.warpgroups[group];
        state.exited[member] = true;
        let at = (state.started[member] - state.common) as usize;
        let Some(missing) = state.log.get(at) else {
            return Ok(());
        };
        let line = self.grid.kernel.code[missing.pc as usize].line;
        Err(divergent(format!(
            "the warp exits without the `wgmma.mma_async` at ptx line {line}, which another warp \
             of its warpgroup has executed; all four warps must execute it"
        )))
    }
}

fn divergent(message: String) -> Box<Fault> {
    Fault::of_all(FindingKind::DivergentInstruction, message)
}
