//! What can go wrong with a model.

use std::path::PathBuf;

use meshgrad_ckpt::exec::MemoryError;
use meshgrad_ckpt::mapping::{InvalidAllowance, MapError, Report};
use meshgrad_ckpt::plan::PlanError;

use crate::config::ConfigError;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An op failed.
    #[error(transparent)]
    Runtime(#[from] meshgrad_runtime::Error),

    /// The tape refused something.
    #[error(transparent)]
    Autograd(#[from] meshgrad_autograd::Error),

    /// A file could not be read or written.
    #[error(transparent)]
    Checkpoint(#[from] meshgrad_ckpt::Error),

    /// A configuration that describes no model.
    #[error(transparent)]
    Config(#[from] ConfigError),

    /// A configuration file that describes no model.
    #[error("{}: {source}", path.display())]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ConfigError,
    },

    /// A file that could not be read at all.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },

    /// A folder whose tensors are not the model's.
    #[error("{}: the tensors are not those of this configuration: {report}", folder.display())]
    Tensors {
        /// The folder.
        folder: PathBuf,
        /// What is missing, unexpected or different.
        report: Report,
    },

    /// Tensors that cannot be written under the names of Hugging Face.
    #[error("these tensors cannot be written under the names of Hugging Face: {report}")]
    Unwritable {
        /// Why not.
        report: Report,
    },

    /// Parameters could not be loaded.
    #[error(transparent)]
    Load(#[from] meshgrad_load::Error),

    /// A map between parameters and tensors of a folder cannot be read.
    #[error(transparent)]
    Map(#[from] MapError),

    /// A waiver cannot be read.
    #[error(transparent)]
    Waiver(#[from] InvalidAllowance),

    /// Tensors of a folder cannot be loaded as planned.
    #[error(transparent)]
    Plan(#[from] PlanError),

    /// Tensors in memory cannot be written.
    #[error(transparent)]
    Memory(#[from] MemoryError),

    /// A sequence that does not fit into a cache.
    #[error(
        "the cache has room for {capacity} tokens, {used} are used and {given} more were given"
    )]
    CacheFull {
        /// Tokens that it can hold.
        capacity: usize,
        /// Tokens that it holds.
        used: usize,
        /// Tokens given.
        given: usize,
    },
}
