//! The residual addition fused with the norm that follows it, and its gradient.

use super::{Family, ROW_FEATURES};
use meshgrad_kernels::add_rms_norm::{AddRmsNorm, AddRmsNormGradInput};
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn add_rms_norm() -> Family {
    let mut kernels = Vec::new();
    for dtype in Dtype::ALL {
        for features in ROW_FEATURES {
            kernels.push(AddRmsNorm::new(dtype, features, true).ptx());
            kernels.push(AddRmsNormGradInput::new(dtype, features, true).ptx());
        }
    }
    kernels.into_iter().map(Ok).collect()
}
