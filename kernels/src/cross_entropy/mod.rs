//! The rows of a tile of logits: cross entropy fused with its linear layer (Wijmans et al. 2024).
//!
//! Legend: a tile has rows and classes; its lines lie `leading` elements apart.
//!
//! ```text
//! max_r         = max_c logit_rc
//! sum_exp_r     = sum_c e^(logit_rc - max_r)
//! label_logit_r = logit_r,label(r), or 0 where no class of the tile is the label
//! dlogit_rc     = dloss_r (e^(logit_rc - lse_r) - [c = label(r)]), or 0 in rows that do not count
//! ```
//!
//! A product makes a tile in f32; these kernels read it once, in accesses of 16 bytes that are all
//! in flight, and keep it in registers: up to 512 classes in a warp, up to [`MAX_CLASSES`] in a
//! CTA. Statistics of one tile are merged with those of the tiles before, so that a vocabulary of
//! any size needs the memory of one tile.
//!
//! Labels are of any index dtype. One that is neither a class nor ignored is reported
//! ([`crate::faults`]), and taken as a class of another shard.

mod gradient;
mod labels;
mod row;
mod statistics;
mod sum;

pub use gradient::{CrossEntropyGradient, CrossEntropyGradientArguments};
pub use labels::{Classes, Label};
pub use row::{Lanes, MAX_CLASSES};
pub use statistics::{CrossEntropyStatistics, CrossEntropyStatisticsArguments};
pub use sum::{CrossEntropySum, CrossEntropySumArguments};
