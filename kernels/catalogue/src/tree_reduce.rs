//! Reductions of the tensors of several ranks.

use super::Family;
use meshgrad_kernels::Variant;
use meshgrad_kernels::copies::Format;
use meshgrad_kernels::tree_reduce::{MAX_SOURCES, TreeOp, TreeReduce};

/// Operations, formats and numbers of sources: every format, full and ragged trees, and the most
/// sources.
pub const TREES: [(TreeOp, Format, usize); 18] = [
    (TreeOp::Sum, Format::F64, 3),
    (TreeOp::Mean, Format::F64, 1),
    (TreeOp::Mean, Format::F64, 2),
    (TreeOp::Mean, Format::F64, MAX_SOURCES),
    (TreeOp::Sum, Format::F32, 8),
    (TreeOp::Max, Format::F32, 3),
    (TreeOp::Sum, Format::F32, MAX_SOURCES),
    (TreeOp::Sum, Format::Bf16, 1),
    (TreeOp::Mean, Format::Bf16, 5),
    (TreeOp::Min, Format::Bf16, 4),
    (TreeOp::Max, Format::Bf16, MAX_SOURCES),
    (TreeOp::Mean, Format::F16, 7),
    (TreeOp::Max, Format::F16, 2),
    (TreeOp::Sum, Format::I64, 6),
    (TreeOp::Min, Format::I32, 3),
    (TreeOp::Max, Format::U32, 3),
    (TreeOp::Sum, Format::U8, 8),
    (TreeOp::Max, Format::Bool, 2),
];

pub(super) fn tree_reduce() -> Family {
    let kernels = TREES.into_iter();
    let kernels = kernels.map(|(op, format, n)| Ok(TreeReduce::new(op, format, n)?.ptx()));
    kernels.collect()
}
