//! The values of tensors: decoded, summed up, compared, always in pieces of bounded size.

mod decode;
mod difference;
mod segments;
mod statistics;

pub(super) use difference::{Difference, ULP_BUCKETS, comparable, differences};
pub(super) use segments::{Workers, parallel_map, progress_bar};
pub(super) use statistics::{Statistics, float_text, statistics};
