//! Simulated time. The threads of ranks run one at a time; a seed selects the next one whenever a
//! rank waits, sleeps or yields. When none can run, time advances to the next event. So a run is
//! repeatable, and a wait of an hour takes no time.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meshgrad_runtime::{Completion, Result};

pub(super) struct Simulation {
    state: Mutex<State>,
    /// Signals a rank that it is its turn.
    turns: Box<[Condvar]>,
}

struct State {
    now: Duration,
    random: u64,
    running: Option<usize>,
    ranks: Vec<Task>,
    /// By completion time, then by order of calls.
    transfers: BTreeMap<(Duration, u64), (Completion, Result<()>)>,
    calls: u64,
}

enum Task {
    Ready,
    Waiting { completion: Option<Completion>, until: Option<Duration> },
    Ended,
}

impl Simulation {
    pub(super) fn new(ranks: usize, seed: u64) -> Simulation {
        let mut state = State {
            now: Duration::ZERO,
            random: seed,
            running: None,
            ranks: (0..ranks).map(|_| Task::Ready).collect(),
            transfers: BTreeMap::new(),
            calls: 0,
        };
        state.select();
        Simulation { state: Mutex::new(state), turns: (0..ranks).map(|_| Condvar::new()).collect() }
    }

    pub(super) fn now(&self) -> Duration {
        self.lock().now
    }

    pub(super) fn enter(&self, rank: usize) {
        self.wait_for_turn(rank, self.lock());
    }

    /// Ends a rank, even one that never entered.
    pub(super) fn leave(&self, rank: usize) {
        let mut state = self.lock();
        if state.running == Some(rank) {
            drop(self.switch(state, rank, Task::Ended));
        } else {
            state.ranks[rank] = Task::Ended;
        }
    }

    pub(super) fn yield_now(&self, rank: usize) {
        let state = self.switch(self.lock(), rank, Task::Ready);
        self.wait_for_turn(rank, state);
    }

    /// Returns when `completion` is set, at `until`, or when nothing can happen any more.
    pub(super) fn wait(
        &self,
        rank: usize,
        completion: Option<&Completion>,
        until: Option<Duration>,
    ) {
        let completion = completion.cloned();
        let state = self.switch(self.lock(), rank, Task::Waiting { completion, until });
        self.wait_for_turn(rank, state);
    }

    pub(super) fn complete_at(&self, time: Duration, completion: Completion, result: Result<()>) {
        let mut state = self.lock();
        state.calls += 1;
        let key = (time, state.calls);
        state.transfers.insert(key, (completion, result));
    }

    /// Ends the turn of a rank.
    fn switch<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        rank: usize,
        task: Task,
    ) -> MutexGuard<'a, State> {
        state.ranks[rank] = task;
        state.select();
        if let Some(next) = state.running {
            self.turns[next].notify_one();
        }
        state
    }

    fn wait_for_turn(&self, rank: usize, mut state: MutexGuard<'_, State>) {
        while state.running != Some(rank) {
            let waited = self.turns[rank].wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Selects the rank that runs next; none if all have ended.
    fn select(&mut self) {
        self.running = loop {
            let ranks = self.ranks.iter().enumerate();
            let can_run = ranks.filter(|(_, task)| task.can_run(self.now));
            let can_run: Vec<usize> = can_run.map(|(rank, _)| rank).collect();
            if !can_run.is_empty() {
                break Some(can_run[self.draw(can_run.len())]);
            }
            if !self.advance() {
                let waits = |task: &Task| matches!(task, Task::Waiting { .. });
                break self.ranks.iter().position(waits);
            }
        };
        if let Some(rank) = self.running {
            self.ranks[rank] = Task::Ready;
        }
    }

    /// Advances the time to the next event and completes transfers; false if there is none.
    fn advance(&mut self) -> bool {
        let wakes = self.ranks.iter().filter_map(|task| match task {
            Task::Waiting { until, .. } => *until,
            _ => None,
        });
        let transfer = self.transfers.first_key_value().map(|(key, _)| key.0);
        let Some(next) = wakes.chain(transfer).min() else {
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.transfers.first_entry()
            && entry.key().0 <= self.now
        {
            let (completion, result) = entry.remove();
            completion.complete(result);
        }
        true
    }

    /// A number below `limit`: SplitMix64 (Steele et al. 2014).
    fn draw(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}

impl Task {
    fn can_run(&self, now: Duration) -> bool {
        match self {
            Task::Ready => true,
            Task::Waiting { completion, until } => {
                let is_due = until.is_some_and(|until| until <= now);
                is_due || completion.as_ref().is_some_and(Completion::is_complete)
            }
            Task::Ended => false,
        }
    }
}
