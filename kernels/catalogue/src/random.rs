//! Each distribution, in blocks and strided.

use super::Family;
use meshgrad_kernels::elementwise::Layout;
use meshgrad_kernels::random::{Distribution, Random};
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn random() -> Family {
    let strided = |dims, wide| Layout::Strided { dims, wide };
    let of = [
        (Distribution::Uniform, Dtype::F32, Layout::Contiguous),
        (Distribution::Uniform, Dtype::Bf16, Layout::Contiguous),
        (Distribution::Uniform, Dtype::Bf16, strided(2, false)),
        (Distribution::Normal, Dtype::F32, Layout::Contiguous),
        (Distribution::Normal, Dtype::Bf16, Layout::Contiguous),
        (Distribution::Normal, Dtype::F32, strided(2, true)),
        (Distribution::Dropout, Dtype::F32, Layout::Contiguous),
        (Distribution::Dropout, Dtype::Bf16, Layout::Contiguous),
        (Distribution::Dropout, Dtype::F32, strided(3, false)),
        (Distribution::Mask, Dtype::F32, Layout::Contiguous),
        (Distribution::Mask, Dtype::F32, strided(1, false)),
    ];
    let kernel = |(distribution, dtype, layout)| Ok(Random::new(distribution, dtype, layout).ptx());
    of.into_iter().map(kernel).collect()
}
