//! What can go wrong with a model.

use std::path::PathBuf;

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
    #[error(
        "{}: the tensors are not those of this configuration{}",
        folder.display(),
        report(missing, unexpected, wrong)
    )]
    Tensors {
        /// The folder.
        folder: PathBuf,
        /// Tensors that the model needs and the folder does not have.
        missing: Vec<String>,
        /// Tensors that the folder has and the model does not know.
        unexpected: Vec<String>,
        /// Tensors of another shape or dtype than the model's: which, and how.
        wrong: Vec<String>,
    },

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

fn report(missing: &[String], unexpected: &[String], wrong: &[String]) -> String {
    let part = |title: &str, names: &[String]| match names {
        [] => String::new(),
        _ => format!("\n  {title}: {}", names.join(", ")),
    };
    part("missing", missing) + &part("unexpected", unexpected) + &part("of another shape", wrong)
}
