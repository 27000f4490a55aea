//! The destination of targets.

use std::sync::{Mutex, PoisonError};

use meshgrad_error::Error;

use super::shared::wrong_size;
use crate::plan::Target;

/// Allocates the memory of targets and takes it back when they are complete. Called from any
/// thread.
pub trait Sink: Sync {
    /// The memory of one target.
    type Buffer: AsMut<[u8]> + Send;

    /// The sink's error.
    type Error: From<Error> + Send;

    /// Returns memory of [`Target::bytes`] bytes for a target. Called once per target, before its
    /// first byte is written. All of it is overwritten.
    ///
    /// # Errors
    /// An error stops the execution.
    fn buffer(&self, target: &Target) -> Result<Self::Buffer, Self::Error>;

    /// Takes back the memory of a complete target: row-major, little-endian.
    ///
    /// # Errors
    /// An error stops the execution.
    fn complete(&self, target: &Target, buffer: Self::Buffer) -> Result<(), Self::Error>;
}

/// The simplest sink: a slice per request, in the order of the requests, such as the memory of
/// tensors or parts of one arena.
#[derive(Debug)]
pub struct Slices<'a> {
    slices: Vec<Mutex<Option<&'a mut [u8]>>>,
}

impl<'a> Slices<'a> {
    /// A sink of these slices.
    pub fn new(slices: impl IntoIterator<Item = &'a mut [u8]>) -> Slices<'a> {
        let slices = slices.into_iter().map(|slice| Mutex::new(Some(slice)));
        Slices { slices: slices.collect() }
    }
}

impl<'a> Sink for Slices<'a> {
    type Buffer = &'a mut [u8];
    type Error = Error;

    fn buffer(&self, target: &Target) -> Result<&'a mut [u8], Error> {
        let slice = self.slices.get(target.index).and_then(|slice| {
            let mut slice = slice.lock().unwrap_or_else(PoisonError::into_inner);
            slice.take()
        });
        slice.ok_or_else(|| wrong_size(target, 0))
    }

    fn complete(&self, _: &Target, _: &'a mut [u8]) -> Result<(), Error> {
        Ok(())
    }
}
