//! Errors of folders.

use std::path::PathBuf;

use meshgrad_ckpt::mapping::Report;
use meshgrad_error::error;

use crate::config::{ConfigError, way_out_of};

/// The result of reading or writing a folder.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of reading or writing a folder of tensors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An op failed, a file could not be read or written, a mapping is invalid, or its tensors
    /// cannot be loaded or written.
    #[error(transparent)]
    Other(#[from] meshgrad_error::Error),

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

    /// An invalid lora.json, or adapters of another program.
    #[error("{}: {problem}", path.display())]
    Adapters {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
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

    /// A folder with tensors that the model does not have, and all that it has.
    #[error(
        "{}: the model does not use all tensors: {report}\nif config.json is right and they do not \
         matter, load it with --ignore-unused (in a program: Loader::ignore_unused)", folder.display()
    )]
    Unused {
        /// The folder.
        folder: PathBuf,
        /// The tensors.
        report: Report,
    },

    /// A folder with quantized weights.
    #[error(
        "{}: weights are quantized ({method}, as `{}` shows), and would be read without their scales; \
         {}", folder.display(), tensor.escape_debug(), way_out_of(method)
    )]
    Quantized {
        /// The folder.
        folder: PathBuf,
        /// A tensor that only quantized models have.
        tensor: String,
        /// The method.
        method: &'static str,
    },

    /// A checkpoint whose files differ from its manifest.
    #[error("{} is damaged: {}", folder.display(), problems.join("; "))]
    Damaged {
        /// The checkpoint.
        folder: PathBuf,
        /// The damaged files and tensors.
        problems: Vec<String>,
    },

    /// A weight that is NaN or infinite.
    #[error(
        "{}: element {element} of `{}` is {value}", file.display(), tensor.escape_debug()
    )]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The element, counted in row-major order.
        element: usize,
        /// Its value.
        value: f64,
    },

    /// A tensor with partial values, which cannot be stored.
    #[error("`{}` has partial values ({sharding}); redistribute it first", tensor.escape_debug())]
    Partial {
        /// The tensor.
        tensor: String,
        /// Its sharding.
        sharding: String,
    },

    /// A rank's part of a tensor, saved without the other ranks.
    #[error(
        "this rank has only a part of `{}` ({sharding}); save it together with the other ranks \
         (folder::save_sharded, folder::add_shards)", tensor.escape_debug()
    )]
    Part {
        /// The tensor.
        tensor: String,
        /// Its sharding.
        sharding: String,
    },

    /// Two tensors with one name.
    #[error("two tensors are named `{}`; give each its own name", tensor.escape_debug())]
    OneName {
        /// The name.
        tensor: String,
    },

    /// Tensors that cannot be written under the names and shapes of the mapping.
    #[error("tensors cannot be written as the mapping requires: {report}")]
    Unwritable {
        /// The problems.
        report: Report,
    },

    /// Parameters could not be loaded.
    #[error(transparent)]
    Load(#[from] meshgrad_load::Error),
}

impl From<Error> for meshgrad_runtime::Error {
    fn from(error: Error) -> meshgrad_runtime::Error {
        match error {
            Error::Other(error) => error,
            error => error!(Invalid, "{error}").caused_by(error),
        }
    }
}
