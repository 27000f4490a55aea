//! What cannot be expressed.

use std::ops::Range;

use super::TensorType;
use crate::Dtype;

/// Why an expression cannot be made, or not be pulled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A dim that the operand does not have.
    #[error("{op}: dim {dim} of a tensor of shape {shape:?}, which has {}", shape.len())]
    NoSuchDim {
        /// The operation.
        op: &'static str,
        /// The dim asked for.
        dim: usize,
        /// The operand's shape.
        shape: Vec<u64>,
    },

    /// Dims that name each dim of the operand exactly once were needed.
    #[error("permute: {dims:?} is no order of the dims of shape {shape:?}: name each once")]
    NoPermutation {
        /// The order given.
        dims: Vec<usize>,
        /// The operand's shape.
        shape: Vec<u64>,
    },

    /// A slice reaches beyond its operand.
    #[error(
        "slice: {count} elements from {start} on, every {step} of dim {dim}, which has {extent}: \
         a step is at least 1 and the last element must be inside"
    )]
    OutsideSlice {
        /// The dim.
        dim: usize,
        /// Its extent.
        extent: u64,
        /// The first element.
        start: u64,
        /// How many.
        count: u64,
        /// From one to the next.
        step: u64,
    },

    /// Operands that must agree in all dims but one do not.
    #[error("{op} along dim {dim}: operand 0 has shape {first:?} and operand {at} has {other:?}")]
    Shapes {
        /// The operation.
        op: &'static str,
        /// The dim along which they are joined.
        dim: usize,
        /// The first operand's shape.
        first: Vec<u64>,
        /// Which operand differs.
        at: usize,
        /// Its shape.
        other: Vec<u64>,
    },

    /// Operands of several dtypes.
    #[error("{op}: operand 0 is {first} and operand {at} is {other}: cast one of them")]
    Dtypes {
        /// The operation.
        op: &'static str,
        /// The first operand's dtype.
        first: Dtype,
        /// Which operand differs.
        at: usize,
        /// Its dtype.
        other: Dtype,
    },

    /// Nothing to join.
    #[error("{op}: there is no operand: join at least one")]
    NoOperands {
        /// The operation.
        op: &'static str,
    },

    /// An extent that is no multiple of the rows asked for.
    #[error("unflatten: dim {dim} has {extent} elements, which {rows} rows do not divide")]
    Rows {
        /// The dim.
        dim: usize,
        /// Its extent.
        extent: u64,
        /// The rows asked for.
        rows: u64,
    },

    /// A dim that cannot be left out.
    #[error("squeeze: dim {dim} has {extent} elements, not 1")]
    Squeeze {
        /// The dim.
        dim: usize,
        /// Its extent.
        extent: u64,
    },

    /// An operand that is larger than what it should be padded to.
    #[error("pad: dim {dim} has {extent} elements, more than the {to} to reach")]
    Pad {
        /// The dim.
        dim: usize,
        /// Its extent.
        extent: u64,
        /// The extent to reach.
        to: u64,
    },

    /// More elements than can be counted.
    #[error("{op}: a tensor of shape {shape:?} has more elements than fit into 63 bits")]
    TooLarge {
        /// The operation.
        op: &'static str,
        /// The shape.
        shape: Vec<u64>,
    },

    /// More operations on top of each other than are followed.
    #[error("{op}: there are {limit} operations below it already; load what they make, and go on")]
    TooDeep {
        /// The operation.
        op: &'static str,
        /// The most there may be.
        limit: u32,
    },

    /// Two tensors of one name.
    #[error(
        "`{}` is {} {:?} in one place and {} {:?} in another: a name is one tensor",
        name.escape_debug(), first.0, first.1, second.0, second.1
    )]
    Redefined {
        /// The name.
        name: String,
        /// Dtype and shape at first.
        first: TensorType,
        /// Dtype and shape later.
        second: TensorType,
    },

    /// A dtype that cannot be calculated with.
    #[error(
        "{op}: from {from} to {to}: values are read of F64, F32, F16, BF16, F8_E4M3, F8_E5M2 and \
         F8_E8M0, and made of the first four"
    )]
    NotFloat {
        /// The operation.
        op: &'static str,
        /// The operand's dtype.
        from: Dtype,
        /// The result's dtype.
        to: Dtype,
    },

    /// Operands that a computation refuses.
    #[error("{op}: {message}")]
    Operands {
        /// The computation.
        op: &'static str,
        /// What is wrong with them.
        message: String,
    },

    /// A region that is no part of the expression.
    #[error("{region:?} is no region of shape {shape:?}: give a range inside each dim")]
    Region {
        /// The region.
        region: Vec<Range<u64>>,
        /// The expression's shape.
        shape: Vec<u64>,
    },

    /// A layout that would be read in too many pieces.
    #[error(
        "a region of shape {shape:?} takes more than {limit} copies: {op} tears it apart; ask for \
         regions along its rows, or change the order of the operations"
    )]
    Fragmented {
        /// The expression's shape.
        shape: Vec<u64>,
        /// The most pieces.
        limit: usize,
        /// The operation at which the limit was passed.
        op: &'static str,
    },
}
