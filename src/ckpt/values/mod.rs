//! The elements of tensors: decoded, summarized and compared in chunks of bounded size.

mod decode;
mod difference;
mod segments;
mod statistics;

pub(super) use difference::{Difference, ULP_BUCKETS, comparable, differences};
pub(super) use segments::{Workers, parallel_map, progress_bar};
pub(super) use statistics::{Statistics, float_text, statistics};
