//! The choice of where a run starts.

use std::path::PathBuf;

/// Where a run starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Resume {
    /// At the newest intact checkpoint of the run folder; from scratch if there is no checkpoint.
    #[default]
    Auto,
    /// From scratch. Checkpoints and metrics in the folder are moved to `set-aside-N`.
    Never,
    /// At this checkpoint, or at the newest intact one of this run. If it belongs to another run
    /// than the run folder's, all of the run folder's checkpoints and metrics are moved to
    /// `set-aside-N`.
    From(PathBuf),
}
