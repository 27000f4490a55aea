//! Cross entropy on tiles of logits, for a fused linear layer (Wijmans et al. 2024).
//!
//! Legend: r is a row and c a class of a tile of logits. Consecutive rows are `leading` elements
//! apart.
//!
//! ```text
//! max_r         = max_c logit_rc
//! sum_exp_r     = sum_c e^(logit_rc - max_r)
//! label_logit_r = logit_r,label(r), or 0 if the label is not in the tile
//! dlogit_rc     = dloss_r (e^(logit_rc - lse_r) - [c = label(r)]), or 0 in ignored rows
//! ```
//!
//! A matrix product writes a tile in f32. These kernels read it once and keep it in registers: up
//! to 512 classes in a warp, up to [`MAX_CLASSES`] in a CTA. All 16-byte loads of a row are in
//! flight together. The statistics of a tile are merged with those of earlier tiles, so a
//! vocabulary of any size needs the memory of one tile.
//!
//! Labels may have any index dtype. A label that is neither a class nor ignored is reported
//! ([`crate::faults`]) and treated as a class of another shard.

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
