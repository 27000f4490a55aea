//! Which rank of a launch failed first.
//!
//! A failure of one rank ends the others, and any of them may end before it. So the first rank that
//! learns of a failure writes down which rank failed, in a file that its launcher reads.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The variable with the path of the file.
pub(crate) const VARIABLE: &str = "MESHGRAD_FAILED";

/// Writes down that `rank` failed, unless a failure is known or no launcher asks.
pub(crate) fn report_failure(rank: usize) {
    if let Some(path) = std::env::var_os(VARIABLE) {
        // If it cannot be written, the launcher names the rank that ended first.
        let _ = write(Path::new(&path), rank);
    }
}

/// Writes the file in one step, unless it exists.
fn write(path: &Path, rank: usize) -> io::Result<()> {
    let aside = path.with_extension(std::process::id().to_string());
    let mut file = OpenOptions::new().write(true).create_new(true).open(&aside)?;
    let written = write!(file, "{rank}").and_then(|()| fs::hard_link(&aside, path));
    fs::remove_file(&aside)?;
    written
}

/// The file of a launch, which is removed when dropped.
pub(crate) struct FailureFile(PathBuf);

impl FailureFile {
    /// A file in the folder of temporary files. No other launch has `name`.
    pub(crate) fn new(name: &str) -> FailureFile {
        FailureFile(std::env::temp_dir().join(format!("meshgrad-failed-{name}")))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The rank that failed first, if one was written down.
    pub(crate) fn rank(&self) -> Option<usize> {
        fs::read_to_string(&self.0).ok()?.parse().ok()
    }
}

impl Drop for FailureFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // it exists only after a failure
    }
}
