//! Read-only views of operands.

/// A [B, T, H, D] view whose last dim is contiguous.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a, T> {
    /// The memory.
    pub(crate) data: &'a [T],
    /// The offset of element (0, 0, 0, 0).
    pub(crate) offset: usize,
    /// Strides of B, T and H, in elements.
    pub(crate) strides: [usize; 3],
}

impl<'a, T> Rows<'a, T> {
    /// The D elements at (b, t, h).
    #[inline(always)]
    pub(super) fn row(&self, [b, t, h]: [usize; 3], head_dim: usize) -> &'a [T] {
        let [by_b, by_t, by_h] = self.strides;
        &self.data[self.offset + b * by_b + t * by_t + h * by_h..][..head_dim]
    }

    /// One past the last element of the view; `None` on overflow.
    pub(super) fn end(&self, [b, t, h, d]: [usize; 4]) -> Option<usize> {
        if b == 0 || t == 0 || h == 0 || d == 0 {
            return Some(0);
        }

        let mut last = self.offset.checked_add(d)?;
        for (extent, stride) in [b, t, h].into_iter().zip(self.strides) {
            last = last.checked_add((extent - 1).checked_mul(stride)?)?;
        }
        Some(last)
    }
}
