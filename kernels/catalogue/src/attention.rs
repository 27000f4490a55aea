//! Attention and its gradients.

use super::Family;
use meshgrad_kernels::attention::{
    Attention, AttentionDelta, AttentionGradKeys, AttentionGradQueries, Form,
};
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn attention() -> Family {
    let on_tensor_cores = [64, 128, 200].map(|head_dim| Form::TensorCores { head_dim });
    let on_cuda_cores = Dtype::ALL.map(Form::CudaCores);
    let forms = on_tensor_cores.into_iter().chain(on_cuda_cores);
    let mut kernels: Vec<_> = forms
        .flat_map(|form| {
            [
                Attention::new(form).ptx(),
                AttentionGradQueries::new(form).ptx(),
                AttentionGradKeys::new(form).ptx(),
            ]
        })
        .collect();
    for (dtype, aligned) in [
        (Dtype::Bf16, true),
        (Dtype::Bf16, false),
        (Dtype::F32, false),
    ] {
        let delta = AttentionDelta::new(dtype, 64, aligned);
        kernels.extend([false, true].map(|has_dlse| delta.with_dlse(has_dlse).ptx()));
    }
    kernels.into_iter().map(Ok).collect()
}
