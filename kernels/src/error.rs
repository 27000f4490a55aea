//! Errors of constructors.

/// Why a kernel cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An expression reads an operand or scalar that the kernel does not have.
    #[error("{kernel}: the expression reads {what} {index}, but only {count} are given")]
    Missing {
        /// The kernel's family.
        kernel: &'static str,
        /// Operand or scalar.
        what: &'static str,
        /// The index that is read, from 0.
        index: usize,
        /// The number given.
        count: usize,
    },

    /// More operands, scalars, dims or operations than a kernel supports.
    #[error("{kernel}: {count} {what}, but the limit is {limit}; split the call")]
    TooMany {
        /// The kernel's family.
        kernel: &'static str,
        /// What exceeds the limit.
        what: &'static str,
        /// The number given.
        count: usize,
        /// The limit.
        limit: usize,
    },

    /// The number of strides does not match the extents.
    #[error(
        "{kernel}: {strides} strides for {extents} dims; each operand needs one stride per dim"
    )]
    Strides {
        /// The kernel's family.
        kernel: &'static str,
        /// Strides of an operand.
        strides: usize,
        /// Dims of the result.
        extents: usize,
    },

    /// An extent is outside the supported range.
    #[error("{kernel}: {what} = {value} is not in {least}..={most}")]
    Extent {
        /// The kernel's family.
        kernel: &'static str,
        /// The name of the extent.
        what: &'static str,
        /// The value requested.
        value: usize,
        /// The minimum.
        least: usize,
        /// The maximum.
        most: usize,
    },
}

/// The result of a constructor.
pub type Result<T> = std::result::Result<T, Error>;
