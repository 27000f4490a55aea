//! What a constructor answers when a kernel cannot be built.

/// Why there is no such kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An expression reads an operand or scalar that the kernel is not given.
    #[error("{kernel}: the expression reads {what} {index}, but there are {count}; give it more")]
    Missing {
        /// The kernel's family.
        kernel: &'static str,
        /// Operand or scalar.
        what: &'static str,
        /// The index that is read, from 0.
        index: usize,
        /// How many there are.
        count: usize,
    },

    /// More of something than a kernel takes.
    #[error("{kernel}: {count} {what}, but a kernel takes at most {limit}; split the call")]
    TooMany {
        /// The kernel's family.
        kernel: &'static str,
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },

    /// Strides that do not belong to the extents.
    #[error("{kernel}: {strides} strides for {extents} dims; every operand needs one for each dim")]
    Strides {
        /// The kernel's family.
        kernel: &'static str,
        /// Strides of an operand.
        strides: usize,
        /// Dims of the result.
        extents: usize,
    },

    /// An extent outside of what the kernel is written for.
    #[error("{kernel}: {what} = {value} is not within {least} to {most}")]
    Extent {
        /// The kernel's family.
        kernel: &'static str,
        /// The name of the extent.
        what: &'static str,
        /// What was asked for.
        value: usize,
        /// The smallest possible.
        least: usize,
        /// The largest possible.
        most: usize,
    },
}

/// The result of a constructor.
pub type Result<T> = std::result::Result<T, Error>;
