//! Bytes that travel between ranks: of a tensor, of a result, or received.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::{Arc, Weak};

use meshgrad_runtime::{Element, Lent, Result};

/// A range of bytes with shared ownership. Cheap to clone.
#[derive(Clone)]
pub(super) struct Bytes {
    owner: Arc<dyn Owner>,
    range: Range<usize>,
}

/// Counts the [`Bytes`] of a tensor that still exist.
#[derive(Clone)]
pub(super) struct Holders(Weak<dyn Owner>);

trait Owner: Send + Sync {
    fn bytes(&self) -> &[u8];
}

struct Elements<T>(Vec<T>);

struct OfTensor<T>(Arc<Lent>, PhantomData<fn() -> T>);

impl Bytes {
    pub(super) fn of_elements<T: Element>(elements: Vec<T>) -> Bytes {
        let range = 0..size_of_val(elements.as_slice());
        let owner = Arc::new(Elements(elements));
        Bytes { owner, range }
    }

    /// The bytes of a tensor, which stays lent until they are dropped.
    ///
    /// # Errors
    /// The tensor has another dtype, or is on a GPU.
    pub(super) fn of_tensor<T: Element>(tensor: Arc<Lent>) -> Result<Bytes> {
        let range = 0..size_of_val(tensor.slice::<T>()?);
        let owner = Arc::new(OfTensor::<T>(tensor, PhantomData));
        Ok(Bytes { owner, range })
    }

    /// A part of the bytes; `None` if `range` is out of bounds.
    pub(super) fn part(&self, range: Range<usize>) -> Option<Bytes> {
        let is_inside = range.start <= range.end && range.end <= self.range.len();
        is_inside.then(|| Bytes {
            owner: self.owner.clone(),
            range: self.range.start + range.start..self.range.start + range.end,
        })
    }

    pub(super) fn holders(&self) -> Holders {
        Holders(Arc::downgrade(&self.owner))
    }
}

impl Holders {
    pub(super) fn count(&self) -> usize {
        self.0.strong_count()
    }
}

impl<T: Element> Owner for Elements<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl<T: Element> Owner for OfTensor<T> {
    fn bytes(&self) -> &[u8] {
        // `of_tensor` has checked the dtype and the device.
        self.0.slice::<T>().map_or(&[], bytemuck::cast_slice)
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.owner.bytes()[self.range.clone()]
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes::of_elements(bytes)
    }
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes::from(Vec::new())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}
