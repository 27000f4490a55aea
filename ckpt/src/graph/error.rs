//! Errors of expressions.

use std::ops::Range;

use super::TensorType;
use crate::Dtype;

/// Why an expression cannot be built or traced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A dim that the operand does not have.
    #[error("{op}: dim {dim} is out of range for shape {shape:?}")]
    NoSuchDim {
        /// The operation.
        op: &'static str,
        /// The requested dim.
        dim: usize,
        /// The operand's shape.
        shape: Vec<u64>,
    },

    /// The order must name each dim of the operand exactly once.
    #[error("permute: {dims:?} is not an order of the dims of shape {shape:?}: name each dim once")]
    NoPermutation {
        /// The given order.
        dims: Vec<usize>,
        /// The operand's shape.
        shape: Vec<u64>,
    },

    /// A slice exceeds its operand.
    #[error(
        "slice: {count} elements from index {start} with step {step} exceed dim {dim} of extent {extent}: \
         the step must be at least 1 and the last element inside"
    )]
    OutsideSlice {
        /// The dim.
        dim: usize,
        /// Its extent.
        extent: u64,
        /// The first index.
        start: u64,
        /// The number of elements.
        count: u64,
        /// The distance between elements.
        step: u64,
    },

    /// Operands must agree in all other dims.
    #[error("{op} along dim {dim}: operand 0 has shape {first:?} and operand {at} has {other:?}")]
    Shapes {
        /// The operation.
        op: &'static str,
        /// The dim of concatenation.
        dim: usize,
        /// The first operand's shape.
        first: Vec<u64>,
        /// Which operand differs.
        at: usize,
        /// Its shape.
        other: Vec<u64>,
    },

    /// Operands of different dtypes.
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

    /// No operands.
    #[error("{op}: no operands: pass at least one")]
    NoOperands {
        /// The operation.
        op: &'static str,
    },

    /// An extent that the requested rows do not divide.
    #[error("unflatten: {extent} elements of dim {dim} cannot be split into {rows} rows")]
    Rows {
        /// The dim.
        dim: usize,
        /// Its extent.
        extent: u64,
        /// The requested rows.
        rows: u64,
    },

    /// A dim that cannot be squeezed.
    #[error("squeeze: dim {dim} has {extent} elements, not 1")]
    Squeeze {
        /// The dim.
        dim: usize,
        /// Its extent.
        extent: u64,
    },

    /// An operand larger than the extent to pad to.
    #[error("pad: dim {dim} has {extent} elements, more than the target extent {to}")]
    Pad {
        /// The dim.
        dim: usize,
        /// Its extent.
        extent: u64,
        /// The target extent.
        to: u64,
    },

    /// A view that leaves its source, or in which indices share an element.
    #[error(
        "view: shape {shape:?} with strides {strides:?} from element {offset} is not inside a tensor of \
         {elements} elements, or visits an element twice: store a contiguous copy of it"
    )]
    View {
        /// Elements of the source.
        elements: u64,
        /// The first element.
        offset: u64,
        /// The shape of the view.
        shape: Vec<u64>,
        /// Its strides, in elements.
        strides: Vec<u64>,
    },

    /// A view of a tensor that is made of several stored ones.
    #[error(
        "view: `{}` is made of several stored tensors, but a view needs one: use slices and \
         permutations", name.escape_debug()
    )]
    NoSource {
        /// The tensor.
        name: String,
    },

    /// The number of elements overflows.
    #[error("{op}: a tensor of shape {shape:?} has more elements than fit into 63 bits")]
    TooLarge {
        /// The operation.
        op: &'static str,
        /// The shape.
        shape: Vec<u64>,
    },

    /// Too many nested operations.
    #[error(
        "{op}: the operand already has {limit} nested operations; load it first and continue from the result"
    )]
    TooDeep {
        /// The operation.
        op: &'static str,
        /// The maximum.
        limit: u32,
    },

    /// Two tensors with the same name.
    #[error(
        "`{}` is {} {:?} in one place and {} {:?} in another: use a name for one tensor only",
        name.escape_debug(), first.0, first.1, second.0, second.1
    )]
    Redefined {
        /// The name.
        name: String,
        /// The first dtype and shape.
        first: TensorType,
        /// The second dtype and shape.
        second: TensorType,
    },

    /// A dtype without arithmetic.
    #[error(
        "{op}: cannot convert {from} to {to}: operands must be F64, F32, F16, BF16, F8_E4M3, F8_E5M2 or \
         F8_E8M0, results must be one of the first four"
    )]
    NotFloat {
        /// The operation.
        op: &'static str,
        /// The operand's dtype.
        from: Dtype,
        /// The result's dtype.
        to: Dtype,
    },

    /// Operands that a computation rejects.
    #[error("{op}: {message}")]
    Operands {
        /// The computation.
        op: &'static str,
        /// The problem.
        message: String,
    },

    /// A region that is not part of the expression.
    #[error("{region:?} is not a region of shape {shape:?}: pass a range inside each dim")]
    Region {
        /// The region.
        region: Vec<Range<u64>>,
        /// The expression's shape.
        shape: Vec<u64>,
    },

    /// A layout that needs too many copies.
    #[error(
        "a region of shape {shape:?} needs more than {limit} copies because of {op}; request \
         regions along its rows, or change the order of the operations"
    )]
    Fragmented {
        /// The expression's shape.
        shape: Vec<u64>,
        /// The maximum.
        limit: usize,
        /// The operation that exceeded the limit.
        op: &'static str,
    },
}
