//! Errors of the operating system.

use std::io;

use meshgrad_error::{Error, error};

/// The error of the operating system when it refuses something.
pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| error!(System, "{what}: {source}").caused_by(source)
}
