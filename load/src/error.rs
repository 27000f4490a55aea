//! Errors of loading.

use meshgrad_runtime::DType;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of loading.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, a file could not be read, a tensor does not fit its region, or the regions
    /// cannot be loaded from this folder.
    #[error(transparent)]
    Other(#[from] meshgrad_error::Error),

    /// A dtype that files do not store.
    #[error("tensors of {dtype:?} cannot be stored: use f32 or bf16")]
    NotStored {
        /// The dtype.
        dtype: DType,
    },

    /// A tensor that could not be allocated or filled.
    #[error("`{}` was not loaded: {source}", tensor.escape_debug())]
    NotLoaded {
        /// The tensor's name in the model.
        tensor: String,
        /// The cause.
        source: meshgrad_runtime::Error,
    },

    /// A tensor with NaN or an infinity, where only finite values are allowed.
    #[error("`{}` has values that are not finite", tensor.escape_debug())]
    NotFinite {
        /// The tensor's name in the model.
        tensor: String,
    },

    /// Loading needs more pinned memory than the bound allows.
    #[error(
        "loading to the device needs {needed} bytes of pinned host memory but the bound is {bound}: \
         raise it (LoadOptions::pinned) or load fewer tensors at a time"
    )]
    PinnedBound {
        /// A bound that is large enough, in bytes.
        needed: u64,
        /// The current bound, in bytes.
        bound: u64,
    },
}

impl Error {
    /// Creates [`Error::NotLoaded`] from a tensor's name and the cause.
    pub fn not_loaded(tensor: &str, source: meshgrad_runtime::Error) -> Error {
        Error::NotLoaded { tensor: tensor.into(), source }
    }
}
