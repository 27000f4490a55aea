//! What the crash tests save, and which saves a recovery may find.
//!
//! The bytes of a save depend on its step and its attempt. Attempts at one step differ, so a
//! mixture of two attempts equals neither.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use meshgrad_ckpt::vfs::{self, Vfs};
use meshgrad_ckpt::{Committed, Digest, scan_in, sweep_in};

use crate::splitmix::SplitMix64;

/// One attempt to save a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Save {
    pub(crate) step: u64,
    pub(crate) attempt: u64,
}

/// The files of a save that several writers write together.
pub(crate) const SHARED_FILES: [&str; 4] =
    ["a.safetensors", "b.safetensors", "trainer/a.bin", "trainer/b.bin"];

/// The file of a save that a single writer writes.
pub(crate) const STATE_FILE: &str = "trainer/state.json";

impl Save {
    /// The content of one of its files, a few thousand bytes.
    pub(crate) fn content(self, file: &str) -> Vec<u8> {
        if file == STATE_FILE {
            let Save { step, attempt } = self;
            return format!("{{\"step\":{step},\"attempt\":{attempt}}}\n").into_bytes();
        }
        let name = Digest::of(file.as_bytes()).0;
        let mut random = SplitMix64::new(name ^ (self.step << 32) ^ self.attempt);
        let len = 1500 + random.below(3000) as usize;
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(random.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// The save that a checkpoint's manifest names.
    fn named_by(committed: &Committed) -> Option<Save> {
        let number = |key| committed.about().get(key)?.as_u64();
        Some(Save { step: number("step")?, attempt: number("attempt")? })
    }
}

/// The saves that a recovery may find.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expect {
    /// These must be found.
    pub(crate) must: BTreeSet<Save>,
    /// These may be found too.
    pub(crate) may: BTreeSet<Save>,
    /// The least number of saves.
    pub(crate) at_least: usize,
}

impl Expect {
    fn allows(&self, found: &BTreeSet<Save>) -> Result<(), String> {
        if let Some(lost) = self.must.difference(found).next() {
            return Err(format!("{lost:?} was saved but not found; found {found:?}"));
        }
        let known: BTreeSet<Save> = self.must.union(&self.may).copied().collect();
        if let Some(odd) = found.difference(&known).next() {
            return Err(format!("{odd:?} was found but not expected"));
        }
        if found.len() < self.at_least {
            let least = self.at_least;
            return Err(format!("expected at least {least}; found {found:?}"));
        }
        Ok(())
    }
}

/// The saves that a recovery finds, each compared byte by byte.
///
/// # Errors
/// A description of the first problem. A folder with the name of a step must be complete.
pub(crate) fn recover(vfs: &Arc<dyn Vfs>, run: &Path) -> Result<BTreeSet<Save>, String> {
    let scan = scan_in(Arc::clone(vfs), run).map_err(|error| error.to_string())?;
    if let Some(error) = scan.incomplete.first() {
        return Err(error.to_string());
    }
    scan.complete.iter().map(|found| check_bytes(&**vfs, found)).collect()
}

/// Calls [`recover`] and checks that the saves are the expected ones.
pub(crate) fn check(
    vfs: &Arc<dyn Vfs>,
    run: &Path,
    expect: &Expect,
) -> Result<BTreeSet<Save>, String> {
    let found = recover(vfs, run)?;
    expect.allows(&found)?;
    Ok(found)
}

/// Checks that `sweep` removes all leftovers and nothing else.
pub(crate) fn check_sweep(
    vfs: &Arc<dyn Vfs>,
    run: &Path,
    found: &BTreeSet<Save>,
) -> Result<(), String> {
    sweep_in(Arc::clone(vfs), run).map_err(|error| error.to_string())?;
    if recover(vfs, run)? != *found {
        return Err("`sweep` changed the checkpoints that are found".to_owned());
    }
    let mut names = vfs.list(run).map_err(|error| error.to_string())?;
    names.sort_unstable();
    match names.iter().find(|name| name.as_encoded_bytes().starts_with(b".")) {
        Some(left) => Err(format!("`sweep` did not remove {}", left.display())),
        None => Ok(()),
    }
}

fn check_bytes(vfs: &dyn Vfs, committed: &Committed) -> Result<Save, String> {
    let path = committed.path().display();
    let save =
        Save::named_by(committed).ok_or_else(|| format!("the manifest of {path} names no save"))?;
    if committed.step() != Some(save.step) {
        return Err(format!("{path} contains {save:?}"));
    }

    let found: Vec<&str> = committed.files().map(|(file, _)| file).collect();
    let mut expected = SHARED_FILES.to_vec();
    expected.push(STATE_FILE);
    expected.sort_unstable();
    if found != expected {
        return Err(format!("{path} contains the files {found:?}"));
    }
    for file in found {
        let bytes = read(vfs, &committed.path().join(file)).map_err(|error| error.to_string())?;
        if bytes != save.content(file) {
            return Err(format!("{file} of {path} differs from what was saved"));
        }
    }
    Ok(save)
}

fn read(vfs: &dyn Vfs, path: &Path) -> std::io::Result<Vec<u8>> {
    let file = vfs.open(path)?;
    let mut bytes = vec![0; file.size()? as usize];
    let read = vfs::read_full_at(&*file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
