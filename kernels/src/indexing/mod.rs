//! Elements and rows that indices choose: reading them, and the sums that are the gradients of that.
//!
//! An index is read on the GPU. One that is out of range is told to the host ([`crate::faults`]) and
//! chooses nothing: zeros are read there, and nothing is added.

mod gather;
mod ids;
mod keys;
mod select;
mod sums;

pub use gather::{Gather, GatherArguments};
pub use ids::{IndexDtype, IndexedDim};
pub use keys::{IndexKeys, IndexKeysArguments};
pub use select::{IndexSelect, IndexSelectArguments};
pub use sums::{SegmentStarts, SegmentStartsArguments, SegmentSum, SegmentSumArguments};
