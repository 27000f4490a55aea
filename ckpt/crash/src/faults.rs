//! Errors at every operation: a save either returns the error or succeeds.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use meshgrad_ckpt::vfs::Vfs;
use meshgrad_ckpt::{NoSpace, Result, keep_last_in};

use crate::fault_fs::FaultFs;
use crate::invariant::{self, Expect, Save};
use crate::rule::{Fault, Op, Rule};
use crate::script;
use crate::sim_fs::{SimFs, Survivors};
use crate::splitmix::SplitMix64;

const RUN: &str = "/run";

const OLD: Save = Save { step: 1, attempt: 1 };
const NEW: Save = Save { step: 2, attempt: 1 };

/// The results of a save and a removal on a faulty disk.
struct Outcome {
    sim: SimFs,
    log: Vec<(Op, std::path::PathBuf)>,
    saved: Result<()>,
    removed: Option<Result<()>>,
}

fn has_no_space(saved: &Result<()>) -> bool {
    saved.as_ref().is_err_and(|error| error.details::<NoSpace>().is_some())
}

fn save_with(rules: Vec<Rule>) -> Outcome {
    let sim = SimFs::new();
    let run = Path::new(RUN);
    sim.make_dir(run).unwrap();
    sim.sync_dir(Path::new("/")).unwrap();
    let clean: Arc<dyn Vfs> = Arc::new(sim.clone());
    script::save_mixed(&clean, run, OLD, &mut SplitMix64::new(1)).unwrap();

    let faulty = FaultFs::new(clean, rules);
    let vfs: Arc<dyn Vfs> = Arc::new(faulty.clone());
    let saved = script::save_mixed(&vfs, run, NEW, &mut SplitMix64::new(2)).map(|_| ());
    let removed = saved.is_ok().then(|| keep_last_in(vfs, run, NonZeroUsize::MIN).map(|_| ()));
    Outcome { sim, log: faulty.log(), saved, removed }
}

impl Outcome {
    /// The saves that a recovery may find. `faulty` is the operation that failed.
    fn expect(&self, faulty: Option<Op>) -> Expect {
        // A checkpoint that cannot be read counts as incomplete and is not removed.
        let is_all_known = faulty.is_none_or(Op::is_change);
        let (must, may) = match (&self.saved, &self.removed) {
            (Ok(()), Some(Ok(()))) if is_all_known => (vec![NEW], vec![]),
            (Ok(()), _) => (vec![NEW], vec![OLD]),
            // After a failed sync of the parent the new checkpoint may exist or not.
            (Err(_), _) => (vec![OLD], vec![NEW]),
        };
        Expect { must: must.into_iter().collect(), may: may.into_iter().collect(), at_least: 1 }
    }

    /// Checks the state right after the error, and after power cuts.
    fn check(&self, faulty: Option<Op>) -> std::result::Result<(), String> {
        let (run, expect) = (Path::new(RUN), self.expect(faulty));
        let now: Arc<dyn Vfs> = Arc::new(self.sim.clone());
        invariant::check(&now, run, &expect)?;

        let random = (0..8).map(Survivors::Random);
        for survivors in [Survivors::None, Survivors::All].into_iter().chain(random) {
            let left: Arc<dyn Vfs> = Arc::new(self.sim.after_crash(survivors));
            let found = invariant::check(&left, run, &expect)
                .map_err(|problem| format!("{problem} ({survivors} reached the disk)"))?;
            invariant::check_sweep(&left, run, &found)?;
        }

        // The process can continue to save despite leftovers.
        let found: BTreeSet<Save> = invariant::recover(&now, run)?;
        invariant::check_sweep(&now, run, &found)?;
        let next = Save { step: 9, attempt: 9 };
        script::save_mixed(&now, run, next, &mut SplitMix64::new(3)).map_err(|e| e.to_string())?;
        Ok(())
    }
}

/// Every operation of a save and a removal fails once with each kind of error.
#[test]
fn errors_at_any_operation_lose_nothing() {
    let operations = save_with(vec![]).log.len() as u64;
    assert!(operations > 150, "{operations}");

    let (mut positions, mut failed) = (0, 0);
    for kind in
        [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::Other, ErrorKind::Interrupted]
    {
        for nth in 0..operations {
            let outcome = save_with(vec![Rule::new(Fault::Fail(kind)).nth(nth)]);
            let (op, path) = outcome.log[nth as usize].clone();
            let context = || format!("{kind:?} at operation {nth} ({op:?} of {path:?})");
            let checked = outcome.check(Some(op));
            checked.unwrap_or_else(|problem| panic!("{}: {problem}", context()));
            positions += 1;
            failed += u64::from(outcome.saved.is_err());

            // Every write to a full disk fails with `NoSpace`.
            let is_full = matches!(op, Op::Write | Op::Allocate | Op::SyncData)
                && matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
            if is_full {
                let is_named = has_no_space(&outcome.saved);
                assert!(is_named, "{}: {:?}", context(), outcome.saved);
            }
        }
    }
    assert!(positions > 500 && failed > 400, "{failed} of {positions}");
}

/// Interrupted and short reads and writes are continued, not reported.
#[test]
fn interrupted_and_short_transfers_are_continued() {
    let transfers = |op| {
        let log = save_with(vec![]).log;
        log.iter().filter(|(of, _)| *of == op).count() as u64
    };
    for op in [Op::Read, Op::Write] {
        for nth in 0..transfers(op) {
            for fault in [Fault::Fail(ErrorKind::Interrupted), Fault::Short] {
                let outcome = save_with(vec![Rule::new(fault.clone()).op(op).nth(nth)]);
                assert!(outcome.saved.is_ok(), "{fault:?} at {op:?} {nth}: {:?}", outcome.saved);
                assert!(matches!(outcome.removed, Some(Ok(()))));
                outcome.check(None).unwrap();
            }
        }
        // All operations of this kind are short: one byte at a time.
        let outcome = save_with(vec![Rule::new(Fault::Short).op(op)]);
        assert!(outcome.saved.is_ok(), "{:?}", outcome.saved);
        outcome.check(None).unwrap();
    }
}

/// Space is allocated for all files before the first byte is written.
#[test]
fn a_full_disk_is_reported_before_the_first_write() {
    let full = Rule::new(Fault::Fail(ErrorKind::StorageFull));
    let outcome = save_with(vec![full.op(Op::Allocate).nth(3)]);
    assert!(has_no_space(&outcome.saved));
    assert!(outcome.log.iter().all(|(op, _)| *op != Op::Write));
}

/// After a failed sync, a second one would succeed without writing the data, so the save ends.
#[test]
fn a_failed_sync_is_never_retried() {
    let syncs = save_with(vec![]);
    let syncs = syncs.log.iter().filter(|(op, _)| *op == Op::SyncData);
    for nth in 0..syncs.count() as u64 {
        let fault = Rule::new(Fault::Fail(ErrorKind::Other));
        let outcome = save_with(vec![fault.op(Op::SyncData).nth(nth)]);
        assert!(outcome.saved.is_err());

        let synced = outcome.log.iter().filter(|(op, _)| *op == Op::SyncData);
        assert_eq!(synced.count() as u64, nth + 1, "the save ends with the failed sync");
    }
}
