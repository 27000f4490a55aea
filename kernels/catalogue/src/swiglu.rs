//! The gated linear unit and its gradient.

use super::Family;
use meshgrad_kernels::swiglu::{SwiGlu, SwiGluGrad};
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn swiglu() -> Family {
    let mut kernels = Vec::new();
    for dtype in Dtype::ALL {
        for aligned in [true, false] {
            kernels.push(SwiGlu::new(dtype, [3, 64], aligned).ptx());
            kernels.push(SwiGluGrad::new(dtype, [3, 64], aligned).ptx());
        }
    }
    kernels.into_iter().map(Ok).collect()
}
