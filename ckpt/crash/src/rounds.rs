//! Power cuts on a simulated disk after every operation, each with many of the states that it may
//! leave.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use meshgrad_ckpt::vfs::Vfs;
use meshgrad_ckpt::{keep_last_in, newest_in};

use crate::fault_fs::FaultFs;
use crate::invariant::{self, Expect, Save};
use crate::outcome::{Failure, Progress, Summary, Violation};
use crate::rule::{Fault, Op, Rule};
use crate::script;
use crate::sim_fs::{Recorded, SimFs, Survivors};
use crate::splitmix::SplitMix64;

/// The most states that are checked after one operation.
pub const STATES_PER_OPERATION: usize = 70;

/// In one of this many states, another save and another power cut are tested.
const RECOVER_EVERY: u64 = 16;

const RUN: &str = "/run";

/// Runs rounds with consecutive seeds until `states` states have been checked.
///
/// # Errors
/// [`Failure::Violation`] for the first state that breaks the invariant.
pub fn cut_power(
    states: u64,
    seed: u64,
    report: &mut dyn FnMut(Progress),
) -> Result<Summary, Failure> {
    let mut summary = Summary::default();
    let mut seeds = seed..;
    while summary.states < states {
        let seed = seeds.next().unwrap_or(seed);
        let round = Round::run(seed, &|sim| Arc::new(sim))?;
        round.check(STATES_PER_OPERATION, states, &mut summary, report)?;
    }
    Ok(summary)
}

/// Wraps the simulated disk that the protocol runs on.
pub type Wrap<'a> = &'a dyn Fn(SimFs) -> Arc<dyn Vfs>;

/// One recorded round: saves, one of them killed, and removals of old checkpoints.
#[derive(Debug)]
pub struct Round {
    seed: u64,
    states: Vec<Recorded>,
    /// Expectations, each with the first recorded state that it holds for.
    expected: Vec<(usize, Expect)>,
}

impl Round {
    /// Runs a round on a simulated disk that `wrap` has wrapped.
    ///
    /// # Errors
    /// [`Failure::Broken`] when a save fails without an injected fault.
    pub fn run(seed: u64, wrap: Wrap<'_>) -> Result<Round, Failure> {
        let sim = SimFs::new();
        sim.make_dir(Path::new(RUN))?;
        sim.sync_dir(Path::new("/"))?;
        sim.record();

        let mut runner = Runner {
            vfs: wrap(sim.clone()),
            sim,
            random: SplitMix64::new(seed),
            expected: Vec::new(),
            done: 0,
        };
        runner.run()?;
        Ok(Round { seed, states: runner.sim.history(), expected: runner.expected })
    }

    /// The number of recorded operations: those that change the disk or sync it.
    pub fn operations(&self) -> usize {
        self.states.len()
    }

    /// Cuts the power after every operation, for at most `each` sets of changes that reached the
    /// disk, until `summary` has `limit` states.
    ///
    /// # Errors
    /// [`Failure::Violation`] for the first state that breaks the invariant.
    pub fn check(
        &self,
        each: usize,
        limit: u64,
        summary: &mut Summary,
        report: &mut dyn FnMut(Progress),
    ) -> Result<(), Failure> {
        summary.rounds += 1;
        let before = summary.states;
        for (at, state) in self.states.iter().enumerate() {
            let expect = self.expect_at(at);
            summary.operations += 1;

            let seed = SplitMix64::new(self.seed ^ ((at as u64) << 32)).next();
            for survivors in Survivors::choose(state.pending(), each, seed) {
                if summary.states == limit {
                    return Ok(());
                }
                summary.states += 1;
                // States are counted within the round, so that its seed alone reproduces a
                // violation.
                let count = summary.states - before;
                let found = self.check_state(state, survivors, &expect, count);
                let found = found.map_err(|problem| self.violation(at, survivors, problem))?;
                summary.early += u64::from(found.iter().any(|save| expect.may.contains(save)));
            }
            report(Progress::States(summary.states));
        }
        Ok(())
    }

    fn check_state(
        &self,
        state: &Recorded,
        survivors: Survivors,
        expect: &Expect,
        count: u64,
    ) -> Result<BTreeSet<Save>, String> {
        let left = state.after_crash(survivors);
        let vfs: Arc<dyn Vfs> = Arc::new(left.clone());
        let run = Path::new(RUN);
        let found = invariant::check(&vfs, run, expect)?;

        // Leftovers must not matter, whether they are swept first or not.
        if count.is_multiple_of(2 * RECOVER_EVERY) {
            invariant::check_sweep(&vfs, run, &found)?;
        }
        if count.is_multiple_of(RECOVER_EVERY) {
            save_again(&left, &vfs, &found, count)?;
        }
        Ok(found)
    }

    /// The expectation for a recorded state.
    fn expect_at(&self, at: usize) -> Expect {
        let last = self.expected.iter().rev().find(|(from, _)| *from <= at);
        last.map(|(_, expect)| expect.clone()).unwrap_or_default()
    }

    fn violation(&self, at: usize, survivors: Survivors, problem: String) -> Violation {
        let operation = &self.states[at].operation;
        let pending = self.states[at].pending();
        let states = self.states.len() * STATES_PER_OPERATION;
        Violation {
            again: format!("--states {states} --kills 0 --seed {}", self.seed),
            moment: format!(
                "power cut after operation {at} ({operation}): of {pending} changes that were not \
                 synced, {survivors} reached the disk"
            ),
            problem,
        }
    }
}

/// Checks that the next save after a power cut succeeds and survives another power cut.
fn save_again(
    left: &SimFs,
    vfs: &Arc<dyn Vfs>,
    found: &BTreeSet<Save>,
    seed: u64,
) -> Result<(), String> {
    let run = Path::new(RUN);
    let newest = found.last().map_or(0, |save| save.step);
    let next = Save { step: newest + 1, attempt: 1_000_000 };
    script::save_mixed(vfs, run, next, &mut SplitMix64::new(seed))
        .map_err(|error| format!("the next save fails: {error}"))?;

    let again: Arc<dyn Vfs> = Arc::new(left.after_crash(Survivors::None));
    let mut expected = found.clone();
    expected.insert(next);
    match invariant::recover(&again, run)? {
        found if found == expected => Ok(()),
        found => Err(format!("after the next save {found:?} are found, not {expected:?}")),
    }
}

struct Runner {
    vfs: Arc<dyn Vfs>,
    sim: SimFs,
    random: SplitMix64,
    expected: Vec<(usize, Expect)>,
    /// The minimum number of checkpoints from now on: one, once the first exists.
    done: usize,
}

impl Runner {
    fn run(&mut self) -> Result<(), Failure> {
        let first = Save { step: 1, attempt: 1 };
        self.begin([], [first]);
        self.save(first)?;
        self.done([first]);

        let second = Save { step: 2, attempt: 1 };
        self.begin([first], [second]);
        self.save(second)?;
        self.done([first, second]);

        self.begin([second], [first]);
        self.keep_one()?;
        self.done([second]);
        self.killed_save(second)
    }

    /// A process is killed while it saves; the next process continues from what it finds.
    fn killed_save(&mut self, old: Save) -> Result<(), Failure> {
        let killed = Save { step: 3, attempt: 1 };
        self.begin([old], [killed]);
        let stop = Rule::new(Fault::Stop);
        let stop = match self.random.below(4) {
            // The critical moment: after the rename, before the sync of the parent.
            0 => stop.op(Op::SyncDir).nth(3),
            _ => stop.nth(self.random.below(300)),
        };
        let dying: Arc<dyn Vfs> = Arc::new(FaultFs::new(Arc::clone(&self.vfs), vec![stop]));
        // The next process must find out whether the save was complete before the kill.
        let _ = script::save_mixed(&dying, Path::new(RUN), killed, &mut self.random);

        let newest = newest_in(Arc::clone(&self.vfs), RUN)?;
        let step = newest.committed.and_then(|found| found.step());
        let is_done = step == Some(killed.step);

        // The killed process may not have synced the new name, so the removal must not rely on it.
        self.begin([], [old, killed]);
        self.keep_one()?;
        let kept = if is_done { killed } else { old };
        self.done([kept]);

        let next = Save { step: kept.step + 1, attempt: 2 };
        self.begin([kept], [next]);
        self.save(next)?;
        self.done([kept, next]);

        self.begin([next], [kept]);
        self.keep_one()?;
        self.done([next]);
        Ok(())
    }

    fn save(&mut self, save: Save) -> Result<(), Failure> {
        script::save_mixed(&self.vfs, Path::new(RUN), save, &mut self.random)?;
        Ok(())
    }

    fn keep_one(&self) -> Result<(), Failure> {
        keep_last_in(Arc::clone(&self.vfs), RUN, NonZeroUsize::MIN)?;
        Ok(())
    }

    /// Expects that, from the next operation on, the saves in `may` can appear or disappear.
    fn begin<const M: usize, const N: usize>(&mut self, must: [Save; M], may: [Save; N]) {
        let expect = Expect { must: must.into(), may: may.into(), at_least: self.done };
        self.expected.push((self.sim.recorded(), expect));
    }

    /// Expects that exactly these saves exist after the last operation.
    fn done<const M: usize>(&mut self, must: [Save; M]) {
        self.done = M.min(1);
        let expect = Expect { must: must.into(), ..Expect::default() };
        let last = self.sim.recorded().saturating_sub(1);
        self.expected.push((last, expect));
    }
}
