//! Attention and its gradients.

use super::Family;
use meshgrad_kernels::attention::{
    Attention, AttentionDelta, AttentionGradKeys, AttentionGradQueries, Form, Lines, Products,
    TokenWords, VisibleKeys,
};
use meshgrad_kernels::{Dtype, Variant};

/// The tensor-core kernels of the catalogue.
pub const ON_TENSOR_CORES: [Lines; 5] = [
    of(64, Products::Warps),
    of(128, Products::Warps),
    of(200, Products::Warps),
    of(64, Products::Warpgroups),
    of(128, Products::Warpgroups),
];

const fn of(head_dim: u32, products: Products) -> Lines {
    Lines { head_dim, products }
}

pub(super) fn attention() -> Family {
    let on_cuda_cores = Dtype::ALL.map(Form::CudaCores);
    let forms = ON_TENSOR_CORES.map(Form::TensorCores);
    let mut kernels: Vec<_> = forms
        .into_iter()
        .chain(on_cuda_cores)
        .flat_map(|form| {
            [
                Attention::new(form).ptx(),
                AttentionGradQueries::new(form).ptx(),
                AttentionGradKeys::new(form).ptx(),
            ]
        })
        .collect();
    for (dtype, aligned) in [(Dtype::Bf16, true), (Dtype::Bf16, false), (Dtype::F32, false)] {
        let delta = AttentionDelta::new(dtype, 64, aligned);
        kernels.extend([false, true].map(|has_dlse| delta.with_dlse(has_dlse).ptx()));
    }
    kernels.extend([TokenWords.ptx(), VisibleKeys.ptx()]);
    kernels.into_iter().map(Ok).collect()
}
