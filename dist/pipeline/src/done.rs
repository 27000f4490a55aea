//! The rules that hold within one rank: each computation once, on its rank, after what it needs.

use meshgrad_error::{Error, Result, ensure, error};

use crate::{Action, Compute, Message, MessageKind, Op, Placement, Shape};

/// The computations that ran so far.
pub(crate) struct Done<'a> {
    placement: &'a Placement,
    microbatches: usize,
    flags: Vec<bool>,
}

impl<'a> Done<'a> {
    /// Checks the shape of the lists.
    pub(crate) fn new(
        placement: &'a Placement,
        microbatches: usize,
        lists: &[Vec<Action>],
    ) -> Result<Done<'a>> {
        let (ranks, lists) = (placement.ranks(), lists.len());
        let shape = Shape::new(ranks, placement.stages(), microbatches)?;
        ensure!(
            lists == ranks,
            Invalid,
            "{lists} lists of actions for {ranks} ranks: give each rank one"
        );
        let pairs = shape.stages() * shape.microbatches();
        Ok(Done { placement, microbatches, flags: vec![false; Op::ALL.len() * pairs] })
    }

    fn index(&self, compute: Compute) -> usize {
        let pair = compute.stage * self.microbatches + compute.microbatch;
        pair * Op::ALL.len() + compute.op as usize
    }

    pub(crate) fn contains(&self, compute: Compute) -> bool {
        self.flags[self.index(compute)]
    }

    /// All computations that ran.
    pub(crate) fn all(&self) -> impl Iterator<Item = Compute> {
        let ran = self.flags.iter().enumerate().filter(|(_, ran)| **ran);
        ran.map(|(index, _)| {
            let (pair, op) = (index / Op::ALL.len(), index % Op::ALL.len());
            let (stage, microbatch) = (pair / self.microbatches, pair % self.microbatches);
            Compute::new(Op::ALL[op], stage, microbatch)
        })
    }

    /// Checks that a stage and a microbatch exist and that the stage is on this rank.
    pub(crate) fn check_place(
        &self,
        rank: usize,
        action: Action,
        stage: usize,
        microbatch: usize,
    ) -> Result<()> {
        if stage >= self.placement.stages() || microbatch >= self.microbatches {
            return Err(self.out_of_range(rank, action));
        }
        let owner = self.placement.rank_of(stage);
        ensure!(owner == rank, Invalid, "rank {rank}: {action} belongs to rank {owner}");
        Ok(())
    }

    pub(crate) fn out_of_range(&self, rank: usize, action: Action) -> Error {
        error!(
            Invalid,
            "rank {rank}: {action} is out of range (stages: 0 to {}, microbatches: 0 to {})",
            self.placement.stages() - 1,
            self.microbatches - 1
        )
    }

    /// Records the computations of an action. Both of a pair start at the same time, so neither can
    /// need the other.
    pub(crate) fn compute(&mut self, rank: usize, action: Action) -> Result<()> {
        if let Action::Overlapped(forward, backward) = action {
            let is_pair = forward.op == Op::Forward
                && matches!(backward.op, Op::Backward | Op::BackwardInput);
            ensure!(
                is_pair,
                Invalid,
                "rank {rank}: {action} cannot overlap: a pair is a forward pass, then a backward \
                 pass (B or I)"
            );
        }
        for compute in action.computes() {
            self.check_place(rank, action, compute.stage, compute.microbatch)?;
            self.check_once(rank, action, compute)?;
            self.check_order(rank, action, compute)?;
            self.check_local_input(rank, action, compute)?;
        }
        for compute in action.computes() {
            let index = self.index(compute);
            self.flags[index] = true;
        }
        Ok(())
    }

    /// Checks that the work was not done before. A backward pass is whole (B) or split (I, W).
    fn check_once(&self, rank: usize, action: Action, compute: Compute) -> Result<()> {
        let same_work: &[Op] = match compute.op {
            Op::Forward => &[Op::Forward],
            Op::Backward => &[Op::Backward, Op::BackwardInput, Op::BackwardWeight],
            Op::BackwardInput => &[Op::BackwardInput, Op::Backward],
            Op::BackwardWeight => &[Op::BackwardWeight, Op::Backward],
        };
        let other = |op: &Op| Compute { op: *op, ..compute };
        match same_work.iter().map(other).find(|it| self.contains(*it)) {
            None => Ok(()),
            Some(earlier) => Err(repeated(rank, action, earlier.into())),
        }
    }

    fn check_order(&self, rank: usize, action: Action, compute: Compute) -> Result<()> {
        let op = match compute.op {
            Op::Forward => return Ok(()),
            Op::Backward | Op::BackwardInput => Op::Forward,
            Op::BackwardWeight => Op::BackwardInput,
        };
        let needs = Compute { op, ..compute };
        self.check_done(rank, action, &[needs])
    }

    /// Checks that the message that a computation needs was computed on the same rank, if the stage
    /// that computes it is there.
    fn check_local_input(&self, rank: usize, action: Action, compute: Compute) -> Result<()> {
        match compute.input(self.placement.stages()) {
            Some(input) if self.placement.rank_of(input.from()) == rank => {
                self.check_produced(rank, action, input)
            }
            _ => Ok(()),
        }
    }

    /// Checks that a message was computed.
    pub(crate) fn check_produced(
        &self,
        rank: usize,
        action: Action,
        message: Message,
    ) -> Result<()> {
        let by = |op| Compute::new(op, message.from(), message.microbatch);
        match message.kind {
            MessageKind::Activation => self.check_done(rank, action, &[by(Op::Forward)]),
            MessageKind::Gradient => {
                self.check_done(rank, action, &[by(Op::Backward), by(Op::BackwardInput)])
            }
        }
    }

    /// Checks that one of these computations ran.
    pub(crate) fn check_done(&self, rank: usize, action: Action, any_of: &[Compute]) -> Result<()> {
        match any_of.iter().any(|&it| self.contains(it)) {
            true => Ok(()),
            false => Err(early(rank, action, any_of[0].into())),
        }
    }

    /// Checks that every stage ran every microbatch. A schedule without any backward pass is one for
    /// inference.
    pub(crate) fn check_complete(&self) -> Result<()> {
        let is_training = self.flags.chunks(Op::ALL.len()).any(|ops| ops[1] || ops[2]);
        for stage in 0..self.placement.stages() {
            for microbatch in 0..self.microbatches {
                let Some(op) = self.missing(stage, microbatch, is_training) else {
                    continue;
                };
                let action = Compute::new(op, stage, microbatch).into();
                return Err(never_runs(self.placement.rank_of(stage), action));
            }
        }
        Ok(())
    }

    /// What a stage did not run for a microbatch.
    pub(crate) fn missing(&self, stage: usize, microbatch: usize, is_training: bool) -> Option<Op> {
        let has = |op| self.contains(Compute::new(op, stage, microbatch));
        if !has(Op::Forward) {
            return Some(Op::Forward);
        }
        if !is_training || has(Op::Backward) {
            return None;
        }
        match has(Op::BackwardInput) {
            true => (!has(Op::BackwardWeight)).then_some(Op::BackwardWeight),
            false => Some(Op::Backward),
        }
    }
}

/// An action before another that it needs.
pub(crate) fn early(rank: usize, action: Action, needs: Action) -> Error {
    error!(Invalid, "rank {rank}: {action} needs {needs} before it")
}

/// An action that does the same work as an earlier one.
pub(crate) fn repeated(rank: usize, action: Action, earlier: Action) -> Error {
    error!(Invalid, "rank {rank}: {action} repeats {earlier}; remove one of them")
}

pub(crate) fn never_runs(rank: usize, action: Action) -> Error {
    error!(Invalid, "rank {rank} never runs {action}")
}
