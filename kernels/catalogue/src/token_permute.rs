//! Permuting tokens into expert order and back.

use super::Family;
use meshgrad_kernels::token_permute::{PermuteTokens, UnpermuteGradWeights, UnpermuteTokens};
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn token_permute() -> Family {
    let mut kernels = Vec::new();
    for dtype in Dtype::ALL {
        for features in TOKEN_FEATURES {
            for weighted in [false, true] {
                kernels.push(PermuteTokens::new(dtype, features, true, weighted).ptx());
                kernels.push(UnpermuteTokens::new(dtype, features, true, weighted).ptx());
            }
            kernels.push(UnpermuteGradWeights::new(dtype, features, true).ptx());
        }
    }
    kernels.into_iter().map(Ok).collect()
}

/// Features per row: a few lanes, a warp, and not whole vectors.
pub const TOKEN_FEATURES: [u32; 3] = [24, 520, 7];
