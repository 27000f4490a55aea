//! A list scheduler: whenever a rank is free, it starts one of the computations that are ready.
//!
//! Every stage runs its microbatches in order. A forward pass starts only if the memory for the later
//! stages of its rank remains free. Then the earliest unfinished microbatch can always go on: what a
//! rank holds of later microbatches left room for it. So a run that can finish one microbatch finishes
//! all.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::policy::{Backward, Policy, Prefer, fits};
use crate::{Action, Compute, Costs, Message, Op, Placement};

pub(crate) struct Greedy<'a> {
    placement: &'a Placement,
    microbatches: usize,
    costs: &'a Costs,
    policy: Policy,
    stages: Vec<StageState>,
    ranks: Vec<RankState>,
    /// When messages arrive: infinity if not known yet.
    arrivals: Vec<f64>,
    events: BinaryHeap<Reverse<Event>>,
}

/// The next microbatch of each kind, and what the stage occupies.
struct StageState {
    next: [usize; Op::ALL.len()],
    /// Memory from F until W or B; after I, `pending` of it remains.
    charge: f64,
    /// Memory that must remain free when F starts: the charges of the rank's later stages.
    reserve: f64,
}

struct RankState {
    free: f64,
    memory: f64,
    last: Op,
    actions: Vec<Action>,
}

/// A time at which a rank may be able to start something.
#[derive(PartialEq)]
struct Event {
    time: f64,
    rank: usize,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> Ordering {
        let time = self.time.total_cmp(&other.time);
        time.then(self.rank.cmp(&other.rank))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> Greedy<'a> {
    pub(crate) fn new(
        placement: &'a Placement,
        microbatches: usize,
        costs: &'a Costs,
        policy: Policy,
    ) -> Greedy<'a> {
        let charge = |stage: usize| match policy.backward {
            Backward::Whole => costs.activation[stage],
            _ => costs.activation[stage].max(costs.pending[stage]),
        };
        let state = |stage: usize| {
            let on_rank = placement.stages_of(placement.rank_of(stage)).iter();
            StageState {
                next: Default::default(),
                charge: charge(stage),
                reserve: on_rank.filter(|&&it| it > stage).map(|&it| charge(it)).sum(),
            }
        };
        let rank = || RankState { free: 0.0, memory: 0.0, last: Op::Backward, actions: Vec::new() };
        let start = |rank| Reverse(Event { time: 0.0, rank });
        Greedy {
            placement,
            microbatches,
            costs,
            policy,
            stages: (0..placement.stages()).map(state).collect(),
            ranks: (0..placement.ranks()).map(|_| rank()).collect(),
            arrivals: vec![f64::INFINITY; 2 * placement.stages() * microbatches],
            events: (0..placement.ranks()).map(start).collect(),
        }
    }

    /// The lists of all ranks; none if the budget is too small for one microbatch.
    pub(crate) fn run(mut self) -> Option<Vec<Vec<Action>>> {
        while let Some(Reverse(Event { time, rank })) = self.events.pop() {
            if self.ranks[rank].free > time {
                continue;
            }
            if let Some(compute) = self.choose(rank, time) {
                self.start(rank, time, compute);
            }
        }
        let last = match self.policy.backward {
            Backward::Whole => Op::Backward,
            _ => Op::BackwardWeight,
        };
        let is_complete = |stage: &StageState| stage.next[last as usize] == self.microbatches;
        let lists = self.ranks.into_iter().map(|rank| rank.actions).collect();
        self.stages.iter().all(is_complete).then_some(lists)
    }

    fn choose(&self, rank: usize, time: f64) -> Option<Compute> {
        let forward = || self.forward(rank, time);
        let backward = || self.backward(rank, time);
        let weight = || self.weight(rank);
        let last = self.ranks[rank].last;
        let is_due = self.policy.backward == Backward::SplitSoon
            && last == Op::BackwardInput
            && !self.is_filling(rank);
        if let Some(weight) = is_due.then(weight).flatten() {
            return Some(weight);
        }
        let forward_first = match self.policy.prefer {
            Prefer::Forward => true,
            Prefer::Backward => false,
            Prefer::Other => last != Op::Forward,
        };
        match forward_first {
            true => forward().or_else(backward).or_else(weight),
            false => backward().or_else(forward).or_else(weight),
        }
    }

    /// Whether the rank runs its first input gradients, for which earlier ranks wait.
    fn is_filling(&self, rank: usize) -> bool {
        let stages = self.placement.stages_of(rank).iter();
        let inputs = stages.map(|&it| self.stages[it].next[Op::BackwardInput as usize]);
        inputs.sum::<usize>() <= rank
    }

    fn next(&self, op: Op, stage: usize) -> Option<Compute> {
        let microbatch = self.stages[stage].next[op as usize];
        (microbatch < self.microbatches).then_some(Compute::new(op, stage, microbatch))
    }

    fn has_input(&self, compute: Compute, time: f64) -> bool {
        let input = compute.input(self.placement.stages());
        input.is_none_or(|it| self.arrivals[it.index(self.microbatches)] <= time)
    }

    fn forward(&self, rank: usize, time: f64) -> Option<Compute> {
        let memory = self.ranks[rank].memory;
        let has_room = |it: &Compute| {
            let stage = &self.stages[it.stage];
            fits(memory + stage.charge + stage.reserve, self.policy.budget)
        };
        let stages = self.placement.stages_of(rank).iter();
        let next = stages.filter_map(|&stage| self.next(Op::Forward, stage));
        let mut ready = next.filter(|&it| self.has_input(it, time)).filter(has_room);
        match self.policy.deepest_first {
            true => ready.next_back(),
            false => ready.min_by_key(|it| (it.microbatch, Reverse(it.stage))),
        }
    }

    /// The backward pass of the earliest microbatch: the one that started first.
    fn backward(&self, rank: usize, time: f64) -> Option<Compute> {
        let op = match self.policy.backward {
            Backward::Whole => Op::Backward,
            _ => Op::BackwardInput,
        };
        let stages = self.placement.stages_of(rank).iter();
        let next = stages.filter_map(|&stage| self.next(op, stage));
        let is_ready = |it: &Compute| {
            let forward = self.stages[it.stage].next[Op::Forward as usize];
            it.microbatch < forward && self.has_input(*it, time)
        };
        next.filter(is_ready).min_by_key(|it| (it.microbatch, it.stage))
    }

    fn weight(&self, rank: usize) -> Option<Compute> {
        let stages = self.placement.stages_of(rank).iter();
        let next = stages.filter_map(|&stage| self.next(Op::BackwardWeight, stage));
        let is_ready =
            |it: &Compute| it.microbatch < self.stages[it.stage].next[Op::BackwardInput as usize];
        next.filter(is_ready).min_by_key(|it| (it.microbatch, Reverse(it.stage)))
    }

    fn start(&mut self, rank: usize, time: f64, compute: Compute) {
        let end = time + self.costs.compute(compute);
        let stage = &mut self.stages[compute.stage];
        stage.next[compute.op as usize] += 1;
        let pending = self.costs.pending[compute.stage];
        let state = &mut self.ranks[rank];
        state.memory += match compute.op {
            Op::Forward => stage.charge,
            Op::Backward => -stage.charge,
            Op::BackwardInput => pending - stage.charge,
            Op::BackwardWeight => -pending,
        };
        state.free = end;
        state.last = compute.op;
        state.actions.push(compute.into());
        self.events.push(Reverse(Event { time: end, rank }));
        if let Some(output) = compute.output(self.placement.stages()) {
            self.send(rank, end, output);
        }
    }

    /// The simulator also lets messages wait for each other; here they do not.
    fn send(&mut self, rank: usize, time: f64, message: Message) {
        let peer = self.placement.rank_of(message.to());
        let duration = match peer == rank {
            true => 0.0,
            false => self.costs.send[message.from()],
        };
        let time = time + duration;
        self.arrivals[message.index(self.microbatches)] = time;
        self.events.push(Reverse(Event { time, rank: peer }));
    }
}
