//! NVIDIA's assembler takes every kernel that the ops launch, without a warning: the functions that
//! elementwise ops write down among them, which no list of the kernels' crate can know.

#[path = "../../../../kernels/tests/ptxas/assemble.rs"]
mod assemble;
mod attention;
mod copies;
mod cross_entropy;
mod functions;
mod gates;
mod grouped;
mod indexing;
mod moe;
mod norms;
mod optimizer;
mod positions;
mod products;
mod random;
mod ranks;
mod reductions;
mod softmax;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use meshgrad_kernels::{Ptx, Variant};

use crate::{Accumulator, DType, Device, GpuProperties, Properties, Result, Shape, Tensor, ops};

/// Kernels by name, and the ops that launched any.
#[derive(Default)]
struct Launched {
    kernels: BTreeMap<String, Ptx>,
    ops: BTreeSet<&'static str>,
}

thread_local! {
    /// What this thread launches, while somebody listens.
    static LAUNCHED: RefCell<Option<Launched>> = const { RefCell::new(None) };
}

/// Takes down a launch.
pub(super) fn note(op: &'static str, variant: &impl Variant) {
    LAUNCHED.with_borrow_mut(|launched| {
        if let Some(launched) = launched {
            launched.ops.insert(op);
            let kernel = launched.kernels.entry(variant.entry());
            kernel.or_insert_with(|| variant.ptx());
        }
    });
}

/// What `work` launches on a GPU that computes nothing.
fn launched(work: impl FnOnce(&Device) -> Result<()>) -> Launched {
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
    LAUNCHED.set(Some(Launched::default()));
    work(&device).unwrap();
    LAUNCHED.take().unwrap()
}

/// Launches all kernels of some ops, with operands of one dtype.
type Launches = fn(&Device, DType) -> Result<()>;

const LAUNCHES: &[Launches] = &[
    functions::functions,
    copies::copies,
    indexing::indexing,
    norms::norms,
    products::products,
    cross_entropy::cross_entropy,
    grouped::grouped,
    gates::gates,
    moe::expert_order,
    moe::token_rows,
    positions::positions,
    random::random,
    moe::router,
    optimizer::optimizer,
    softmax::softmax,
    reductions::reductions,
    attention::attention,
    ranks::ranks,
    norms::gradients,
];

#[test]
fn every_kernel_of_an_op_assembles_without_a_warning() {
    let launched = launched(|device| {
        for dtype in [DType::F32, DType::BF16] {
            for launches in LAUNCHES {
                launches(device, dtype)?;
            }
        }
        Ok(())
    });

    // The functions of elementwise ops are kernels of the ops, not of the catalogue: all are here.
    let missing: Vec<&str> = ops::signatures()
        .map(|op| op.name())
        .filter(|op| !launched.ops.contains(op))
        .collect();
    assert!(missing.is_empty(), "ops that launched nothing: {missing:?}");

    let kernels: Vec<Ptx> = launched.kernels.into_values().collect();
    assemble::assemble(&kernels, "ptxas.txt");
}

fn tensor(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
    ops::full(device, shape, dtype, 1.0)
}

fn gradient(device: &Device, shape: &[usize]) -> Result<Accumulator> {
    Accumulator::new(device, Shape::new(shape)?, DType::F32)
}
