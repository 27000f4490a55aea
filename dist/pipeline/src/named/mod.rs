//! The schedules of the literature, as pure functions from a rank and a shape to its list.

mod breadth_first;
mod counted;
mod dual_pipe_v;
mod one_f_one_b;
mod zbv;

use std::str::FromStr;

use meshgrad_error::{Error, Result, bail, error};

use crate::{Action, Named, Placement, Schedule, Shape};

impl Named {
    /// The schedule for a shape.
    ///
    /// # Errors
    /// When the schedule does not support the shape.
    pub fn schedule(self, shape: Shape) -> Result<Schedule> {
        self.check_stages(shape)?;
        self.check_microbatches(shape)?;
        let lists = (0..shape.ranks()).map(|rank| self.actions(rank, shape));
        Schedule::new(self.placement(shape), shape.microbatches(), lists.collect())
    }

    /// The placement that the schedule needs.
    fn placement(self, shape: Shape) -> Placement {
        match self {
            Named::Zbv | Named::DualPipeV => Placement::v(shape),
            _ => Placement::looped(shape),
        }
    }

    fn actions(self, rank: usize, shape: Shape) -> Vec<Action> {
        match self {
            Named::Gpipe => breadth_first::gpipe(rank, shape),
            Named::LoopedBfs => breadth_first::looped_bfs(rank, shape),
            Named::Inference => breadth_first::inference(rank, shape),
            Named::OneFOneB => one_f_one_b::one_f_one_b(rank, shape),
            Named::Interleaved => one_f_one_b::interleaved(rank, shape),
            Named::Zb1p | Named::InterleavedZb => one_f_one_b::zero_bubble(rank, shape),
            Named::Zbv => zbv::zbv(rank, shape),
            Named::DualPipeV => dual_pipe_v::dual_pipe_v(rank, shape),
        }
    }

    fn check_stages(self, shape: Shape) -> Result<()> {
        let (ranks, stages) = (shape.ranks(), shape.stages());
        let (is_supported, permitted) = match self {
            Named::Gpipe | Named::OneFOneB | Named::Zb1p => (stages == ranks, "one stage per rank"),
            Named::Zbv | Named::DualPipeV => (stages == 2 * ranks, "two stages per rank"),
            _ => (stages.is_multiple_of(ranks), "the same number of stages on every rank"),
        };
        if is_supported {
            return Ok(());
        }
        let remedy = match self {
            Named::Gpipe => format!("{ranks} stages or {}", Named::LoopedBfs),
            Named::OneFOneB => format!("{ranks} stages or {}", Named::Interleaved),
            Named::Zb1p => format!("{ranks} stages or {}", Named::InterleavedZb),
            Named::Zbv | Named::DualPipeV => format!("{} stages", 2 * ranks),
            _ => {
                let below = stages - stages % ranks;
                format!("{below} or {} stages", below + ranks)
            }
        };
        bail!(
            Invalid,
            "{self} needs {permitted}, but got {stages} stages on {ranks} ranks; use {remedy}"
        )
    }

    fn check_microbatches(self, shape: Shape) -> Result<()> {
        let (ranks, microbatches) = (shape.ranks(), shape.microbatches());
        let supports = |count: usize| match self {
            Named::Interleaved | Named::InterleavedZb if shape.stages() > ranks => {
                one_f_one_b::is_whole_rounds(count, ranks)
            }
            Named::DualPipeV => count >= 2 * ranks,
            _ => true,
        };
        if supports(microbatches) {
            return Ok(());
        }
        let rule = match self {
            Named::DualPipeV => "it needs two per rank or more",
            _ => "the number of rounds, microbatches / ranks rounded down, must divide it",
        };
        let above = (microbatches + 1..).find(|&it| supports(it)).unwrap_or(usize::MAX);
        let nearest = match (1..microbatches).rev().find(|&it| supports(it)) {
            Some(below) => format!("{below} or {above}"),
            None => above.to_string(),
        };
        bail!(
            Invalid,
            "{self} cannot run {microbatches} microbatches on {ranks} ranks: {rule}; use {nearest}"
        )
    }
}

impl FromStr for Named {
    type Err = Error;

    fn from_str(name: &str) -> Result<Named> {
        let named = Named::ALL.into_iter().find(|it| it.name() == name);
        named.ok_or_else(|| {
            let names = Named::ALL.map(Named::name).join(", ");
            error!(Invalid, "unknown schedule `{name}` (schedules: {names}, auto)")
        })
    }
}
