//! The bias of a router: it evens the load, and everything else stays as it was.

use meshgrad_autograd::{Module, Var};
use meshgrad_models::balance::update_router_bias;
use meshgrad_models::moe::Moe;
use meshgrad_models::{Balancing, Compute, Qwen3};
use meshgrad_runtime::{DType, Device, Key, Tensor, ops};

use crate::{EXPERTS, F32, config, gradients, ids, model};

fn imbalance(counts: &Tensor) -> f32 {
    let counts = counts.to_vec::<f32>().unwrap();
    let largest = counts.iter().copied().fold(0.0, f32::max);
    largest * counts.len() as f32 / counts.iter().sum::<f32>()
}

/// Biases that differ from expert to expert, far enough to change choices.
fn give_biases(model: &mut Qwen3, device: &Device) {
    model.add_router_biases(device).unwrap();
    for (layer, bias) in model.router_biases().enumerate() {
        let key = Key::new(layer as u64);
        ops::uniform_into(&bias.value, key, -0.2, 0.2).unwrap();
    }
}

/// Tokens that have much in common want the same experts. The bias spreads them in the end, over
/// batches of other tokens too.
#[test]
fn a_skewed_load_becomes_even() {
    let device = Device::cpu();
    let mut moe = Moe::new("mlp", &config(EXPERTS)).unwrap();
    moe.materialize(&device, 1).unwrap();
    moe.add_bias(&device).unwrap();
    let bias = moe.bias().unwrap().value.clone();
    let counts = |batch: u64| {
        let key = Key::new(batch);
        let x = ops::normal(&device, &[512, 32], DType::F32, key, 1.0, 1.0).unwrap();
        moe.forward(&Var::constant(x)).unwrap().1.counts
    };

    let before = imbalance(&counts(0));
    for batch in 1..=400 {
        update_router_bias(&bias, &counts(batch), 0.001).unwrap();
    }
    let after = imbalance(&counts(0));
    assert!(before > 2.0 && after < 1.25, "{before} became {after}");
}

/// A bias of zeros changes no bit; another changes who is chosen.
#[test]
fn zeros_change_nothing() {
    let device = Device::cpu();
    let ids = ids(&device, 2, 24);
    let plain = model(EXPERTS, &device);
    let mut biased = plain.clone();
    biased.add_router_biases(&device).unwrap();
    let names: Vec<&str> = biased.router_biases().map(|bias| &*bias.name).collect();
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

    give_biases(&mut biased, &device);
    let (_, changed) = gradients(&biased, &ids, F32, Balancing::default());
    assert!(expected != changed);
}

/// Computing a layer again chooses the same experts.
#[test]
fn recomputation_sees_the_same_bias() {
    let device = Device::cpu();
    let ids = ids(&device, 2, 24);
    let mut model = model(EXPERTS, &device);
    give_biases(&mut model, &device);
    let checkpointing = Compute {
        checkpointing: true,
        ..F32
    };
    let balancing = Balancing {
        auxiliary: 0.01,
        z: 0.001,
    };

    let (kept, expected) = gradients(&model, &ids, F32, balancing);
    let (again, actual) = gradients(&model, &ids, checkpointing, balancing);
    assert!(expected == actual);
    for (a, b) in kept.expert_counts.iter().zip(&again.expert_counts) {
        assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    }
}

/// Where all scores are zero, the z-loss is (ln E)^2: the loss grows by that, times coefficient and
/// tokens, and cross-entropy stays.
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
        let balancing = Balancing { auxiliary: 0.0, z };
        let loss = model.loss(&ids, &ids, F32, balancing).unwrap();
        let item = |tensor: &Tensor| f64::from(tensor.item::<f32>().unwrap());
        (item(loss.total.value()), item(&loss.cross_entropy))
    };

    let ((plain, _), (total, cross_entropy)) = (losses(0.0), losses(0.5));
    assert_eq!(cross_entropy, plain);
    let expected = 0.5 * 48.0 * 8f64.ln().powi(2);
    assert!(((total - plain) / expected - 1.0).abs() < 1e-5);
}
