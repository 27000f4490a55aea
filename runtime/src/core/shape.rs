//! The extents of a tensor, stored inline without a heap allocation.

use std::fmt;
use std::ops::Deref;

use meshgrad_error::error;

use crate::{Error, Result};

/// The maximum number of dims of a tensor.
pub const MAX_DIMS: usize = 6;

/// The extents of a tensor's dims, outermost first. Dereferences to a slice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Shape {
    len: u8,
    dims: [usize; MAX_DIMS],
}

impl Shape {
    /// The shape with these extents.
    ///
    /// # Errors
    /// For more than [`MAX_DIMS`] extents.
    pub fn new(dims: &[usize]) -> Result<Shape> {
        if dims.len() > MAX_DIMS {
            return Err(too_many_dims(dims));
        }

        let mut shape = Shape { len: dims.len() as u8, ..Shape::default() };
        shape.dims[..dims.len()].copy_from_slice(dims);
        Ok(shape)
    }

    /// The shape with these extents. More than [`MAX_DIMS`] do not compile.
    pub const fn of<const N: usize>(extents: [usize; N]) -> Shape {
        const { assert!(N <= MAX_DIMS, "a tensor has at most MAX_DIMS dims") }

        let mut dims = [0; MAX_DIMS];
        let mut dim = 0;
        while dim < N {
            dims[dim] = extents[dim];
            dim += 1;
        }
        Shape { len: N as u8, dims }
    }

    /// The product of the extents; 1 for a shape without dims.
    pub fn elements(&self) -> usize {
        self.iter().product()
    }

    /// This shape with dim `dim` set to `extent`. `dim` must exist.
    pub fn with(mut self, dim: usize, extent: usize) -> Shape {
        self.dims[..self.len as usize][dim] = extent;
        self
    }

    /// This shape without dim `dim`. `dim` must exist.
    pub fn without(self, dim: usize) -> Shape {
        let mut shape = Shape { len: self.len - 1, ..Shape::default() };
        let kept = self.iter().enumerate().filter(|(at, _)| *at != dim);
        for (to, (_, extent)) in shape.dims.iter_mut().zip(kept) {
            *to = *extent;
        }
        shape
    }

    /// This shape followed by `dims`.
    ///
    /// # Errors
    /// For too many dims.
    pub(crate) fn followed_by(mut self, dims: &[usize]) -> Result<Shape> {
        let len = self.len();
        match self.dims.get_mut(len..len + dims.len()) {
            Some(end) => end.copy_from_slice(dims),
            None => return Err(too_many_dims(&[&*self, dims].concat())),
        }
        self.len += dims.len() as u8;
        Ok(self)
    }

    /// The shape that `a` and `b` broadcast to, aligned at the last dim; `None` when two extents
    /// differ and neither is 1, or when one has more than [`MAX_DIMS`] dims.
    pub fn broadcast(a: &[usize], b: &[usize]) -> Option<Shape> {
        let len = a.len().max(b.len());
        if len > MAX_DIMS {
            return None;
        }
        let mut shape = Shape { len: len as u8, ..Shape::default() };
        for back in 1..=len {
            let of = |dims: &[usize]| dims.len().checked_sub(back).map_or(1, |at| dims[at]);
            shape.dims[len - back] = match (of(a), of(b)) {
                (x, y) if x == y => x,
                (1, y) => y,
                (x, 1) => x,
                _ => return None,
            };
        }
        Some(shape)
    }
}

fn too_many_dims(shape: &[usize]) -> Error {
    let dims = shape.len();
    error!(Invalid, "shape {shape:?} has {dims} dims; a tensor has at most {MAX_DIMS}")
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.dims[..self.len as usize]
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
