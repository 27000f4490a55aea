//! Sorting slots by expert.

use super::Family;
use meshgrad_kernels::Variant;
use meshgrad_kernels::expert_order::{
    ExpertCounts, ExpertHistogram, ExpertOffsets, ExpertPlaces, ExpertScatter, ExpertStarts,
    IndexFormat,
};

pub(super) fn expert_order() -> Family {
    let mut kernels =
        vec![ExpertStarts.ptx(), ExpertOffsets.ptx(), ExpertCounts.ptx(), ExpertPlaces.ptx()];
    for index in IndexFormat::ALL {
        for held in HELD_EXPERTS {
            kernels.push(ExpertHistogram::new(index, held).ptx());
            kernels.push(ExpertScatter::new(index, held).ptx());
        }
    }
    kernels.into_iter().map(Ok).collect()
}

/// Experts per CTA: few, and the maximum.
pub const HELD_EXPERTS: [u32; 2] = [8, 1000];
