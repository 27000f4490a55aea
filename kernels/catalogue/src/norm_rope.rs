//! QK-norm fused with RoPE.

use super::Family;
use super::rope::{HEADS, heads};
use meshgrad_kernels::norm_rope::{NormRope, NormRopeGradInput, NormRopeGradWeight};
use meshgrad_kernels::rope::Style;
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn norm_rope() -> Family {
    let mut kernels = Vec::new();
    for dtype in Dtype::ALL {
        for style in Style::ALL {
            for extents in HEADS {
                let heads = heads(extents);
                kernels.push(NormRope::new(dtype, style, &heads, true).ptx());
                kernels.push(NormRopeGradInput::new(dtype, style, &heads, true).ptx());
                kernels.push(NormRopeGradWeight::new(dtype, style, &heads, true).ptx());
            }
        }
    }
    kernels.into_iter().map(Ok).collect()
}
