//! RMSNorm and its gradients.

use super::{COLUMN_FEATURES, Family, ROW_FEATURES};
use meshgrad_kernels::rms_norm::{RmsNorm, RmsNormGradInput, RmsNormGradWeight, SumPartials};
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn rms_norm() -> Family {
    let mut kernels = vec![SumPartials::new(false).ptx(), SumPartials::new(true).ptx()];
    for dtype in Dtype::ALL {
        for features in ROW_FEATURES {
            kernels.push(RmsNorm::new(dtype, features, true).ptx());
            kernels.push(RmsNormGradInput::new(dtype, features, true).ptx());
        }
        for features in COLUMN_FEATURES {
            kernels.push(RmsNormGradWeight::new(dtype, features, true).ptx());
        }
    }
    kernels.into_iter().map(Ok).collect()
}
