//! Errors of matrix products.

/// An invalid argument of a matrix product. Sizes and strides are in elements.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GemmError {
    /// A view is out of bounds.
    #[error(
        "a view of extents {extents:?} and strides {strides:?} at offset {offset} is out of bounds \
         of its slice of {len} elements; the slice must hold every element of the view"
    )]
    OutOfBounds {
        /// Batch extents, rows and columns.
        extents: Vec<usize>,
        /// The stride of each extent.
        strides: Vec<isize>,
        /// The offset of element (0, 0) of the first matrix.
        offset: usize,
        /// Elements in the slice.
        len: usize,
    },

    /// A mutable view addresses an element twice.
    #[error(
        "a mutable view of extents {extents:?} and strides {strides:?} may address an element \
         twice; each stride must be at least the span of the dims with smaller strides"
    )]
    Overlap {
        /// Batch extents, rows and columns.
        extents: Vec<usize>,
        /// The stride of each extent.
        strides: Vec<isize>,
    },

    /// The batch has different numbers of extents and strides.
    #[error("a batch of {extents} extents has {strides} strides; pass one stride per extent")]
    BatchRank {
        /// Number of batch extents.
        extents: usize,
        /// Number of batch strides.
        strides: usize,
    },

    /// The operands do not match.
    #[error("{op}: {what} must be equal, but are {left:?} and {right:?}")]
    Mismatch {
        /// The function called.
        op: &'static str,
        /// The compared extents.
        what: &'static str,
        /// The first value.
        left: Vec<usize>,
        /// The second value.
        right: Vec<usize>,
    },

    /// Group offsets do not describe row ranges.
    #[error(
        "{op}: group offsets must start at 0 or above, be non-decreasing and end at or before the \
         {rows} rows, but offset {index} does not"
    )]
    Offsets {
        /// The function called.
        op: &'static str,
        /// The first invalid offset.
        index: usize,
        /// Rows of the operand that the offsets divide.
        rows: usize,
    },
}
