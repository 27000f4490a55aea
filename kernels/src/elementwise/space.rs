//! The iteration space of an elementwise kernel.

use meshgrad_error::{Result, bail};

use super::{Elementwise, Layout};

/// Maximum number of dims.
const DIMS: usize = 6;

/// The extents of a result, and the strides of the result and each operand. Dims of extent 1 are
/// dropped, and dims that are adjacent in all tensors are merged.
#[derive(Clone, Copy, Debug)]
pub struct IterationSpace {
    dims: usize,
    extents: [u64; DIMS],
    /// Strides of the result, then of each operand, in elements.
    strides: [[i64; DIMS]; 1 + Elementwise::MAX_OPERANDS],
    tensors: usize,
}

impl IterationSpace {
    /// Maximum number of dims.
    pub const MAX_DIMS: usize = DIMS;

    /// The space of `extents`. `result` and `operands` are the strides of each tensor, in elements
    /// (0 for a broadcast dim).
    ///
    /// # Errors
    /// For too many dims or operands, and if a tensor does not have one stride per dim.
    pub fn new(
        extents: &[usize],
        result: &[isize],
        operands: &[&[isize]],
    ) -> Result<IterationSpace> {
        super::at_most("dims", extents.len(), DIMS)?;
        super::at_most("operands", operands.len(), Elementwise::MAX_OPERANDS)?;
        let tensors = || std::iter::once(&result).chain(operands);
        if let Some(wrong) = tensors().find(|strides| strides.len() != extents.len()) {
            bail!(
                Invalid,
                "elementwise: {} strides for {} dims; each operand needs one stride per dim",
                wrong.len(),
                extents.len()
            );
        }

        let mut space = IterationSpace {
            dims: 0,
            extents: [1; DIMS],
            strides: [[0; DIMS]; 1 + Elementwise::MAX_OPERANDS],
            tensors: 1 + operands.len(),
        };
        for (dim, extent) in extents.iter().enumerate() {
            let mut strides = [0; 1 + Elementwise::MAX_OPERANDS];
            for (to, from) in strides.iter_mut().zip(tensors()) {
                *to = from[dim] as i64;
            }
            space.push(*extent as u64, strides);
        }
        Ok(space)
    }

    /// Appends an innermost dim, or merges it with the last one if possible.
    fn push(&mut self, extent: u64, strides: [i64; 1 + Elementwise::MAX_OPERANDS]) {
        if extent == 1 {
            return;
        }
        let continues = self.dims > 0
            && self.strides.iter().zip(strides).all(|(outer, inner)| {
                Some(outer[self.dims - 1]) == inner.checked_mul(extent as i64)
            });
        if continues {
            let outer = &mut self.extents[self.dims - 1];
            *outer = outer.saturating_mul(extent);
        } else {
            self.extents[self.dims] = extent;
            self.dims += 1;
        }
        for (to, stride) in self.strides.iter_mut().zip(strides) {
            to[self.dims - 1] = stride;
        }
    }

    /// Elements of the result.
    pub fn elements(&self) -> u64 {
        let extents = self.extents().iter();
        extents.fold(1, |product, extent| product.saturating_mul(*extent))
    }

    /// The layout of the kernel for this space. `aligned`: whether the result and all operands are
    /// 16-byte aligned.
    pub fn layout(&self, aligned: bool) -> Layout {
        let dense = self.dims == 0
            || self.dims == 1 && self.strides[..self.tensors].iter().all(|s| s[0] == 1);
        if dense && aligned {
            return Layout::Contiguous;
        }
        Layout::Strided { dims: self.dims.max(1) as u8, wide: !self.fits_32_bits() }
    }

    /// Whether any intermediate index or offset needs 64 bits.
    pub(crate) fn is_wide(&self) -> bool {
        !self.fits_32_bits()
    }

    /// The same space in units of `by` consecutive elements. `None` unless the units are contiguous
    /// in every tensor and all strides are whole units.
    pub(crate) fn grouped(mut self, by: u64) -> Option<IterationSpace> {
        let last = self.dims.checked_sub(1)?;
        let whole = |stride: &i64| stride % by as i64 == 0;
        let fits = self.extents[last].is_multiple_of(by)
            && self.strides[..self.tensors]
                .iter()
                .all(|strides| strides[last] == 1 && strides[..last].iter().all(whole));
        if !fits {
            return None;
        }
        self.extents[last] /= by;
        for strides in &mut self.strides[..self.tensors] {
            for stride in &mut strides[..last] {
                *stride /= by as i64;
            }
        }
        Some(self)
    }

    /// Whether every index and every intermediate offset fits in an i32.
    fn fits_32_bits(&self) -> bool {
        let limit = 1u128 << 31;
        // Threads of the last CTA also compute indices past the end.
        let indices = u128::from(self.elements()) + u128::from(super::strided::TILE);
        let reach = |strides: &[i64; DIMS]| {
            let dims = self.extents().iter().zip(strides);
            let reach = |(extent, stride): (&u64, &i64)| {
                u128::from(*extent).saturating_mul(stride.unsigned_abs().into())
            };
            dims.map(reach).fold(0, u128::saturating_add)
        };
        indices < limit && self.strides.iter().all(|strides| reach(strides) < limit)
    }

    /// The extents, outermost first. There is at least one.
    pub(crate) fn extents(&self) -> &[u64] {
        &self.extents[..self.dims.max(1)]
    }

    /// The strides of the result, then of each operand, outermost dim first.
    pub(crate) fn strides(&self) -> impl Iterator<Item = &[i64]> {
        let dims = self.dims.max(1);
        self.strides[..self.tensors].iter().map(move |strides| &strides[..dims])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_tensors_have_one_dim() {
        let space = IterationSpace::new(&[2, 3, 1, 4], &[12, 4, 9, 1], &[&[12, 4, 4, 1]]).unwrap();
        assert_eq!(space.extents(), [24]);
        assert_eq!(space.layout(true), Layout::Contiguous);
        assert_eq!(space.layout(false), Layout::Strided { dims: 1, wide: false });
    }

    #[test]
    fn broadcasting_keeps_only_the_dims_that_differ() {
        // [2, 3, 4] with a vector of 4: the first two dims merge.
        let space =
            IterationSpace::new(&[2, 3, 4], &[12, 4, 1], &[&[12, 4, 1], &[0, 0, 1]]).unwrap();
        assert_eq!(space.extents(), [6, 4]);
        let strides: Vec<_> = space.strides().collect();
        assert_eq!(strides, [[4, 1], [4, 1], [0, 1]]);
        assert_eq!(space.layout(true), Layout::Strided { dims: 2, wide: false });
    }

    #[test]
    fn a_scalar_is_one_element() {
        let space = IterationSpace::new(&[], &[], &[&[]]).unwrap();
        assert_eq!((space.elements(), space.extents()), (1, &[1][..]));
        assert_eq!(space.layout(false), Layout::Strided { dims: 1, wide: false });
    }

    #[test]
    fn far_offsets_are_wide() {
        let wide = |stride: isize| {
            let space = IterationSpace::new(&[8, 4], &[4, 1], &[&[stride, 1]]).unwrap();
            space.layout(true) == Layout::Strided { dims: 2, wide: true }
        };
        assert!(!wide(1 << 27));
        assert!(wide(1 << 28));
        assert!(wide(-(1 << 28)));
    }

    /// An empty tensor may have huge extents; counting must not overflow.
    #[test]
    fn huge_extents_do_not_overflow() {
        let huge = usize::MAX / 2;
        let space = IterationSpace::new(&[huge, huge, 0], &[0, 0, 1], &[&[isize::MAX; 3]]).unwrap();
        assert_eq!(space.elements(), 0);
        let space =
            IterationSpace::new(&[huge, huge], &[isize::MIN, 1], &[&[isize::MAX; 2]]).unwrap();
        assert_eq!(space.elements(), u64::MAX);
        assert_eq!(space.layout(true), Layout::Strided { dims: 2, wide: true });
    }

    #[test]
    fn zero_elements_are_counted() {
        let space = IterationSpace::new(&[3, 0, 2], &[0, 2, 1], &[]).unwrap();
        assert_eq!(space.elements(), 0);
    }

    #[test]
    fn errors_name_the_problem() {
        let error = IterationSpace::new(&[2, 2], &[2, 1], &[&[1]]).unwrap_err();
        assert!(error.to_string().contains("1 strides for 2 dims"), "{error}");
        let error = IterationSpace::new(&[1; 7], &[1; 7], &[]).unwrap_err();
        assert!(error.to_string().contains("7 dims, but the limit is 6"), "{error}");
    }
}
