//! Rounds on a simulated disk: every state that a power cut may leave, after every operation.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use super::law::{self, Expect, Save};
use super::{Failure, Progress, Summary, Violation, script};
use crate::discover::newest_in;
use crate::keep_last_in;
use crate::splitmix::SplitMix64;
use crate::vfs::{Fault, FaultFs, Moment, Op, Rule, SimFs, Survivors, Vfs};

/// States that are checked after each operation, where there are so many.
pub const STATES_EACH: usize = 70;

/// One in so many states is saved to again.
const RECOVER_EVERY: u64 = 16;

const RUN: &str = "/run";

/// Plays rounds until so many states are checked, with another seed each.
///
/// # Errors
/// [`Failure::Violation`] for the first state that should not be.
pub fn cut_power(
    states: u64,
    seed: u64,
    report: &mut dyn FnMut(Progress),
) -> Result<Summary, Failure> {
    let mut summary = Summary::default();
    let mut seeds = seed..;
    while summary.states < states {
        let seed = seeds.next().unwrap_or(seed);
        let round = Round::play(seed, &|sim| Arc::new(sim))?;
        round.check(STATES_EACH, states, &mut summary, report)?;
    }
    Ok(summary)
}

/// Puts something between the protocol and the simulated disk.
pub type Wrap<'a> = &'a dyn Fn(SimFs) -> Arc<dyn Vfs>;

/// What happened in a round: three saves, one of them killed, and the removal of old ones.
#[derive(Debug)]
pub struct Round {
    seed: u64,
    moments: Vec<Moment>,
    /// From which moment on what is expected.
    expected: Vec<(usize, Expect)>,
}

impl Round {
    /// Plays a round on what `wrap` makes of a simulated disk.
    ///
    /// # Errors
    /// [`Failure::Broken`] when a save fails though nothing was done to it.
    pub fn play(seed: u64, wrap: Wrap<'_>) -> Result<Round, Failure> {
        let sim = SimFs::new();
        sim.make_dir(Path::new(RUN))?;
        sim.sync_dir(Path::new("/"))?;
        sim.record();

        let mut player = Player {
            vfs: wrap(sim.clone()),
            sim,
            draws: SplitMix64::new(seed),
            expected: Vec::new(),
            done: 0,
        };
        player.play()?;
        Ok(Round {
            seed,
            moments: player.sim.history(),
            expected: player.expected,
        })
    }

    /// How many operations changed the disk or waited for it.
    pub fn operations(&self) -> usize {
        self.moments.len()
    }

    /// Cuts the power after every operation, for at most `each` sets of what reached the disk,
    /// until `summary` has `limit` states.
    ///
    /// # Errors
    /// [`Failure::Violation`] for the first state that should not be.
    pub fn check(
        &self,
        each: usize,
        limit: u64,
        summary: &mut Summary,
        report: &mut dyn FnMut(Progress),
    ) -> Result<(), Failure> {
        summary.rounds += 1;
        let before = summary.states;
        for (at, moment) in self.moments.iter().enumerate() {
            let expect = self.expect_at(at);
            summary.operations += 1;

            let seed = SplitMix64::new(self.seed ^ ((at as u64) << 32)).next();
            for survivors in Survivors::choose(moment.pending(), each, seed) {
                if summary.states == limit {
                    return Ok(());
                }
                summary.states += 1;
                // Counted within the round, so that its seed alone brings it back.
                let count = summary.states - before;
                let found = self.check_state(moment, survivors, &expect, count);
                let found = found.map_err(|problem| self.violation(at, survivors, problem))?;
                summary.early += u64::from(found.iter().any(|save| expect.may.contains(save)));
            }
            report(Progress::States(summary.states));
        }
        Ok(())
    }

    fn check_state(
        &self,
        moment: &Moment,
        survivors: Survivors,
        expect: &Expect,
        count: u64,
    ) -> Result<BTreeSet<Save>, String> {
        let left = moment.after_crash(survivors);
        let vfs: Arc<dyn Vfs> = Arc::new(left.clone());
        let run = Path::new(RUN);
        let found = law::check(&vfs, run, expect)?;

        // Leftovers are no obstacle, whether they are swept first or not.
        if count.is_multiple_of(2 * RECOVER_EVERY) {
            law::check_sweep(&vfs, run, &found)?;
        }
        if count.is_multiple_of(RECOVER_EVERY) {
            go_on(&left, &vfs, &found, count)?;
        }
        Ok(found)
    }

    /// What holds at a moment: the last that was said before it.
    fn expect_at(&self, at: usize) -> Expect {
        let said = self.expected.iter().rev().find(|(from, _)| *from <= at);
        said.map(|(_, expect)| expect.clone()).unwrap_or_default()
    }

    fn violation(&self, at: usize, survivors: Survivors, problem: String) -> Violation {
        let operation = &self.moments[at].operation;
        let pending = self.moments[at].pending();
        let states = self.moments.len() * STATES_EACH;
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

/// After a power cut, training goes on: the next save works, and stays.
fn go_on(
    left: &SimFs,
    vfs: &Arc<dyn Vfs>,
    found: &BTreeSet<Save>,
    seed: u64,
) -> Result<(), String> {
    let run = Path::new(RUN);
    let newest = found.last().map_or(0, |save| save.step);
    let next = Save {
        step: newest + 1,
        attempt: 1_000_000,
    };
    script::save_mixed(vfs, run, next, &mut SplitMix64::new(seed))
        .map_err(|error| format!("the next save fails: {error}"))?;

    let again: Arc<dyn Vfs> = Arc::new(left.after_crash(Survivors::None));
    let mut expected = found.clone();
    expected.insert(next);
    match law::recover(&again, run)? {
        found if found == expected => Ok(()),
        found => Err(format!(
            "after the next save {found:?} are found, not {expected:?}"
        )),
    }
}

struct Player {
    vfs: Arc<dyn Vfs>,
    sim: SimFs,
    draws: SplitMix64,
    expected: Vec<(usize, Expect)>,
    /// How many were there when something was last done; one at most, as many as are kept.
    done: usize,
}

impl Player {
    fn play(&mut self) -> Result<(), Failure> {
        let first = Save {
            step: 1,
            attempt: 1,
        };
        self.begin([], [first]);
        self.save(first)?;
        self.done([first]);

        let second = Save {
            step: 2,
            attempt: 1,
        };
        self.begin([first], [second]);
        self.save(second)?;
        self.done([first, second]);

        self.begin([second], [first]);
        self.keep_one()?;
        self.done([second]);
        self.killed_save(second)
    }

    /// A process is killed while it saves; the next one finds what there is and goes on.
    fn killed_save(&mut self, old: Save) -> Result<(), Failure> {
        let killed = Save {
            step: 3,
            attempt: 1,
        };
        self.begin([old], [killed]);
        let stop = Rule::new(Fault::Stop);
        let stop = match self.draws.below(4) {
            // The moment that matters most: after the rename, before the parent's sync.
            0 => stop.op(Op::SyncDir).nth(3),
            _ => stop.nth(self.draws.below(300)),
        };
        let dying: Arc<dyn Vfs> = Arc::new(FaultFs::new(Arc::clone(&self.vfs), vec![stop]));
        // Whether it was done before it was killed, the next process must find out.
        let _ = script::save_mixed(&dying, Path::new(RUN), killed, &mut self.draws);

        let newest = newest_in(Arc::clone(&self.vfs), RUN)?;
        let step = newest.committed.and_then(|found| found.step());
        let is_done = step == Some(killed.step);

        // No sync has been seen by this process: the removal must not trust the name it sees.
        self.begin([], [old, killed]);
        self.keep_one()?;
        let kept = if is_done { killed } else { old };
        self.done([kept]);

        let next = Save {
            step: kept.step + 1,
            attempt: 2,
        };
        self.begin([kept], [next]);
        self.save(next)?;
        self.done([kept, next]);

        self.begin([next], [kept]);
        self.keep_one()?;
        self.done([next]);
        Ok(())
    }

    fn save(&mut self, save: Save) -> Result<(), Failure> {
        script::save_mixed(&self.vfs, Path::new(RUN), save, &mut self.draws)?;
        Ok(())
    }

    fn keep_one(&self) -> Result<(), Failure> {
        keep_last_in(Arc::clone(&self.vfs), RUN, NonZeroUsize::MIN)?;
        Ok(())
    }

    /// From the next operation on these may come or go.
    fn begin<const M: usize, const N: usize>(&mut self, must: [Save; M], may: [Save; N]) {
        let expect = Expect {
            must: must.into(),
            may: may.into(),
            at_least: self.done,
        };
        self.expected.push((self.sim.recorded(), expect));
    }

    /// After the last operation exactly these are there.
    fn done<const M: usize>(&mut self, must: [Save; M]) {
        self.done = M.min(1);
        let expect = Expect {
            must: must.into(),
            ..Expect::default()
        };
        let last = self.sim.recorded().saturating_sub(1);
        self.expected.push((last, expect));
    }
}
