//! The values of tensors: decoded, summed up, compared, always in pieces of bounded size.

mod decode;
mod difference;
mod moments;
mod segments;

pub(super) use difference::{Difference, ULP_RANGES, comparable, differences};
pub(super) use moments::{Moments, float_text, moments};
pub(super) use segments::{Work, in_turn, progress_bar};
