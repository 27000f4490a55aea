//! Errors of models.

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

    /// Recording or backward failed.
    #[error(transparent)]
    Autograd(#[from] meshgrad_autograd::Error),

    /// A file could not be read or written.
    #[error(transparent)]
    Checkpoint(#[from] meshgrad_ckpt::Error),

    /// An invalid configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),

    /// An invalid configuration file.
    #[error("{}: {source}", path.display())]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// The problem.
        source: ConfigError,
    },

    /// A file that could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },

    /// A folder whose tensors do not match the model.
    #[error("{}: tensors do not match the configuration: {report}", folder.display())]
    Tensors {
        /// The folder.
        folder: PathBuf,
        /// Missing, unexpected and different tensors.
        report: Report,
    },

    /// Tensors that cannot be written under Hugging Face names.
    #[error("tensors cannot be written under Hugging Face names: {report}")]
    Unwritable {
        /// The problems.
        report: Report,
    },

    /// Parameters could not be loaded.
    #[error(transparent)]
    Load(#[from] meshgrad_load::Error),

    /// An invalid mapping between parameters and tensors.
    #[error(transparent)]
    Map(#[from] MapError),

    /// A waiver, which allows a problem of a mapping, cannot be parsed.
    #[error(transparent)]
    Waiver(#[from] InvalidAllowance),

    /// Tensors that cannot be loaded from the folder.
    #[error(transparent)]
    Plan(#[from] PlanError),

    /// Tensors in memory that cannot be written.
    #[error(transparent)]
    Memory(#[from] MemoryError),

    /// A sequence that does not fit into a cache.
    #[error("cache capacity is {capacity} tokens; {used} are used and {given} more do not fit")]
    CacheFull {
        /// Capacity in tokens.
        capacity: usize,
        /// Tokens in the cache.
        used: usize,
        /// New tokens.
        given: usize,
    },
}
