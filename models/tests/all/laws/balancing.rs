//! Router biases balance the load and change nothing else.

use approx::assert_relative_eq;
use meshgrad_autograd::{Module, Var};
use meshgrad_models::moe::balance::update_router_bias;
use meshgrad_models::{Balancing, Compute, Decoder};
use meshgrad_runtime::{DType, Device, Key, Tensor, ops};

use crate::laws::{EXPERTS, F32, gradients, ids, model};
use crate::small::config;

fn imbalance(counts: &Tensor) -> f32 {
    let counts = counts.to_vec::<f32>().unwrap();
    let largest = counts.iter().copied().fold(0.0, f32::max);
    largest * counts.len() as f32 / counts.iter().sum::<f32>()
}

/// Adds random biases that are large enough to change the choice of experts.
fn add_random_biases(model: &mut Decoder, device: &Device) {
    model.add_router_biases();
    for (layer, bias) in model.buffers().iter().enumerate() {
        bias.materialize(device, 0).unwrap();
        let key = Key::new(layer as u64);
        ops::uniform_into(&bias.value().unwrap(), key, -0.2, 0.2).unwrap();
    }
}

/// Similar tokens are routed to the same experts. Router biases balance the load, even for other
/// batches.
#[test]
fn biases_balance_a_skewed_load() {
    let device = Device::cpu();
    let mut moe = config(EXPERTS).moe(&"mlp".into());
    moe.add_router_bias();
    moe.materialize(&device, 1).unwrap();
    let bias = moe.buffers()[0].value().unwrap();
    let counts = |batch: u64| {
        let key = Key::new(batch);
        let x = ops::normal(&device, &[512, 32], DType::F32, key, 1.0, 1.0).unwrap();
        moe.forward(&Var::constant(x)).unwrap().1.counts
    };

    let (before, one) = (imbalance(&counts(0)), Tensor::scalar(&device, 1.0f32).unwrap());
    for batch in 1..=400 {
        update_router_bias(&bias, &counts(batch), 0.001, &one).unwrap();
    }
    let after = imbalance(&counts(0));
    assert!(before > 2.0 && after < 1.25, "load {before} before, {after} after");
}

/// Biases of zero change no bit; others change the choice of experts.
#[test]
fn zero_biases_change_nothing() {
    let device = Device::cpu();
    let ids = ids(&device, 2, 24);
    let plain = model(EXPERTS, &device);
    let mut biased = plain.clone();
    biased.add_router_biases();
    let buffers = biased.buffers();
    for bias in &buffers {
        bias.materialize(&device, 0).unwrap();
    }
    let names: Vec<&str> = buffers.iter().map(|bias| bias.name()).collect();
    assert_eq!(
        names,
        [
            "model.layers.0.mlp.gate.e_score_correction_bias",
            "model.layers.1.mlp.gate.e_score_correction_bias"
        ]
    );
    assert_eq!(plain.params().len(), biased.params().len());

    let (_, expected) = gradients(&plain, &ids, F32, Balancing::default());
    let (_, actual) = gradients(&biased, &ids, F32, Balancing::default());
    assert!(expected == actual);

    add_random_biases(&mut biased, &device);
    let (_, changed) = gradients(&biased, &ids, F32, Balancing::default());
    assert!(expected != changed);
}

/// A recomputed layer chooses the same experts.
#[test]
fn recomputation_uses_the_same_bias() {
    let device = Device::cpu();
    let ids = ids(&device, 2, 24);
    let mut model = model(EXPERTS, &device);
    add_random_biases(&mut model, &device);
    let checkpointing = Compute { checkpointing: true, ..F32 };
    let balancing = Balancing { auxiliary: 0.01, z: 0.001, ..Balancing::default() };

    let (saved, expected) = gradients(&model, &ids, F32, balancing);
    let (recomputed, actual) = gradients(&model, &ids, checkpointing, balancing);
    assert!(expected == actual);
    for (a, b) in saved.statistics.iter().zip(&recomputed.statistics) {
        assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    }
}

/// If all router logits are zero, the z-loss is (ln E)^2. It adds that, times coefficient and
/// tokens, to the loss, and does not change the cross-entropy.
#[test]
fn the_z_loss_is_part_of_the_loss() {
    let device = Device::cpu();
    let (model, ids) = (model(EXPERTS, &device), ids(&device, 2, 24));
    for param in model.params() {
        if param.name().ends_with("mlp.gate.weight") {
            ops::fill_into(&param.value().unwrap(), 0.0).unwrap();
        }
    }
    let losses = |z: f64| {
        let balancing = Balancing { z, ..Balancing::default() };
        let (loss, _) = gradients(&model, &ids, F32, balancing);
        let item = |tensor: &Tensor| f64::from(tensor.item::<f32>().unwrap());
        (item(loss.total.value()), item(&loss.sum))
    };

    let ((plain, _), (total, cross_entropy)) = (losses(0.0), losses(0.5));
    assert_eq!(cross_entropy, plain);
    let expected = 0.5 * 48.0 * 8f64.ln().powi(2);
    assert_relative_eq!(total - plain, expected, max_relative = 1e-5);
}
