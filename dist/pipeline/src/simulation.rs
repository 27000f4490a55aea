//! The simulator: when every action of a program starts and ends, and how much memory is in use.
//!
//! - A rank computes one thing at a time, in the order of its list.
//! - A computation starts when its rank is free and its inputs have arrived.
//! - Messages from one rank to another pass one at a time, in the order of their sends. A send starts
//!   when its rank reaches it, and nothing waits for its end but the computation that needs it.
//! - Gathers run beside the computations, one at a time; so do reductions.

use std::collections::HashMap;

use meshgrad_error::Result;

use crate::costs::Costs;
use crate::total_order::run_in_total_order;
use crate::{Action, Op, Program};

/// A simulated run of a [`Program`].
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    spans: Vec<Vec<Span>>,
    busy: Vec<f64>,
    peaks: Vec<Peak>,
    makespan: f64,
}

/// When an action runs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Span {
    /// Its start.
    pub start: f64,
    /// Its end.
    pub end: f64,
}

/// The largest amounts of memory of a rank. They need not occur at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Peak {
    /// Of live activations: forward passes without a backward pass (B or I).
    pub live: f64,
    /// Of pending weight gradients: input gradients without their W.
    pub pending: f64,
    /// Of both together.
    pub total: f64,
}

impl Simulation {
    /// The time of every action of a rank, in the order of its list. A receive has the time of its
    /// send.
    pub fn spans(&self, rank: usize) -> &[Span] {
        &self.spans[rank]
    }

    /// The time from the start of the first action to the end of the last.
    pub fn makespan(&self) -> f64 {
        self.makespan
    }

    /// The fraction of time in which a rank does not compute.
    pub fn idle_share_of(&self, rank: usize) -> f64 {
        self.idle(self.busy[rank])
    }

    /// The fraction of time in which ranks do not compute, over all ranks.
    pub fn idle_share(&self) -> f64 {
        self.idle(self.busy.iter().sum::<f64>() / self.busy.len() as f64)
    }

    fn idle(&self, busy: f64) -> f64 {
        match self.makespan > 0.0 {
            true => (1.0 - busy / self.makespan).max(0.0),
            false => 0.0,
        }
    }

    /// The memory peaks of a rank.
    pub fn peak(&self, rank: usize) -> Peak {
        self.peaks[rank]
    }

    /// The largest [`Peak::total`] of all ranks.
    pub fn peak_memory(&self) -> f64 {
        self.peaks.iter().map(|it| it.total).fold(0.0, f64::max)
    }
}

impl Program {
    /// Simulates a run.
    ///
    /// # Errors
    /// When the costs do not fit the stages.
    pub fn simulate(&self, costs: &Costs) -> Result<Simulation> {
        costs.check(self.placement().stages())?;
        let mut run = Run::new(self, costs);
        run_in_total_order(self.ranks().len(), |rank, woken| run.step(rank, woken));
        let is_complete = |(list, spans): (&Vec<Action>, &Vec<Span>)| list.len() == spans.len();
        debug_assert!(self.ranks().iter().zip(&run.spans).all(is_complete));

        let ends = run.spans.iter().flatten().map(|it| it.end);
        let makespan = ends.fold(0.0, f64::max);
        let peaks = self.ranks().iter().map(|list| peak(list, costs));
        Ok(Simulation { peaks: peaks.collect(), spans: run.spans, busy: run.busy, makespan })
    }
}

/// The state of a run. Times are those at which something becomes free or available.
struct Run<'a> {
    program: &'a Program,
    costs: &'a Costs,
    spans: Vec<Vec<Span>>,
    busy: Vec<f64>,
    rank_free: Vec<f64>,
    gather_free: Vec<f64>,
    reduce_free: Vec<f64>,
    link_free: HashMap<(usize, usize), f64>,
    gathered: Vec<f64>,
    messages: Vec<Option<Span>>,
}

impl<'a> Run<'a> {
    fn new(program: &'a Program, costs: &'a Costs) -> Run<'a> {
        let (ranks, stages) = (program.ranks().len(), program.placement().stages());
        Run {
            program,
            costs,
            spans: vec![Vec::new(); ranks],
            busy: vec![0.0; ranks],
            rank_free: vec![0.0; ranks],
            gather_free: vec![0.0; ranks],
            reduce_free: vec![0.0; ranks],
            link_free: HashMap::new(),
            gathered: vec![0.0; stages],
            messages: vec![None; 2 * stages * program.microbatches()],
        }
    }

    /// Runs the next action of a rank, unless its time depends on another rank that is not as far.
    fn step(&mut self, rank: usize, woken: &mut Vec<usize>) -> bool {
        let at = self.spans[rank].len();
        let Some(&action) = self.program.ranks()[rank].get(at) else {
            return false;
        };
        let Some(span) = self.run(rank, action, woken) else {
            return false;
        };
        self.spans[rank].push(span);
        true
    }

    fn run(&mut self, rank: usize, action: Action, woken: &mut Vec<usize>) -> Option<Span> {
        let duration = self.costs.duration(action);
        let placement = self.program.placement();
        let now = self.rank_free[rank];
        match action {
            Action::Compute(_) | Action::Overlapped(..) => self.compute(rank, action, duration),
            Action::Send(message) => {
                let peer = placement.rank_of(message.to());
                let free = self.link_free.entry((rank, peer)).or_default();
                let span = occupy(free, now, duration);
                self.messages[message.index(self.program.microbatches())] = Some(span);
                woken.push(peer);
                Some(span)
            }
            Action::Receive(message) => self.messages[message.index(self.program.microbatches())],
            Action::Gather(stage) => {
                let span = occupy(&mut self.gather_free[rank], now, duration);
                self.gathered[stage] = span.end;
                Some(span)
            }
            Action::Reduce(_) => Some(occupy(&mut self.reduce_free[rank], now, duration)),
            Action::Release(_) => Some(Span { start: now, end: now }),
        }
    }

    fn compute(&mut self, rank: usize, action: Action, duration: f64) -> Option<Span> {
        let (stages, microbatches) =
            (self.program.placement().stages(), self.program.microbatches());
        let mut ready = 0.0;
        for compute in action.computes() {
            ready = f64::max(ready, self.gathered[compute.stage]);
            if let Some(input) = compute.input(stages) {
                ready = f64::max(ready, self.messages[input.index(microbatches)]?.end);
            }
        }
        let span = occupy(&mut self.rank_free[rank], ready, duration);
        self.busy[rank] += duration;
        for output in action.computes().filter_map(|it| it.output(stages)) {
            if self.program.placement().rank_of(output.to()) == rank {
                let available = Span { start: span.end, end: span.end };
                self.messages[output.index(microbatches)] = Some(available);
            }
        }
        Some(span)
    }
}

/// Occupies something that is free from `free` on, not before `ready`.
fn occupy(free: &mut f64, ready: f64, duration: f64) -> Span {
    let start = f64::max(*free, ready);
    *free = start + duration;
    Span { start, end: *free }
}

/// The peaks of one rank. They depend only on the order of its list. Inference keeps no activations.
fn peak(list: &[Action], costs: &Costs) -> Peak {
    let (mut live, mut pending) = (0.0, 0.0);
    let mut peak = Peak::default();
    let computes = || list.iter().flat_map(|action| action.computes());
    if computes().all(|it| it.op == Op::Forward) {
        return peak;
    }
    for compute in computes() {
        let activation = costs.activation[compute.stage];
        match compute.op {
            Op::Forward => live += activation,
            Op::Backward => live -= activation,
            Op::BackwardInput => {
                live -= activation;
                pending += costs.pending[compute.stage];
            }
            Op::BackwardWeight => pending -= costs.pending[compute.stage],
        }
        peak.live = peak.live.max(live);
        peak.pending = peak.pending.max(pending);
        peak.total = peak.total.max(live + pending);
    }
    peak
}
