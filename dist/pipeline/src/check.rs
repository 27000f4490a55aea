//! Checks of a program: each rank for itself, then the communication of all ranks.

use meshgrad_error::{Result, ensure};

use crate::arrived::Arrived;
use crate::deadlock::{Wait, check_progress};
use crate::done::{Done, early, never_runs, repeated};
use crate::total_order::run_in_total_order;
use crate::{Action, Compute, Message, Placement};

pub(crate) fn check(
    placement: &Placement,
    microbatches: usize,
    ranks: &[Vec<Action>],
) -> Result<()> {
    let mut check = Check::new(placement, microbatches, ranks)?;
    for (rank, actions) in ranks.iter().enumerate() {
        check.rank(rank, actions)?;
    }
    check.done.check_complete()?;
    check.check_messages()?;
    check.check_reductions()?;
    check_communication(placement, ranks)
}

/// The rules that hold within one rank, and what all ranks did.
struct Check<'a> {
    placement: &'a Placement,
    microbatches: usize,
    done: Done<'a>,
    sent: Arrived,
    received: Arrived,
    reduced: Vec<bool>,
}

impl<'a> Check<'a> {
    fn new(
        placement: &'a Placement,
        microbatches: usize,
        ranks: &[Vec<Action>],
    ) -> Result<Check<'a>> {
        Ok(Check {
            placement,
            microbatches,
            done: Done::new(placement, microbatches, ranks)?,
            sent: Arrived::new(placement, microbatches),
            received: Arrived::new(placement, microbatches),
            reduced: vec![false; placement.stages()],
        })
    }

    fn rank(&mut self, rank: usize, actions: &[Action]) -> Result<()> {
        check_gathers(rank, actions)?;
        for &action in actions {
            match action {
                Action::Compute(_) | Action::Overlapped(..) => {
                    self.done.compute(rank, action)?;
                    self.check_received(rank, action)?;
                }
                Action::Send(message) => self.send(rank, action, message)?,
                Action::Receive(message) => self.receive(rank, action, message)?,
                Action::Gather(stage) | Action::Release(stage) => {
                    self.done.check_place(rank, action, stage, 0)?;
                }
                Action::Reduce(stage) => self.reduce(rank, action, stage)?,
            }
        }
        Ok(())
    }

    /// Checks that the inputs from other ranks were received.
    fn check_received(&self, rank: usize, action: Action) -> Result<()> {
        let stages = self.placement.stages();
        let inputs = action.computes().filter_map(|it| it.input(stages));
        let mut remote = inputs.filter(|it| self.placement.rank_of(it.from()) != rank);
        match remote.find(|&it| !self.received.contains(it)) {
            Some(message) => Err(early(rank, action, Action::Receive(message))),
            None => Ok(()),
        }
    }

    fn send(&mut self, rank: usize, action: Action, message: Message) -> Result<()> {
        self.check_message(rank, action, message, message.from())?;
        self.done.check_produced(rank, action, message)?;
        once(rank, action, self.sent.contains(message))?;
        self.sent.insert(message);
        Ok(())
    }

    fn receive(&mut self, rank: usize, action: Action, message: Message) -> Result<()> {
        self.check_message(rank, action, message, message.to())?;
        once(rank, action, self.received.contains(message))?;
        self.received.insert(message);
        Ok(())
    }

    fn check_message(
        &self,
        rank: usize,
        action: Action,
        message: Message,
        stage: usize,
    ) -> Result<()> {
        let (below, microbatch) = (message.boundary, message.microbatch);
        if below >= self.placement.stages() - 1 {
            return Err(self.done.out_of_range(rank, action));
        }
        self.done.check_place(rank, action, stage, microbatch)?;
        ensure!(
            self.placement.rank_of(below) != self.placement.rank_of(below + 1),
            Invalid,
            "rank {rank}: {action} is not needed, because rank {rank} has both stages"
        );
        Ok(())
    }

    /// A reduction comes after all gradients of the stage.
    fn reduce(&mut self, rank: usize, action: Action, stage: usize) -> Result<()> {
        self.done.check_place(rank, action, stage, 0)?;
        once(rank, action, self.reduced[stage])?;
        self.reduced[stage] = true;
        for microbatch in 0..self.microbatches {
            if let Some(op) = self.done.missing(stage, microbatch, true) {
                return Err(early(rank, action, Compute::new(op, stage, microbatch).into()));
            }
        }
        Ok(())
    }

    /// Checks that every message between two ranks is sent and received.
    fn check_messages(&self) -> Result<()> {
        let stages = self.placement.stages();
        for compute in self.done.all() {
            let Some(message) = compute.output(stages) else {
                continue;
            };
            let from = self.placement.rank_of(message.from());
            let to = self.placement.rank_of(message.to());
            if from != to && !self.sent.contains(message) {
                return Err(never_runs(from, Action::Send(message)));
            }
            if from != to && !self.received.contains(message) {
                return Err(never_runs(to, Action::Receive(message)));
            }
        }
        Ok(())
    }

    /// Checks that either all stages are reduced or none.
    fn check_reductions(&self) -> Result<()> {
        if !self.reduced.contains(&true) {
            return Ok(());
        }
        match self.reduced.iter().position(|&it| !it) {
            Some(stage) => Err(never_runs(self.placement.rank_of(stage), Action::Reduce(stage))),
            None => Ok(()),
        }
    }
}

/// Checks that the stages that run are gathered, if any are, and released in the end.
fn check_gathers(rank: usize, actions: &[Action]) -> Result<()> {
    let is_sharded = |it: &Action| matches!(it, Action::Gather(_) | Action::Release(_));
    if !actions.iter().any(is_sharded) {
        return Ok(());
    }
    let mut gathered: Vec<usize> = Vec::new();
    for &action in actions {
        if let Action::Gather(stage) = action {
            once(rank, action, gathered.contains(&stage))?;
            gathered.push(stage);
            continue;
        }
        let released = match action {
            Action::Release(stage) => Some(stage),
            _ => None,
        };
        let used = action.computes().map(|it| it.stage);
        let missing = used.chain(released).find(|it| !gathered.contains(it));
        if let Some(stage) = missing {
            return Err(early(rank, action, Action::Gather(stage)));
        }
        gathered.retain(|&it| Some(it) != released);
    }
    match gathered.first() {
        Some(&stage) => Err(never_runs(rank, Action::Release(stage))),
        None => Ok(()),
    }
}

fn once(rank: usize, action: Action, is_repeated: bool) -> Result<()> {
    match is_repeated {
        true => Err(repeated(rank, action, action)),
        false => Ok(()),
    }
}

/// Runs the messages of all ranks: a send and its receive run together, when both are the next
/// message of their rank.
fn check_communication(placement: &Placement, ranks: &[Vec<Action>]) -> Result<()> {
    let is_message = |it: &&Action| matches!(it, Action::Send(_) | Action::Receive(_));
    let messages = |list: &Vec<Action>| list.iter().filter(is_message).copied().collect();
    let lists: Vec<Vec<Action>> = ranks.iter().map(messages).collect();
    let mut next = vec![0; lists.len()];

    run_in_total_order(lists.len(), |rank, woken| {
        let Some(&action) = lists[rank].get(next[rank]) else {
            return false;
        };
        let (needs, peer) = counterpart(action, placement);
        if lists[peer].get(next[peer]) != Some(&needs) {
            return false;
        }
        next[rank] += 1;
        next[peer] += 1;
        woken.push(peer);
        true
    });

    let blocked = |rank: usize| {
        let action = *lists[rank].get(next[rank])?;
        let (needs, peer) = counterpart(action, placement);
        Some(Wait { rank, action, needs, peer })
    };
    let waits: Vec<Wait> = (0..lists.len()).filter_map(blocked).collect();
    check_progress(&waits)
}

/// The receive of a send, the send of a receive, and the rank that has it.
fn counterpart(action: Action, placement: &Placement) -> (Action, usize) {
    match action {
        Action::Send(it) => (Action::Receive(it), placement.rank_of(it.to())),
        Action::Receive(it) => (Action::Send(it), placement.rank_of(it.from())),
        other => (other, 0),
    }
}
