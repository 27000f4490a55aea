//! What the drill saves, and what may be found of it.
//!
//! The bytes of a save follow from its step and its attempt: attempts at one step differ, so that a
//! mixture of two is no save at all.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::discover::{names_in, scan_in};
use crate::splitmix::SplitMix64;
use crate::vfs::{self, Vfs};
use crate::{Committed, sweep_in};

/// One try to save a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Save {
    pub(crate) step: u64,
    pub(crate) attempt: u64,
}

/// The files of every save that are written in parts.
pub(crate) const SHARED_FILES: [&str; 4] = [
    "a.safetensors",
    "b.safetensors",
    "trainer/a.bin",
    "trainer/b.bin",
];

/// The file that one writer writes.
pub(crate) const STATE_FILE: &str = "trainer/state.json";

impl Save {
    /// What a file of it holds: some thousand bytes.
    pub(crate) fn content(self, file: &str) -> Vec<u8> {
        if file == STATE_FILE {
            let Save { step, attempt } = self;
            return format!("{{\"step\":{step},\"attempt\":{attempt}}}\n").into_bytes();
        }
        let name = crate::Digest::of(file.as_bytes()).0;
        let mut draws = SplitMix64::new(name ^ (self.step << 32) ^ self.attempt);
        let len = 1500 + draws.below(3000) as usize;
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(draws.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Which save a checkpoint says to be.
    fn named_by(committed: &Committed) -> Option<Save> {
        let number = |key| committed.about().get(key)?.as_u64();
        Some(Save {
            step: number("step")?,
            attempt: number("attempt")?,
        })
    }
}

/// What may be found from one operation on until the next expectation holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expect {
    /// These must be there.
    pub(crate) must: BTreeSet<Save>,
    /// These may be there too.
    pub(crate) may: BTreeSet<Save>,
    /// So many at least.
    pub(crate) at_least: usize,
}

impl Expect {
    fn allows(&self, found: &BTreeSet<Save>) -> Result<(), String> {
        if let Some(lost) = self.must.difference(found).next() {
            return Err(format!(
                "{lost:?} was saved and is not found, but {found:?}"
            ));
        }
        let known: BTreeSet<Save> = self.must.union(&self.may).copied().collect();
        if let Some(odd) = found.difference(&known).next() {
            return Err(format!("{odd:?} is found and should not be"));
        }
        if found.len() < self.at_least {
            let least = self.at_least;
            return Err(format!("{least} should be left, {found:?} are found"));
        }
        Ok(())
    }
}

/// The saves that a recovery finds, each compared byte for byte.
///
/// # Errors
/// What is wrong with one, in words: nothing incomplete may have the name of a step.
pub(crate) fn recover(vfs: &Arc<dyn Vfs>, run: &Path) -> Result<BTreeSet<Save>, String> {
    let scan = scan_in(Arc::clone(vfs), run).map_err(|error| error.to_string())?;
    if let Some(error) = scan.incomplete.first() {
        return Err(error.to_string());
    }
    scan.complete
        .iter()
        .map(|found| check_bytes(&**vfs, found))
        .collect()
}

/// [`recover`], and that the found ones are those that are expected.
pub(crate) fn check(
    vfs: &Arc<dyn Vfs>,
    run: &Path,
    expect: &Expect,
) -> Result<BTreeSet<Save>, String> {
    let found = recover(vfs, run)?;
    expect.allows(&found)?;
    Ok(found)
}

/// A sweep removes all leftovers and nothing else.
pub(crate) fn check_sweep(
    vfs: &Arc<dyn Vfs>,
    run: &Path,
    found: &BTreeSet<Save>,
) -> Result<(), String> {
    sweep_in(Arc::clone(vfs), run).map_err(|error| error.to_string())?;
    if recover(vfs, run)? != *found {
        return Err("a sweep changed what is found".to_owned());
    }
    let names = names_in(&**vfs, run).map_err(|error| error.to_string())?;
    match names.iter().find(|name| name.starts_with('.')) {
        Some(left) => Err(format!("{left} is left after a sweep")),
        None => Ok(()),
    }
}

fn check_bytes(vfs: &dyn Vfs, committed: &Committed) -> Result<Save, String> {
    let path = committed.path().display();
    let save = Save::named_by(committed).ok_or_else(|| format!("{path} names no save"))?;
    if committed.step() != Some(save.step) {
        return Err(format!("{path} holds {save:?}"));
    }

    let found: Vec<&str> = committed.files().map(|(file, _)| file).collect();
    let mut expected = SHARED_FILES.to_vec();
    expected.push(STATE_FILE);
    expected.sort_unstable();
    if found != expected {
        return Err(format!("{path} holds {found:?}"));
    }
    for file in found {
        let bytes = read(vfs, &committed.path().join(file)).map_err(|error| error.to_string())?;
        if bytes != save.content(file) {
            return Err(format!(
                "{file} of {path} is complete and not what was saved"
            ));
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
