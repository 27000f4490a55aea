//! Power cuts, kills and deaths at every point of the commit protocol, as in `meshgrad ckpt
//! crash-test`, and proof that broken protocols are caught.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::{env, fs};

use meshgrad_ckpt::vfs::{Lock, Metadata, Vfs, VfsFile};
use meshgrad_ckpt_crash::{
    CrashTest, Failure, Fault, FaultFs, Job, Op, Round, Rule, STATES_PER_OPERATION, SimFs, Summary,
    Violation, die_at_points, run, run_job,
};

const JOB: &str = "MESHGRAD_CKPT_CRASH_JOB";

/// A process of a crash test. Returns immediately unless it was given a job.
#[test]
fn child_runs_its_job() {
    if let Ok(job) = env::var(JOB) {
        // The error is ignored: a job fails after another process of the test has exited.
        let _ = run_job(&job);
    }
}

fn spawn(job: &Job) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "crash::child_runs_its_job", "--nocapture"]).env(JOB, job.argument());
    command
}

/// The larger number with `MESHGRAD_EXHAUSTIVE=1`, which `scripts/slow-checks suites` sets.
fn sample(few: u64, all: u64) -> u64 {
    if env::var_os("MESHGRAD_EXHAUSTIVE").is_some() { all } else { few }
}

/// The seed of the sample: `MESHGRAD_TEST_SEED`, else 1.
fn seed() -> u64 {
    let seed = env::var("MESHGRAD_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("MESHGRAD_TEST_SEED={seed}");
    seed
}

/// After a power cut at any operation, a recovery finds exactly the old checkpoint or the new one.
#[test]
fn a_power_cut_at_any_operation_leaves_old_or_new() {
    let states = sample(3_000, 100_000);
    let each = sample(2, STATES_PER_OPERATION as u64) as usize; // every operation is in a sample
    let mut summary = Summary::default();
    for seed in seed().. {
        let round = Round::run(seed, &|sim| Arc::new(sim)).unwrap();
        let checked = round.check(each, states, &mut summary, &mut |_| {});
        checked.unwrap_or_else(|failure| panic!("{failure}"));
        if summary.states == states {
            break;
        }
    }
    println!("{summary:?}");
    assert!(summary.operations / summary.rounds > 250, "{summary:?}");
    assert!(summary.early > summary.states / 100, "the critical states were met: {summary:?}");
}

/// Kills real processes.
#[test]
fn kills_lose_nothing_that_was_saved() {
    let kills = sample(20, 200);
    let folder = tempfile::tempdir().unwrap();
    let test = CrashTest { folder: folder.path().to_owned(), states: 0, kills, seed: seed() };
    let summary = run(&test, &spawn, &mut |_| {}).unwrap_or_else(|f| panic!("{f}"));
    println!("{summary:?}");
    assert_eq!(summary.kills, kills);
    assert!(summary.saves >= kills, "{summary:?}");
    assert!(fs::read_dir(folder.path()).unwrap().count() <= 3);
}

/// Each of four processes dies at each of its points: before and after the operations that
/// `point.rs` lists.
#[test]
fn death_at_any_point_of_any_process_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let summary = die_at_points(folder.path(), &spawn, &mut |_| {});
    let summary = summary.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(summary.kills > 100, "{summary:?}");
}

/// The first violation in a few rounds on a broken disk.
fn violation(wrap: &dyn Fn(SimFs) -> Arc<dyn Vfs>) -> Option<Violation> {
    for seed in 0..6 {
        let round = Round::run(seed, wrap).unwrap();
        let checked = round.check(16, u64::MAX, &mut Summary::default(), &mut |_| {});
        match checked {
            Ok(()) => {}
            Err(Failure::Violation(violation)) => return Some(violation),
            Err(broken) => panic!("{broken}"),
        }
    }
    None
}

/// Skipping any sync breaks the invariant: the protocol needs each, and the test notices.
#[test]
fn a_protocol_without_a_sync_is_caught() {
    let skip = |op, part: &'static str| {
        move |sim: SimFs| -> Arc<dyn Vfs> {
            let rule = Rule::new(Fault::Skip).op(op).path(part);
            Arc::new(FaultFs::new(Arc::new(sim), vec![rule]))
        }
    };
    for (op, part) in [
        (Op::SyncData, ".safetensors"),
        (Op::SyncData, "state.json"),
        (Op::SyncData, "manifest.json"),
        (Op::SyncDir, "trainer"),
        (Op::SyncDir, ".tmp-"),
        (Op::SyncDir, ""),
    ] {
        let violation = violation(&skip(op, part));
        let violation =
            violation.unwrap_or_else(|| panic!("skipping {op:?} of {part:?} is not noticed"));
        let text = violation.to_string();
        assert!(text.contains("power cut after operation") && text.contains("--seed"), "{text}");
    }
    assert!(violation(&|sim| Arc::new(sim)).is_none());
}

/// Skips one sync of the parent folder. In a round, syncs 0 and 1 belong to two commits. Syncs 2
/// and 3 come before and after the rename that removes an old checkpoint. If a process was killed
/// before its commit synced, sync 4 is the next process's sync before its first removal. Sync 2 is
/// not skipped here, because the commit before it has already synced the folder.
#[test]
fn every_sync_of_the_parent_is_needed() {
    #[derive(Debug)]
    struct Without(SimFs, AtomicU64, u64);

    for (skipped, problem) in [
        (0, "was saved but not found"),
        (1, "was saved but not found"),
        (3, "is not a complete checkpoint"),
        (4, "expected at least 1; found {}"),
    ] {
        let wrap = |sim| -> Arc<dyn Vfs> {
            Arc::new(Wrapped::new(Without(sim, AtomicU64::new(0), skipped)))
        };
        let found =
            violation(&wrap).unwrap_or_else(|| panic!("skipping sync {skipped} is not noticed"));
        assert!(found.problem.contains(problem), "{skipped}: {found}");
    }

    impl Broken for Without {
        fn sim(&self) -> &SimFs {
            &self.0
        }
        fn sync_dir(&self, path: &Path) -> io::Result<()> {
            let is_parent = path.ends_with("run");
            if is_parent && self.1.fetch_add(1, Ordering::Relaxed) == self.2 {
                return Ok(());
            }
            self.0.sync_dir(path)
        }
    }
}

/// Every file is synced, but only after the rename.
#[test]
fn a_protocol_that_renames_before_it_syncs_is_caught() {
    #[derive(Debug)]
    struct Late(SimFs, Mutex<Vec<Box<dyn VfsFile>>>);

    let text = violation(&|sim| Arc::new(Wrapped::new(Late(sim, Mutex::default()))));
    let text = text.unwrap().to_string();
    assert!(text.contains("step-000001") && text.contains("(rename "), "{text}");

    impl Broken for Late {
        fn sim(&self) -> &SimFs {
            &self.0
        }
        fn sync_data(&self, file: Box<dyn VfsFile>) -> io::Result<()> {
            self.1.lock().unwrap().push(file);
            Ok(())
        }
        fn rename_no_replace(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.0.rename_no_replace(from, to)?;
            let files = std::mem::take(&mut *self.1.lock().unwrap());
            files.iter().try_for_each(|file| file.sync_data())
        }
    }
}

/// A simulated disk with some broken operations.
trait Broken: std::fmt::Debug + Send + Sync {
    fn sim(&self) -> &SimFs;

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.sim().sync_dir(path)
    }

    fn sync_data(&self, file: Box<dyn VfsFile>) -> io::Result<()> {
        file.sync_data()
    }

    fn rename_no_replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.sim().rename_no_replace(from, to)
    }
}

#[derive(Debug, Clone)]
struct Wrapped(Arc<dyn Broken>);

impl Wrapped {
    fn new(broken: impl Broken + 'static) -> Wrapped {
        Wrapped(Arc::new(broken))
    }

    fn file(&self, path: &Path, file: Box<dyn VfsFile>) -> Box<dyn VfsFile> {
        let (fs, path) = (self.clone(), path.to_owned());
        // A second handle, because the rename changes the path before the late sync.
        let again = fs.0.sim().open_to_write(&path).map_or_else(|_| Vec::new(), |file| vec![file]);
        Box::new(WrappedFile { fs, file, again: Mutex::new(again) })
    }
}

impl Vfs for Wrapped {
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        let file = self.0.sim().create_new(path)?;
        Ok(self.file(path, file))
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        self.0.sim().open(path)
    }
    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        let file = self.0.sim().open_to_write(path)?;
        Ok(self.file(path, file))
    }
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.0.sim().make_dir(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.0.sim().remove_dir(path)
    }
    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.0.sim().unlink(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.sim().rename(from, to)
    }
    fn rename_no_replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename_no_replace(from, to)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.0.sync_dir(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.0.sim().list(path)
    }
    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.0.sim().metadata(path)
    }
    fn space(&self, path: &Path) -> Option<u64> {
        self.0.sim().space(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Lock> {
        self.0.sim().lock(path)
    }
    fn unique(&self) -> u64 {
        self.0.sim().unique()
    }
}

#[derive(Debug)]
struct WrappedFile {
    fs: Wrapped,
    file: Box<dyn VfsFile>,
    again: Mutex<Vec<Box<dyn VfsFile>>>,
}

impl VfsFile for WrappedFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(bytes, offset)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        match self.again.lock().unwrap().pop() {
            Some(file) => self.fs.0.sync_data(file),
            None => self.file.sync_data(),
        }
    }
}
