//! Launches every kernel of every op. `ptxas` must assemble each kernel without a warning, and the
//! emulator runs each in ten schedules. Every instruction must be executed by some launch.
//!
//! This includes the kernels generated for elementwise ops, which the catalogue of the `kernels`
//! crate cannot list.

mod attention;
mod copies;
mod cross_entropy;
mod elementwise;
mod grouped;
mod indexing;
mod matmul;
mod moe;
mod norms;
mod operands;
mod optimizer;
mod order;
mod positions;
mod ptxas;
mod random;
mod reductions;
mod schedules;
mod softmax;
mod swiglu;
mod top_k;
mod tree_reduce;

use crate::launch::recorded::{Launched, record};
use operands::{extremes, gradient, indices, tensor};

use crate::{DType, Device, GpuProperties, Properties, Result};

/// Launches all kernels of some ops, with operands of one dtype.
type Launches = fn(&Device, DType) -> Result<()>;

/// The launches of each family of ops, by its name.
const LAUNCHES: &[(&str, Launches)] = &[
    ("elementwise", elementwise::elementwise),
    ("copies", copies::copies),
    ("indexing", indexing::indexing),
    ("norms", norms::norms),
    ("matmul", matmul::matmul),
    ("cross_entropy", cross_entropy::cross_entropy),
    ("grouped", grouped::grouped),
    ("swiglu", swiglu::swiglu),
    ("expert_order", moe::expert_order),
    ("token_permute", moe::token_permute),
    ("positions", positions::positions),
    ("random", random::random),
    ("router", moe::router),
    ("optimizer", optimizer::optimizer),
    ("softmax", softmax::softmax),
    ("reductions", reductions::reductions),
    ("attention", attention::attention),
    ("top_k", top_k::top_k),
    ("order", order::order),
    ("gradients", norms::gradients),
    ("tree_reduce", tree_reduce::tree_reduce),
];

/// The dtypes that ops compute in on a GPU.
const DTYPES: [DType; 2] = [DType::F32, DType::BF16];

/// Records the launches of a family on a meta device.
fn launched(launches: Launches) -> Launched {
    let gpu = GpuProperties {
        model: "counted".into(),
        compute_capability: (9, 0),
        multiprocessors: 132,
        memory: 1 << 30,
        l2_cache: 50 << 20,
        shared_memory: 232_448,
    };
    let device = Device::meta(&Properties {
        gpu: Some(gpu),
        ..Device::cpu().properties().clone()
    });
    record(|| {
        for dtype in DTYPES {
            launches(&device, dtype).unwrap();
        }
    })
}
