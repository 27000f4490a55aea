//! NVIDIA's assembler takes every kernel that the ops launch, without a warning: the functions that
//! elementwise ops write down among them, which no list of the kernels' crate can know.

#[path = "../../../kernels/tests/ptxas/assemble.rs"]
mod assemble;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use meshgrad_kernels::{Ptx, Variant};

use crate::{
    Accumulator, DType, Device, GpuProperties, Kind, Properties, Result, Shape, Tensor, ops,
};

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

#[test]
fn every_kernel_of_an_op_assembles_without_a_warning() {
    let launched = launched(|device| {
        for dtype in [DType::F32, DType::BF16] {
            functions(device, dtype)?;
            copies(device, dtype)?;
            norms(device, dtype)?;
            products(device, dtype)?;
        }
        Ok(())
    });

    // The functions of elementwise ops are kernels of the ops, not of the catalogue: all are here.
    let elementwise = ops::signatures().take_while(|op| op.name() != "attention");
    let missing: Vec<&str> = elementwise
        .map(|op| op.name())
        .filter(|op| !launched.ops.contains(op))
        .collect();
    assert!(missing.is_empty(), "not launched: {missing:?}");

    let kernels: Vec<Ptx> = launched.kernels.into_values().collect();
    assemble::assemble(&kernels, "ptxas.txt");
}

fn tensor(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
    ops::full(device, shape, dtype, 1.0)
}

fn gradient(device: &Device, shape: &[usize]) -> Result<Accumulator> {
    Accumulator::new(device, Shape::new(shape)?, DType::F32)
}

fn functions(device: &Device, dtype: DType) -> Result<()> {
    type Unary = fn(&Tensor) -> Result<Tensor>;
    type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let unary: [Unary; 16] = [
        ops::neg,
        ops::abs,
        ops::square,
        ops::sqrt,
        ops::rsqrt,
        ops::reciprocal,
        ops::exp,
        ops::ln,
        ops::sin,
        ops::cos,
        ops::tanh,
        ops::sigmoid,
        ops::silu,
        ops::relu,
        |x| ops::affine(x, 0.3, 0.7),
        |x| ops::clamp(x, 0.3, 0.7),
    ];
    let binary: [Binary; 29] = [
        ops::neg_grad,
        ops::abs_grad,
        ops::square_grad,
        ops::sqrt_grad,
        ops::rsqrt_grad,
        ops::reciprocal_grad,
        ops::exp_grad,
        ops::ln_grad,
        ops::sin_grad,
        ops::cos_grad,
        ops::tanh_grad,
        ops::sigmoid_grad,
        ops::silu_grad,
        ops::relu_grad,
        |x, dy| ops::clamp_grad(x, dy, 0.3, 0.7),
        ops::add,
        ops::sub,
        ops::mul,
        ops::div,
        ops::maximum,
        ops::minimum,
        ops::maximum_share,
        ops::eq,
        ops::ne,
        ops::lt,
        ops::le,
        ops::gt,
        ops::ge,
        |a, b| ops::select(&ops::lt(a, b)?, a, b),
    ];
    let x = tensor(device, &[64], dtype)?;
    for function in unary {
        function(&x)?;
    }
    for function in binary {
        function(&x, &x)?;
    }

    // Views of which no two dims can be walked as one.
    for dims in 1..=5 {
        let mut view = tensor(device, &[&[4; 5][..dims], &[2]].concat(), dtype)?.slice(-1, 0..1)?;
        for dim in 0..dims {
            view = view.slice(dim as isize, 0..3)?;
        }
        ops::add(&view, &view)?;
    }
    let mut into = gradient(device, &[64])?;
    ops::add_into(&x, &mut into)?;
    ops::add_into(&x, &mut into)
}

fn copies(device: &Device, dtype: DType) -> Result<()> {
    let x = tensor(device, &[6, 64], dtype)?;
    ops::copy(&x.transpose(0, 1)?)?;
    for to in [DType::F32, DType::BF16] {
        ops::cast(&x, to)?;
    }
    let cache = Tensor::zeros(device, &[6, 64], dtype, Kind::Cache)?;
    ops::copy_into(&x, &cache)?;
    ops::fill_into(&cache, 2.0)
}

fn norms(device: &Device, dtype: DType) -> Result<()> {
    for features in [64, 1024, 4096, 333] {
        let x = tensor(device, &[5, features], dtype)?;
        let w = tensor(device, &[features], dtype)?;
        let (y, inv_rms) = ops::rms_norm(&x, &w, 1e-6)?;
        ops::rms_norm_grad_input(&y, &x, &w, &inv_rms)?;
        let mut dw = gradient(device, &[features])?;
        ops::rms_norm_grad_weight_into(&y, &x, &inv_rms, &mut dw)?;
        ops::rms_norm_grad_weight_into(&y, &x, &inv_rms, &mut dw)?;
    }
    Ok(())
}

/// A small and a large tile, lines of whole vectors and odd ones, as a layer asks for them.
fn products(device: &Device, dtype: DType) -> Result<()> {
    for [rows, inputs, outputs] in [[8, 64, 64], [8, 33, 17], [2048, 64, 2048]] {
        let x = tensor(device, &[rows, inputs], dtype)?;
        let w = tensor(device, &[outputs, inputs], dtype)?;
        let dy = ops::linear(&x, &w)?;
        ops::linear_grad_input(&dy, &w)?;
        let mut dw = gradient(device, &[outputs, inputs])?;
        ops::linear_grad_weight_into(&dy, &x, &mut dw)?;
        ops::linear_grad_weight_into(&dy, &x, &mut dw)?;
        ops::matmul(&x, &w.transpose(0, 1)?)?;
    }
    Ok(())
}
