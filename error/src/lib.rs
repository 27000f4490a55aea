//! The error of all crates: of what kind it is, what happened, and what caused it.
//!
//! The message is written where the check is. It names the thing, both values and the way out.
//!
//! ```
//! use meshgrad_error::{Kind, Result, ensure};
//!
//! fn check(axis: &str, size: usize) -> Result<()> {
//!     ensure!(size > 0, Invalid, "axis `{axis}` has size 0: use at least 1, or leave it out");
//!     Ok(())
//! }
//!
//! assert_eq!(check("tp", 0).unwrap_err().kind(), Kind::Invalid);
//! ```

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// A result with an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An argument, a setting or a call is not allowed.
    Invalid,
    /// It is allowed, but not here: by this device, format, version or build.
    Unsupported,
    /// A file, a name, an entry or a device does not exist.
    Missing,
    /// Bytes or text that do not have their format.
    Malformed,
    /// Stored bytes that are not what was written, as their digests prove.
    Damaged,
    /// Two things that must agree, such as a file and a model, do not.
    Mismatch,
    /// A value is infinite or not a number.
    NotFinite,
    /// A meta device has shapes, but no values.
    NoValues,
    /// Someone else uses it.
    Busy,
    /// A memory is too small.
    OutOfMemory,
    /// Another rank failed.
    PeerFailed,
    /// Ranks wait for each other, or for one that does not come.
    Stuck,
    /// A GPU or its driver failed.
    Device,
    /// The operating system or a library failed.
    System,
}

/// The rank whose failure ends this rank's work, as details of an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRank {
    /// The rank.
    pub rank: usize,
    /// Its error or panic message, or what is known about its end.
    pub reason: String,
}

/// An error: a message for people, a kind for callers. A clone is cheap.
#[derive(Clone)]
pub struct Error(Arc<Parts>);

#[derive(Clone)]
struct Parts {
    kind: Kind,
    message: String,
    /// A value that says the same.
    details: Option<Arc<dyn Any + Send + Sync>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error with a message.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error(Arc::new(Parts { kind, message: message.into(), details: None, source: None }))
    }

    /// An error whose message is that of `details`, which [`Error::details`] returns.
    pub fn with_details(kind: Kind, details: impl fmt::Display + Any + Send + Sync) -> Error {
        Error::new(kind, details.to_string()).and_details(details)
    }

    /// The same error with a value that says the same, which [`Error::details`] returns.
    #[must_use]
    pub fn and_details(mut self, details: impl Any + Send + Sync) -> Error {
        Arc::make_mut(&mut self.0).details = Some(Arc::new(details));
        self
    }

    /// The same error with what caused it. The message should contain that of `source`.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Arc::make_mut(&mut self.0).source = Some(Arc::from(source.into()));
        self
    }

    /// The same error with `context` and a colon in front of its message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Error {
        let parts = Arc::make_mut(&mut self.0);
        parts.message = format!("{context}: {}", parts.message);
        self
    }

    /// What callers branch on.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// What the message says, as a value; `None` if the error has no value of this type.
    pub fn details<T: Any>(&self) -> Option<&T> {
        self.0.details.as_ref()?.downcast_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

/// The message: `main` and `unwrap` print this.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.0.source.as_deref()?;
        Some(source)
    }
}

/// Equal errors have the same kind and message.
impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        (self.kind(), &self.0.message) == (other.kind(), &other.0.message)
    }
}

impl Eq for Error {}

/// An [`Error`] of a kind with a formatted message: `error!(Missing, "no axis `{name}`")`.
#[macro_export]
macro_rules! error {
    ($kind:ident, $($message:tt)+) => {
        $crate::Error::new($crate::Kind::$kind, ::std::format!($($message)+))
    };
}

/// Returns an [`error!`].
#[macro_export]
macro_rules! bail {
    ($kind:ident, $($message:tt)+) => {
        return ::std::result::Result::Err($crate::error!($kind, $($message)+))
    };
}

/// Returns an [`error!`] unless a condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $kind:ident, $($message:tt)+) => {
        if !$condition {
            $crate::bail!($kind, $($message)+);
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_kind_message_details_and_cause() {
        #[derive(Debug, PartialEq)]
        struct Sizes([usize; 2]);

        impl fmt::Display for Sizes {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} is not {}", self.0[0], self.0[1])
            }
        }

        let cause = std::io::Error::other("the cause");
        let error = Error::with_details(Kind::Damaged, Sizes([3, 4])).caused_by(cause);
        assert_eq!(error.to_string(), "3 is not 4");
        assert_eq!(error.details(), Some(&Sizes([3, 4])));
        assert_eq!(error.details::<String>(), None);
        assert_eq!(error.source().unwrap().to_string(), "the cause");
        assert_eq!(error, error!(Damaged, "3 is not {}", 4));
        assert_ne!(error, error!(Invalid, "3 is not 4"));
        assert_eq!(format!("{:?}", error.clone()), "3 is not 4");
        let with_context = error.clone().context("in front");
        assert_eq!(
            (with_context.to_string(), error.to_string()),
            ("in front: 3 is not 4".to_owned(), "3 is not 4".to_owned())
        );
        assert_eq!(with_context.details(), Some(&Sizes([3, 4])));
    }
}
