//! Launches of every kernel of every op: NVIDIA's assembler takes them without a warning, and the
//! emulator runs them in many orders until nothing of them is left that no launch reaches. The
//! functions that elementwise ops write down are among them, which no list of the kernels' crate
//! can know.

mod attention;
mod copies;
mod cross_entropy;
mod functions;
mod gates;
mod grouped;
mod indexing;
mod moe;
mod norms;
mod operands;
mod optimizer;
mod orders;
mod positions;
mod products;
mod ptxas;
mod random;
mod ranks;
mod reductions;
mod softmax;

use crate::launch::recorded::{Launched, record};
use operands::{extremes, gradient, indices, tensor};

use crate::{DType, Device, GpuProperties, Properties, Result};

/// Launches all kernels of some ops, with operands of one dtype.
type Launches = fn(&Device, DType) -> Result<()>;

/// By family.
const LAUNCHES: &[(&str, Launches)] = &[
    ("functions", functions::functions),
    ("copies", copies::copies),
    ("indexing", indexing::indexing),
    ("norms", norms::norms),
    ("products", products::products),
    ("cross_entropy", cross_entropy::cross_entropy),
    ("grouped", grouped::grouped),
    ("gates", gates::gates),
    ("expert_order", moe::expert_order),
    ("token_permute", moe::token_permute),
    ("positions", positions::positions),
    ("random", random::random),
    ("router", moe::router),
    ("optimizer", optimizer::optimizer),
    ("softmax", softmax::softmax),
    ("reductions", reductions::reductions),
    ("attention", attention::attention),
    ("ranks", ranks::ranks),
    ("gradients", norms::gradients),
];

/// Of the operands that ops compute with on a GPU.
const DTYPES: [DType; 2] = [DType::F32, DType::BF16];

/// What a family launches on a GPU that computes nothing.
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
