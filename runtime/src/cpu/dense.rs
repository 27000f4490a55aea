//! Reading tensors whose elements lie side by side.

use std::ops::{Deref, Range};

use crate::{Element, Read, Result, Tensor};

/// The elements of a contiguous tensor, borrowed for reading.
pub(crate) struct Dense<'a, T> {
    storage: Read<'a, T>,
    range: Range<usize>,
}

impl<'a, T: Element> Dense<'a, T> {
    /// Borrows `tensor`, which the op has made contiguous.
    pub(crate) fn new(tensor: &'a Tensor) -> Result<Dense<'a, T>> {
        debug_assert!(tensor.is_contiguous());
        let start = tensor.layout().offset();
        Ok(Dense {
            storage: tensor.read()?,
            range: start..start + tensor.elements(),
        })
    }
}

impl<T> Deref for Dense<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.storage[self.range.clone()]
    }
}
