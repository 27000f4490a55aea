//! What can go wrong with a model.

use std::path::PathBuf;

use meshgrad_ckpt::exec::MemoryError;
use meshgrad_ckpt::mapping::{InvalidAllowance, MapError, Report};
use meshgrad_ckpt::plan::PlanError;
use meshgrad_runtime::DType;

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

    /// A dtype that is not written to files.
    #[error("a tensor of {dtype:?} is not stored: parameters are f32 or bf16")]
    NotStored {
        /// The dtype.
        dtype: DType,
    },

    /// A tensor that could not be filled, or had no memory.
    #[error("`{}` was not loaded: {source}", tensor.escape_debug())]
    NotLoaded {
        /// The tensor, as it is called in the model.
        tensor: String,
        /// Why not.
        source: meshgrad_runtime::Error,
    },

    /// More memory of the host has to be pinned than is allowed.
    #[error(
        "loading to the device needs {needed} bytes of the host's memory to be pinned and may have \
         {bound}: raise the bound (LoadOptions::pinned), or load fewer tensors at a time"
    )]
    PinnedBound {
        /// What is enough, in bytes.
        needed: u64,
        /// The bound.
        bound: u64,
    },

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

impl Error {
    pub(crate) fn not_loaded(tensor: &str, source: meshgrad_runtime::Error) -> Error {
        Error::NotLoaded {
            tensor: tensor.into(),
            source,
        }
    }
}
