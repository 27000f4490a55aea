//! Softmax and its logarithm.

use super::Family;
use meshgrad_kernels::softmax::{Function, Softmax};
use meshgrad_kernels::{Dtype, Variant};

/// Dtypes and features of rows: a few lanes, a partly used warp, a partly used CTA; loops over
/// elements and over vectors.
pub const SOFTMAX_ROWS: [(Dtype, usize); 7] = [
    (Dtype::F32, 16),
    (Dtype::F32, 140),
    (Dtype::F32, 520),
    (Dtype::F32, 77),
    (Dtype::F32, 8196),
    (Dtype::Bf16, 264),
    (Dtype::Bf16, 77),
];

pub(super) fn softmax() -> Family {
    let mut kernels = Vec::new();
    for function in Function::ALL {
        for (dtype, features) in SOFTMAX_ROWS {
            kernels.push(Softmax::new(function, dtype, features, true).ptx());
        }
    }
    kernels.into_iter().map(Ok).collect()
}
