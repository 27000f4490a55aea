//! Top-k routing and its gradient.

use super::Family;
use meshgrad_kernels::router::{RouterTopK, RouterTopKGrad};
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn router() -> Family {
    let mut kernels = Vec::new();
    for dtype in Dtype::ALL {
        for experts in ROUTED_EXPERTS {
            for flags in [[false, false], [true, true]] {
                kernels.push(RouterTopK::new(dtype, experts, true, flags).ptx());
            }
        }
        for experts in &ROUTED_EXPERTS[..2] {
            for renormalize in [false, true] {
                kernels.push(RouterTopKGrad::new(dtype, *experts, true, renormalize).ptx());
            }
        }
    }
    kernels.into_iter().map(Ok).collect()
}

/// Numbers of experts: whole vectors, not whole vectors, and more than fit in registers.
pub const ROUTED_EXPERTS: [u32; 3] = [128, 57, 520];
