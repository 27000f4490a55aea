//! Gathers by index, and the segment sums that are their gradients.
//!
//! Indices are read on the GPU. An out-of-range index is reported to the host ([`crate::faults`])
//! and selects nothing: it reads as zeros, and its gradient is dropped.

mod gather;
mod ids;
mod keys;
mod select;
mod sums;

pub use gather::{Gather, GatherArguments};
pub use ids::{IndexDtype, IndexedDim};
pub use keys::{IndexKeys, IndexKeysArguments};
pub use select::{IndexSelect, IndexSelectArguments};
pub use sums::{SegmentStarts, SegmentStartsArguments, SegmentSum, SegmentSumArguments, Segments};
