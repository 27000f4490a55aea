//! RMSNorm and its gradients.

use super::{Family, ROW_FEATURES};
use meshgrad_kernels::rms_norm::{RmsNorm, RmsNormGradInput};
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn rms_norm() -> Family {
    let mut kernels = Vec::new();
    for dtype in Dtype::ALL {
        for features in ROW_FEATURES {
            kernels.push(RmsNorm::new(dtype, features, true).ptx());
            kernels.push(RmsNormGradInput::new(dtype, features, true).ptx());
        }
    }
    kernels.into_iter().map(Ok).collect()
}
