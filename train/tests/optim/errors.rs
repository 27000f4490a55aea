//! Errors of optimizers name the parameter or constant, the values and the remedy.

use std::sync::OnceLock;

use meshgrad_runtime::{DType, Device, Kind, Tensor};
use meshgrad_train::optim::{
    AdamW, AdamWConfig, Groups, Lion, LionConfig, Muon, MuonConfig, Optimizer, Part, Rounding, Sgd,
    SgdConfig,
};

use crate::training::Scalars;

fn cpu() -> &'static Device {
    static CPU: OnceLock<Device> = OnceLock::new();
    CPU.get_or_init(Device::cpu)
}

fn value(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(cpu(), shape, dtype, Kind::Parameter).unwrap()
}

fn part(rows: std::ops::Range<usize>, dtype: DType) -> Part {
    let value = value(&[rows.len(), 6], dtype);
    Part::new("experts", value, &[3, 4, 6], rows).unwrap()
}

fn message<T, E: std::fmt::Display>(result: Result<T, E>) -> String {
    result
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default()
}

#[test]
fn parts_have_their_rows() {
    let of =
        |shape: &[usize], rows| message(Part::new("w", value(shape, DType::F32), &[3, 4, 6], rows));
    assert_eq!(
        of(&[5, 6], 8..13),
        "part of `w`: rows 8..13 are outside of the 12 rows of shape [3, 4, 6]"
    );
    assert_eq!(
        of(&[5, 6], 0..4),
        "part of `w`: rows 0..4 of a parameter of shape [3, 4, 6] need 24 elements in a contiguous \
         tensor, but the value has shape [5, 6]"
    );
    let transposed = value(&[6, 4], DType::F32).transpose(0, 1).unwrap();
    assert!(message(Part::new("w", transposed, &[4, 6], 0..4)).contains("contiguous"));
    let scalar = Part::new("s", value(&[], DType::F32), &[], 0..1).unwrap();
    assert_eq!(scalar.rows(), 0..1);
}

#[test]
fn a_step_needs_the_parts_of_the_construction() {
    let (device, groups) = (cpu(), Groups::default());
    let parts = [part(0..4, DType::F32)];
    let mut lion = Lion::new(&parts, LionConfig::default(), &groups).unwrap();
    let gradient = Tensor::from_slice(device, &[4, 6], &[0.0f32; 24]).unwrap();
    let scalars = Scalars::new(device, 1, 1.0);
    let mut step =
        |parts: &[Part], gradients: &[Tensor]| message(lion.step(parts, gradients, scalars.lend()));

    assert_eq!(step(&parts, std::slice::from_ref(&gradient)), "");
    assert_eq!(
        step(&parts, &[]),
        "the optimizer was constructed with 1 part(s); the step has 1, and 0 gradient(s)"
    );
    assert_eq!(
        step(&[part(4..8, DType::F32)], std::slice::from_ref(&gradient)),
        "a part was `experts` f32[4, 6], rows 0..4 of [3, 4, 6], but is now `experts` f32[4, 6], \
         rows 4..8 of [3, 4, 6]; construct the optimizer again"
    );
    let one = Tensor::from_slice(device, &[1], &[0.0f32]).unwrap();
    assert_eq!(
        step(&parts, &[one]),
        "the gradient of `experts` has shape [1], but the value has shape [4, 6]"
    );
}

#[test]
fn configurations_are_checked() {
    let (parts, groups) = ([part(2..6, DType::F32)], Groups::default());
    assert_eq!(
        message(Muon::new(&parts, MuonConfig::default(), &groups)),
        "`experts`: rows 2..6 split a matrix of 4 rows, but muon needs whole matrices"
    );
    let products = MuonConfig {
        product_dtype: DType::F64,
        ..MuonConfig::default()
    };
    assert_eq!(
        message(Muon::new(&parts, products, &groups)),
        "muon: products cannot be f64; use bf16 or f32"
    );
    let beta1 = AdamWConfig {
        beta1: 1.0,
        ..AdamWConfig::default()
    };
    assert_eq!(
        message(AdamW::new(&parts, beta1, &groups)),
        "adamw: beta1 is 1, but must be in [0, 1)"
    );
    let nesterov = SgdConfig {
        nesterov: true,
        ..SgdConfig::default()
    };
    assert_eq!(
        message(Sgd::new(&parts, nesterov, &groups)),
        "sgd: momentum is 0, but must be above 0 with nesterov"
    );
    let bf16 = AdamWConfig {
        state_dtype: DType::BF16,
        ..AdamWConfig::default()
    };
    assert_eq!(
        message(AdamW::new(&[part(0..4, DType::F64)], bf16, &groups)),
        "adamw: state of `experts` (f64) cannot be bf16; use f32 or bf16 state with f32 or bf16 \
         parameters"
    );
    let rounding = AdamWConfig {
        rounding: Rounding::Stochastic,
        ..AdamWConfig::default()
    };
    assert_eq!(
        message(AdamW::new(&[part(0..4, DType::F32)], rounding, &groups)),
        "adamw: stochastic rounding has no effect, because no parameter is bf16: `experts` is f32; \
         use rounding nearest, or parameters in bf16"
    );
    let mixed = [part(0..4, DType::F32), part(4..8, DType::BF16)];
    assert_eq!(message(AdamW::new(&mixed, rounding, &groups)), "");
    let eps = AdamWConfig {
        eps: 0.0,
        ..AdamWConfig::default()
    };
    assert_eq!(
        message(AdamW::new(&parts, eps, &groups)),
        "adamw: eps is 0, but must be finite and above 0"
    );
    let decay = LionConfig {
        weight_decay: f64::NAN,
        ..LionConfig::default()
    };
    assert_eq!(
        message(Lion::new(&parts, decay, &groups)),
        "lion: weight_decay is NaN, but must be finite and at least 0"
    );
}
