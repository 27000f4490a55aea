//! The simulator against a second one: a clock and a queue of events, instead of the longest paths
//! through a total order.

use std::collections::{HashMap, HashSet, VecDeque};

use meshgrad_pipeline::{Action, Costs, Lowering, Message, Named, Program, Shape};
use proptest::prelude::*;

/// What occupies a rank or a link until a time.
#[derive(Clone, Copy)]
enum Busy {
    Compute(Action),
    Gather(usize),
    Reduce,
    Transfer(Message),
}

/// A queue that does one thing at a time.
#[derive(Default)]
struct Worker {
    waiting: VecDeque<(Busy, f64)>,
    current: Option<(f64, Busy)>,
}

impl Worker {
    fn start_next(&mut self, now: f64) {
        if self.current.is_none() {
            let next = self.waiting.pop_front();
            self.current = next.map(|(busy, duration)| (now + duration, busy));
        }
    }
}

/// The second simulator.
struct Clock<'a> {
    program: &'a Program,
    costs: &'a Costs,
    now: f64,
    next: Vec<usize>,
    computing: Vec<Worker>,
    gathering: Vec<Worker>,
    reducing: Vec<Worker>,
    links: HashMap<(usize, usize), Worker>,
    available: HashSet<Message>,
    gathered: HashSet<usize>,
    ends: HashMap<(usize, usize), f64>,
}

fn workers(count: usize) -> Vec<Worker> {
    (0..count).map(|_| Worker::default()).collect()
}

impl<'a> Clock<'a> {
    fn new(program: &'a Program, costs: &'a Costs) -> Clock<'a> {
        let ranks = program.ranks().len();
        Clock {
            program,
            costs,
            now: 0.0,
            next: vec![0; ranks],
            computing: workers(ranks),
            gathering: workers(ranks),
            reducing: workers(ranks),
            links: HashMap::new(),
            available: HashSet::new(),
            gathered: HashSet::new(),
            ends: HashMap::new(),
        }
    }

    /// Ends of computations by rank and position, and the end of everything.
    fn run(mut self) -> (HashMap<(usize, usize), f64>, f64) {
        loop {
            (0..self.next.len()).for_each(|rank| self.issue(rank));
            let all = self.computing.iter().chain(&self.gathering).chain(&self.reducing);
            let ends = all.chain(self.links.values()).filter_map(|it| it.current);
            let Some(earliest) = ends.map(|it| it.0).min_by(f64::total_cmp) else {
                let is_complete = |(list, &next): (&Vec<Action>, &usize)| list.len() == next;
                assert!(self.program.ranks().iter().zip(&self.next).all(is_complete));
                return (self.ends, self.now);
            };
            self.now = earliest;
            self.finish();
        }
    }

    /// Issues actions of a free rank up to the next computation.
    fn issue(&mut self, rank: usize) {
        while self.computing[rank].current.is_none() {
            let Some(&action) = self.program.ranks()[rank].get(self.next[rank]) else {
                return;
            };
            if !self.is_ready(action, rank) {
                return;
            }
            self.next[rank] += 1;
            let (worker, work, duration) = match action {
                Action::Compute(_) | Action::Overlapped(..) => {
                    let duration = self.duration(action);
                    (&mut self.computing[rank], Busy::Compute(action), duration)
                }
                Action::Send(message) => {
                    let peer = self.program.placement().rank_of(message.to());
                    let link = self.links.entry((rank, peer)).or_default();
                    (link, Busy::Transfer(message), self.costs.send[message.from()])
                }
                Action::Gather(stage) => {
                    let duration = self.costs.gather[stage];
                    (&mut self.gathering[rank], Busy::Gather(stage), duration)
                }
                Action::Reduce(stage) => {
                    (&mut self.reducing[rank], Busy::Reduce, self.costs.reduce[stage])
                }
                Action::Release(stage) => {
                    self.gathered.remove(&stage);
                    continue;
                }
                Action::Receive(_) => continue,
            };
            worker.waiting.push_back((work, duration));
            worker.start_next(self.now);
        }
    }

    fn duration(&self, action: Action) -> f64 {
        use meshgrad_pipeline::Op;
        let of = |it: meshgrad_pipeline::Compute| match it.op {
            Op::Forward => self.costs.forward[it.stage],
            Op::Backward => self.costs.backward[it.stage],
            Op::BackwardInput => self.costs.input[it.stage],
            Op::BackwardWeight => self.costs.weight[it.stage],
        };
        let parts: Vec<f64> = action.computes().map(of).collect();
        match parts[..] {
            [one, other] => one + other - self.costs.overlap * one.min(other),
            _ => parts[0],
        }
    }

    fn is_ready(&self, action: Action, rank: usize) -> bool {
        let stages = self.program.placement().stages();
        let list = &self.program.ranks()[rank];
        let is_sharded = list.iter().any(|it| matches!(it, Action::Gather(_)));
        action.computes().all(|it| {
            let has_input = it.input(stages).is_none_or(|it| self.available.contains(&it));
            has_input && (!is_sharded || self.gathered.contains(&it.stage))
        })
    }

    /// Ends everything that ends now, and starts what waited for it.
    fn finish(&mut self) {
        let now = self.now;
        let stages = self.program.placement().stages();
        let groups = [&mut self.computing, &mut self.gathering, &mut self.reducing];
        let indexed = groups.into_iter().flat_map(|it| it.iter_mut().enumerate());
        let links = self.links.values_mut().map(|it| (0, it));
        for (rank, worker) in indexed.chain(links) {
            let Some((_, busy)) = worker.current.take_if(|it| it.0 <= now) else {
                continue;
            };
            match busy {
                Busy::Compute(action) => {
                    self.ends.insert((rank, self.next[rank] - 1), now);
                    let outputs = action.computes().filter_map(|it| it.output(stages));
                    let placement = self.program.placement();
                    let local = outputs.filter(|it| placement.rank_of(it.to()) == rank);
                    self.available.extend(local);
                }
                Busy::Gather(stage) => drop(self.gathered.insert(stage)),
                Busy::Transfer(message) => drop(self.available.insert(message)),
                Busy::Reduce => {}
            }
            worker.start_next(now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn both_simulators_agree(
        (shape, costs) in crate::random::shape_and_costs(),
        resident in prop_oneof![Just(None), (2..4usize).prop_map(Some)],
        reduce: bool,
    ) {
        for schedule in Named::ALL.into_iter().filter_map(|it| it.schedule(shape).ok()) {
            let is_training = schedule.ranks()[0].len() > shape.microbatches() * shape.stages() / shape.ranks();
            let lowering = Lowering { resident, reduce: reduce && is_training };
            let program = schedule.lower(&lowering).unwrap();
            let simulation = program.simulate(&costs).unwrap();
            let (ends, makespan) = Clock::new(&program, &costs).run();
            prop_assert!((makespan - simulation.makespan()).abs() < 1e-9);
            for ((rank, at), end) in ends {
                let ours = simulation.spans(rank)[at].end;
                prop_assert!((ours - end).abs() < 1e-9, "rank {rank}, action {at}: {ours}, {end}");
            }
        }
    }

    /// Peaks, recounted from the times instead of the order.
    #[test]
    fn peaks_equal_a_count_over_time((shape, costs) in crate::random::shape_and_costs()) {
        use meshgrad_pipeline::Op;
        let training = Named::ALL.into_iter().filter(|&it| it != Named::Inference);
        for schedule in training.filter_map(|it| it.schedule(shape).ok()) {
            let program = schedule.lower(&Lowering::default()).unwrap();
            let simulation = program.simulate(&costs).unwrap();
            for (rank, list) in program.ranks().iter().enumerate() {
                let mut changes = Vec::new();
                for (action, span) in list.iter().zip(simulation.spans(rank)) {
                    for it in action.computes() {
                        let (activation, pending) = (costs.activation[it.stage], costs.pending[it.stage]);
                        changes.push(match it.op {
                            Op::Forward => (span.start, activation),
                            Op::Backward => (span.end, -activation),
                            Op::BackwardInput => (span.end, pending - activation),
                            Op::BackwardWeight => (span.end, -pending),
                        });
                    }
                }
                let at = |time: f64| changes.iter().filter(|it| it.0 <= time).map(|it| it.1).sum::<f64>();
                let peak = changes.iter().map(|it| at(it.0)).fold(0.0, f64::max);
                prop_assert!((peak - simulation.peak(rank).total).abs() < 1e-9);
            }
        }
    }
}

/// Nothing waits for a backward pass.
#[test]
fn inference_keeps_no_activations() {
    let shape = Shape::new(2, 4, 3).unwrap();
    let schedule = Named::Inference.schedule(shape).unwrap();
    let program = schedule.lower(&Lowering::default()).unwrap();
    let simulation = program.simulate(&Costs::uniform(4)).unwrap();
    assert_eq!(simulation.peak_memory(), 0.0);
}

#[test]
fn wrong_costs_are_refused() {
    let shape = Shape::new(2, 2, 2).unwrap();
    let program = Named::Gpipe.schedule(shape).unwrap().lower(&Lowering::default()).unwrap();
    let error = |change: fn(&mut Costs)| {
        let mut costs = Costs::uniform(2);
        change(&mut costs);
        program.simulate(&costs).unwrap_err().to_string()
    };
    assert_eq!(error(|it| it.send = vec![0.0]), "send: 1 values for 2 stages; give one each");
    assert_eq!(
        error(|it| it.forward[1] = f64::NAN),
        "forward: NaN is not a finite number of at least 0"
    );
    assert_eq!(error(|it| it.weight[0] = -1.0), "weight: -1 is not a finite number of at least 0");
    assert_eq!(error(|it| it.overlap = 1.5), "overlap: 1.5 is not between 0 and 1");
}
