//! Cross-entropy: statistics and gradients of tiles of logits, and sums of losses.

use super::Family;
use meshgrad_kernels::cross_entropy::{
    CrossEntropyGradient, CrossEntropyStatistics, CrossEntropySum, Label, Lanes,
};
use meshgrad_kernels::{Dtype, Variant};

/// All kernels with 64-bit labels; other labels only with rows that a warp handles.
pub(super) fn cross_entropy() -> Family {
    let mut kernels = Vec::new();
    for lanes in Lanes::ALL {
        for label in labels(lanes) {
            for first in [true, false] {
                let variant = CrossEntropyStatistics { lanes, label: *label, first };
                kernels.push(Ok(variant.ptx()));
            }
            for dtype in Dtype::ALL {
                let variant = CrossEntropyGradient { dtype, lanes, label: *label };
                kernels.push(Ok(variant.ptx()));
            }
        }
    }
    for dtype in Dtype::ALL {
        for label in Label::ALL {
            kernels.push(Ok(CrossEntropySum { dtype, label }.ptx()));
        }
    }
    kernels
}

fn labels(lanes: Lanes) -> &'static [Label] {
    match lanes {
        Lanes::Warp => &Label::ALL,
        Lanes::Cta => &[Label::I64],
    }
}
