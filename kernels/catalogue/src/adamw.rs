//! AdamW for parameters of each kind, and of all kinds.

use super::Family;
use meshgrad_kernels::Variant;
use meshgrad_kernels::adamw::AdamW;

pub(super) fn adamw() -> Family {
    let kinds =
        [[true, false, false], [false, true, false], [false, false, true], [true, true, true]];
    let kernels =
        kinds.map(|[f32, bf16, bf16_stochastic]| Ok(AdamW { f32, bf16, bf16_stochastic }.ptx()));
    kernels.into()
}
