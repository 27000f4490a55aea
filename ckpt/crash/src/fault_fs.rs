//! A file system that injects faults.
//!
//! A [`Rule`] selects operations (by kind, path and count) and the fault that is injected into
//! them. The first matching rule applies. [`Fault::Skip`] removes a step from a protocol without a
//! change of its code, to show that a test detects the missing step.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meshgrad_ckpt::vfs::{Lock, Metadata, Vfs, VfsFile};

use crate::rule::{Fault, Op, Rule};

/// Wraps a file system and injects faults. Clones share rules and counts.
#[derive(Debug, Clone)]
pub struct FaultFs {
    inner: Arc<dyn Vfs>,
    faults: Arc<Faults>,
}

#[derive(Debug)]
struct Faults {
    rules: Vec<Rule>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    log: Vec<(Op, PathBuf)>,
    stopped: bool,
    /// Files whose sync failed. Their cached bytes are lost although later syncs succeed.
    lost: BTreeSet<PathBuf>,
}

/// How to run an operation.
enum Verdict {
    Do,
    DoOneByte,
    Pretend,
    DoThen(Arc<dyn Fn() + Send + Sync>),
}

impl FaultFs {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Vfs>, rules: Vec<Rule>) -> FaultFs {
        let state = Mutex::default();
        FaultFs { inner, faults: Arc::new(Faults { rules, state }) }
    }

    /// The operations so far, including failed ones; a rename is logged with its path `to`.
    pub fn log(&self) -> Vec<(Op, PathBuf)> {
        self.faults.state().log.clone()
    }

    fn result<T>(
        &self,
        op: Op,
        path: &Path,
        run: impl FnOnce(&dyn Vfs) -> io::Result<T>,
    ) -> io::Result<T> {
        let verdict = self.faults.meet(op, path)?;
        let done = run(&*self.inner);
        verdict.after();
        done
    }

    fn unit(
        &self,
        op: Op,
        path: &Path,
        run: impl FnOnce(&dyn Vfs) -> io::Result<()>,
    ) -> io::Result<()> {
        self.faults.unit(op, path, || run(&*self.inner))
    }

    fn file(&self, path: &Path, file: Box<dyn VfsFile>) -> Box<dyn VfsFile> {
        Box::new(FaultFile { path: path.to_owned(), file, faults: Arc::clone(&self.faults) })
    }
}

impl Verdict {
    fn after(self) {
        if let Verdict::DoThen(call) = self {
            call();
        }
    }
}

impl Faults {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meet(&self, op: Op, path: &Path) -> io::Result<Verdict> {
        let stopped = || io::Error::other("the process has stopped");
        {
            let mut state = self.state();
            if state.stopped {
                return Err(stopped());
            }
            state.log.push((op, path.to_owned()));
        }

        match self.rules.iter().find(|rule| rule.matches(op, path)) {
            None => Ok(Verdict::Do),
            Some(rule) => match &rule.fault {
                Fault::Fail(kind) => {
                    if op == Op::SyncData {
                        self.state().lost.insert(path.to_owned());
                    }
                    Err(io::Error::from(*kind))
                }
                Fault::FailWith(number) => Err(io::Error::from_raw_os_error(*number)),
                Fault::Short => Ok(Verdict::DoOneByte),
                Fault::Skip => Ok(Verdict::Pretend),
                Fault::Stop => {
                    self.state().stopped = true;
                    Err(stopped())
                }
                Fault::Before(call) => {
                    call();
                    Ok(Verdict::Do)
                }
                Fault::After(call) => Ok(Verdict::DoThen(Arc::clone(call))),
            },
        }
    }

    fn unit(&self, op: Op, path: &Path, run: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let verdict = self.meet(op, path)?;
        let is_lost = op == Op::SyncData && self.state().lost.contains(path);
        if is_lost || matches!(verdict, Verdict::Pretend) {
            return Ok(());
        }
        let done = run();
        verdict.after();
        done
    }

    /// Transfers up to `len` bytes.
    fn transfer(
        &self,
        op: Op,
        path: &Path,
        len: usize,
        run: impl FnOnce(usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let verdict = self.meet(op, path)?;
        let done = match verdict {
            Verdict::DoOneByte => run(len.min(1)),
            Verdict::Pretend => Ok(len),
            _ => run(len),
        };
        verdict.after();
        done
    }
}

impl Vfs for FaultFs {
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        let file = self.result(Op::CreateNew, path, |fs| fs.create_new(path))?;
        // The new file is not the one whose bytes were lost.
        self.faults.state().lost.remove(path);
        Ok(self.file(path, file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        let file = self.result(Op::Open, path, |fs| fs.open(path))?;
        Ok(self.file(path, file))
    }

    fn open_below(&self, folder: &Path, below: &str) -> io::Result<Box<dyn VfsFile>> {
        let path = folder.join(below);
        let file = self.result(Op::Open, &path, |fs| fs.open_below(folder, below))?;
        Ok(self.file(&path, file))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn VfsFile>> {
        let file = self.result(Op::OpenToWrite, path, |fs| fs.open_to_write(path))?;
        Ok(self.file(path, file))
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.unit(Op::MakeDir, path, |fs| fs.make_dir(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.unit(Op::RemoveDir, path, |fs| fs.remove_dir(path))
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.unit(Op::Unlink, path, |fs| fs.unlink(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.unit(Op::Rename, to, |fs| fs.rename(from, to))
    }

    fn rename_no_replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.unit(Op::RenameNoReplace, to, |fs| fs.rename_no_replace(from, to))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.unit(Op::SyncDir, path, |fs| fs.sync_dir(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.result(Op::List, path, |fs| fs.list(path))
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.result(Op::Metadata, path, |fs| fs.metadata(path))
    }

    fn space(&self, path: &Path) -> Option<u64> {
        self.inner.space(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Lock> {
        self.result(Op::Lock, path, |fs| fs.lock(path))
    }

    fn unique(&self) -> u64 {
        self.inner.unique()
    }
}

#[derive(Debug)]
struct FaultFile {
    path: PathBuf,
    file: Box<dyn VfsFile>,
    faults: Arc<Faults>,
}

impl VfsFile for FaultFile {
    fn size(&self) -> io::Result<u64> {
        let verdict = self.faults.meet(Op::Size, &self.path)?;
        let size = self.file.size();
        verdict.after();
        size
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = buffer.len();
        self.faults.transfer(Op::Read, &self.path, len, |len| {
            self.file.read_at(&mut buffer[..len], offset)
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let len = bytes.len();
        self.faults
            .transfer(Op::Write, &self.path, len, |len| self.file.write_at(&bytes[..len], offset))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let allocate = || self.file.allocate(len);
        self.faults.unit(Op::Allocate, &self.path, allocate)
    }

    fn sync_data(&self) -> io::Result<()> {
        let sync = || self.file.sync_data();
        self.faults.unit(Op::SyncData, &self.path, sync)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim_fs::{SimFs, Survivors};

    fn faulty(rule: Rule) -> (SimFs, FaultFs) {
        let sim = SimFs::new();
        let faulty = FaultFs::new(Arc::new(sim.clone()), vec![rule]);
        (sim, faulty)
    }

    #[test]
    fn only_the_chosen_operation_fails() {
        let rule = Rule::new(Fault::Fail(io::ErrorKind::StorageFull));
        let (_, fs) = faulty(rule.op(Op::Write).path("b").nth(1));
        let [a, b] = ["/a", "/b"].map(|path| fs.create_new(Path::new(path)).unwrap());

        assert_eq!(a.write_at(b"12", 0).unwrap(), 2);
        assert_eq!(b.write_at(b"12", 0).unwrap(), 2);
        assert_eq!(a.write_at(b"34", 2).unwrap(), 2);
        let kind = b.write_at(b"34", 2).unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::StorageFull);
        assert_eq!(b.write_at(b"34", 2).unwrap(), 2);
        assert_eq!(fs.log().len(), 7);
    }

    /// As on Linux, a sync that succeeds after a failed one has not written the lost pages.
    #[test]
    fn bytes_of_a_failed_sync_stay_lost() {
        let rule = Rule::new(Fault::Fail(io::ErrorKind::Other));
        let (sim, fs) = faulty(rule.op(Op::SyncData).nth(0));
        let file = fs.create_new(Path::new("/x")).unwrap();
        fs.sync_dir(Path::new("/")).unwrap();
        file.write_at(b"data", 0).unwrap();

        assert!(file.sync_data().is_err());
        assert!(file.sync_data().is_ok());
        let after = sim.after_crash(Survivors::None);
        assert_eq!(after.metadata(Path::new("/x")).unwrap().bytes, 0);
    }

    #[test]
    fn a_stopped_process_does_nothing() {
        let (sim, fs) = faulty(Rule::new(Fault::Stop).op(Op::MakeDir).nth(1));
        fs.make_dir(Path::new("/a")).unwrap();
        assert!(fs.make_dir(Path::new("/b")).is_err());
        assert!(fs.remove_dir(Path::new("/a")).is_err());
        assert_eq!(sim.list(Path::new("/")).unwrap(), ["a"]);
    }

    #[test]
    fn short_and_skipped_operations_look_successful() {
        let (sim, fs) = faulty(Rule::new(Fault::Short));
        let file = fs.create_new(Path::new("/x")).unwrap();
        assert_eq!(file.write_at(b"abc", 0).unwrap(), 1);
        assert_eq!(sim.metadata(Path::new("/x")).unwrap().bytes, 1);

        let (sim, fs) = faulty(Rule::new(Fault::Skip).op(Op::MakeDir));
        fs.make_dir(Path::new("/a")).unwrap();
        assert!(sim.metadata(Path::new("/a")).is_err());
    }
}
