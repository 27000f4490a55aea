//! Layouts: extents, strides and offset of a tensor in its storage. A view is another layout of the
//! same storage; no element moves.

use std::ops::Range;

use meshgrad_error::{bail, ensure, error};

use crate::core::shape::MAX_DIMS;
use crate::{Error, Result, Shape};

/// Extents, strides and offset, in elements.
///
/// The element at index `i` is at `offset + sum(i[d] * strides[d])`. A stride may be zero
/// (broadcast).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    strides: [isize; MAX_DIMS],
    offset: usize,
}

impl Layout {
    /// A contiguous row-major layout that starts at `offset`.
    pub fn contiguous(shape: Shape, offset: usize) -> Layout {
        let mut strides = [0; MAX_DIMS];
        let mut step = 1;
        for dim in (0..shape.len()).rev() {
            strides[dim] = step;
            step *= shape[dim] as isize;
        }
        Layout { shape, strides, offset }
    }

    /// The extents.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The strides, one per dim.
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.shape.len()]
    }

    /// The offset of the first element.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The number of storage elements from the first to the last element of this layout.
    pub(crate) fn span(&self) -> usize {
        let dims = self.shape.iter().zip(self.strides());
        match self.shape.elements() {
            0 => 0,
            _ => {
                1 + dims.map(|(extent, stride)| (extent - 1) * stride.unsigned_abs()).sum::<usize>()
            }
        }
    }

    /// Whether the elements are contiguous in row-major order. Strides of dims of extent 1 are
    /// ignored.
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1;
        for dim in (0..self.shape.len()).rev() {
            if self.shape[dim] != 1 && self.strides[dim] != step {
                return false;
            }
            step *= self.shape[dim] as isize;
        }
        true
    }

    /// The part with indices `range` in dim `dim`.
    ///
    /// # Errors
    /// When there is no such dim; when the range exceeds the dim.
    pub fn slice(&self, dim: usize, range: Range<usize>) -> Result<Layout> {
        let extent = self.extent("slice", dim)?;
        if range.start > range.end || range.end > extent {
            bail!(
                Invalid,
                "slice: {}..{} is out of range for dim {dim} of shape {}",
                range.start,
                range.end,
                self.shape
            );
        }

        let mut view = *self;
        view.offset += range.start * self.strides[dim] as usize;
        view.shape = self.shape.with(dim, range.len());
        Ok(view)
    }

    /// Swaps dims `a` and `b`.
    ///
    /// # Errors
    /// When there is no such dim.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Layout> {
        let (extent_a, extent_b) = (self.extent("transpose", a)?, self.extent("transpose", b)?);
        let mut view = *self;
        view.strides.swap(a, b);
        view.shape = self.shape.with(a, extent_b).with(b, extent_a);
        Ok(view)
    }

    /// Reorders the dims: dim `d` of the result is dim `order[d]` of this layout.
    ///
    /// # Errors
    /// When `order` is not a permutation of the dims.
    pub fn permute(&self, order: &[usize]) -> Result<Layout> {
        let mut seen = [false; MAX_DIMS];
        let named_once = order.len() == self.shape.len()
            && order
                .iter()
                .all(|&dim| dim < self.shape.len() && !std::mem::replace(&mut seen[dim], true));
        ensure!(
            named_once,
            Invalid,
            "permute: {order:?} does not name each dim of shape {} once",
            self.shape
        );

        let mut view = *self;
        for (to, &from) in order.iter().enumerate() {
            view.shape = view.shape.with(to, self.shape[from]);
            view.strides[to] = self.strides[from];
        }
        Ok(view)
    }

    /// Broadcasts to `shape`: adds dims in front, and repeats dims of extent 1 with stride zero.
    ///
    /// # Errors
    /// When a dim is neither equal nor 1.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Layout> {
        let to = Shape::new(shape)?;
        ensure!(
            Shape::broadcast(&self.shape, shape) == Some(to),
            Invalid,
            "broadcast: shape {} does not broadcast to {shape:?}; aligned at the last dim, each \
             dim must be equal or 1",
            self.shape
        );

        let new_dims = shape.len() - self.shape.len();
        let mut view = Layout { shape: to, strides: [0; MAX_DIMS], offset: self.offset };
        for dim in 0..self.shape.len() {
            if self.shape[dim] != 1 {
                view.strides[new_dims + dim] = self.strides[dim];
            }
        }
        Ok(view)
    }

    /// The same elements in the same row-major order with other extents; `None` when that requires
    /// a copy.
    ///
    /// # Errors
    /// When the number of elements differs.
    pub fn reshape(&self, shape: &[usize]) -> Result<Option<Layout>> {
        let to = Shape::new(shape)?;
        ensure!(
            to.elements() == self.shape.elements(),
            Invalid,
            "reshape: shape {} has {} elements, but {to} has {}",
            self.shape,
            self.shape.elements(),
            to.elements()
        );
        if self.shape.elements() == 0 || self.is_contiguous() {
            return Ok(Some(Layout::contiguous(to, self.offset)));
        }
        Ok(self.split_and_merge(to))
    }

    /// Matches runs of old dims with runs of new dims of the same product; each run of old dims
    /// must be mergeable.
    fn split_and_merge(&self, to: Shape) -> Option<Layout> {
        let old: Vec<(usize, isize)> = self.merged_dims();
        let mut view = Layout { shape: to, strides: [0; MAX_DIMS], offset: self.offset };
        let mut next_new = to.len();
        for &(extent, stride) in old.iter().rev() {
            let (mut covered, mut step) = (1, stride);
            while covered < extent {
                next_new = next_new.checked_sub(1)?;
                view.strides[next_new] = step;
                step *= to[next_new] as isize;
                covered *= to[next_new];
            }
            if covered != extent {
                return None;
            }
        }
        Some(view)
    }

    /// The fewest (extent, stride) pairs that visit the same elements in the same order, dims of
    /// extent 1 dropped.
    pub(crate) fn merged_dims(&self) -> Vec<(usize, isize)> {
        let mut merged: Vec<(usize, isize)> = Vec::with_capacity(MAX_DIMS);
        for (&extent, &stride) in self.shape.iter().zip(self.strides()) {
            match merged.last_mut() {
                _ if extent == 1 => {}
                Some((outer, step)) if *step == stride * extent as isize => {
                    (*outer, *step) = (*outer * extent, stride);
                }
                _ => merged.push((extent, stride)),
            }
        }
        merged
    }

    /// Inserts a dim of extent 1 before dim `dim`.
    ///
    /// # Errors
    /// When there is no such dim; for too many dims.
    pub fn unsqueeze(&self, dim: usize) -> Result<Layout> {
        if dim > self.shape.len() {
            return Err(no_dim("unsqueeze", dim as isize, &self.shape));
        }

        let mut dims = self.shape.to_vec();
        dims.insert(dim, 1);
        let mut view =
            Layout { shape: Shape::new(&dims)?, strides: [0; MAX_DIMS], offset: self.offset };
        for old in 0..self.shape.len() {
            view.strides[old + usize::from(old >= dim)] = self.strides[old];
        }
        Ok(view)
    }

    /// `count` ranges of dim `dim`, each `period` indices after the last, of which `range` is the first.
    /// The dim becomes two: [count, range].
    ///
    /// # Errors
    /// When there is no such dim; when the range exceeds the dim; for too many dims.
    pub(crate) fn repeated(
        &self,
        dim: usize,
        range: Range<usize>,
        (count, period): (usize, usize),
    ) -> Result<Layout> {
        let stride = self.slice(dim, range.clone())?.strides[dim];
        let mut view = self.unsqueeze(dim)?.slice(dim + 1, range)?;
        view.shape = view.shape.with(dim, count);
        view.strides[dim] = stride * period as isize;
        Ok(view)
    }

    fn extent(&self, op: &'static str, dim: usize) -> Result<usize> {
        self.shape.get(dim).copied().ok_or_else(|| no_dim(op, dim as isize, &self.shape))
    }
}

/// The error of `op` for a dim that a shape does not have.
pub(crate) fn no_dim(op: &str, dim: isize, shape: &Shape) -> Error {
    error!(Invalid, "{op}: shape {shape} has no dim {dim}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::assert_error;

    /// The offset of each element, in row-major order.
    fn offsets(layout: &Layout) -> Vec<usize> {
        let mut offsets = vec![layout.offset as isize];
        for (&extent, &stride) in layout.shape().iter().zip(layout.strides()) {
            offsets = offsets
                .iter()
                .flat_map(|base| (0..extent as isize).map(move |i| base + i * stride))
                .collect();
        }
        offsets.into_iter().map(|offset| offset as usize).collect()
    }

    fn shapes() -> impl Strategy<Value = Vec<usize>> {
        prop::collection::vec(0usize..5, 0..5)
    }

    /// The layout of a random view of a view of a contiguous tensor.
    fn views() -> impl Strategy<Value = Layout> {
        (shapes(), prop::collection::vec((0usize..5, 0usize..5, 0usize..3), 0..4)).prop_map(
            |(shape, steps)| {
                let mut layout = Layout::contiguous(Shape::new(&shape).unwrap(), 3);
                for (a, b, kind) in steps {
                    let dims = layout.shape().len().max(1);
                    let view = match kind {
                        0 => layout.transpose(a % dims, b % dims),
                        1 => layout.slice(a % dims, b / 2..b),
                        _ => layout.unsqueeze(a % dims),
                    };
                    layout = view.unwrap_or(layout);
                }
                layout
            },
        )
    }

    #[test]
    fn too_many_dims_are_an_error_not_a_panic() {
        let layout = Layout::contiguous(Shape::of([1]), 0);
        let found = layout.broadcast_to(&[2; MAX_DIMS + 1]);
        assert_error(found, "a tensor has at most");
        assert_eq!(Shape::broadcast(&[1], &[1; MAX_DIMS + 1]), None);
    }

    proptest! {
        /// A reshape without a copy visits the same elements in the same order.
        #[test]
        fn reshape_keeps_the_order(layout in views(), cut in 0usize..6) {
            let elements = layout.shape().elements();
            for inner in [1, 2, 3, 4, 6, 8, 12].into_iter().filter(|n| elements % n == 0) {
                let outer = elements / inner;
                let to = if cut % 2 == 0 { vec![outer, inner] } else { vec![inner, 1, outer] };
                if let Some(view) = layout.reshape(&to).unwrap() {
                    prop_assert_eq!(offsets(&view), offsets(&layout));
                }
            }
        }

        /// A contiguous layout reshapes to any shape with the same number of elements.
        #[test]
        fn a_contiguous_layout_reshapes_without_a_copy(shape in shapes()) {
            let layout = Layout::contiguous(Shape::new(&shape).unwrap(), 0);
            let flat = [layout.shape().elements()];
            prop_assert!(layout.reshape(&flat).unwrap().is_some());
        }

        /// Splitting one dim of any view needs no copy.
        #[test]
        fn splitting_a_dim_needs_no_copy(layout in views(), dim in 0usize..5) {
            prop_assume!(dim < layout.shape().len() && layout.shape().len() < MAX_DIMS);
            let extent = layout.shape()[dim];
            prop_assume!(extent % 2 == 0);
            let mut to = layout.shape().to_vec();
            to.splice(dim..=dim, [2, extent / 2]);
            let view = layout.reshape(&to).unwrap();
            prop_assert!(view.is_some());
            prop_assert_eq!(offsets(&view.unwrap()), offsets(&layout));
        }

        #[test]
        fn permuting_and_permuting_back_is_the_identity(layout in views(), seed in 0usize..24) {
            let dims = layout.shape().len();
            let mut order: Vec<usize> = (0..dims).collect();
            order.sort_by_key(|dim| (dim * 7 + seed) % 5);
            let mut back = vec![0; dims];
            for (to, &from) in order.iter().enumerate() {
                back[from] = to;
            }
            prop_assert_eq!(layout.permute(&order).unwrap().permute(&back).unwrap(), layout);
        }

        /// Two shapes with a common broadcast shape both broadcast to it. Without a common shape,
        /// the first does not broadcast to the second.
        #[test]
        fn operands_broadcast_to_their_common_shape(a in shapes(), b in shapes()) {
            let of = |dims: &[usize]| Layout::contiguous(Shape::new(dims).unwrap(), 0);
            match Shape::broadcast(&a, &b) {
                Some(common) => {
                    prop_assert!(of(&a).broadcast_to(&common).unwrap().shape() == &common);
                    prop_assert!(of(&b).broadcast_to(&common).unwrap().shape() == &common);
                }
                None => prop_assert!(of(&a).broadcast_to(&b).is_err()),
            }
        }
    }
}
