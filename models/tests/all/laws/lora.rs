//! Low-rank updates of projections inside a model.

use approx::{assert_relative_eq, assert_relative_ne};
use meshgrad_autograd::{Grads, Module, Param, Tape, ops};
use meshgrad_ckpt::Snapshot;
use meshgrad_models::hf::{self, Experts};
use meshgrad_models::{Decoder, Model, TokenBatch};
use meshgrad_runtime::{Device, Tensor};

use crate::laws::{EXPERTS, F32, ids, model};

/// The model with low-rank updates of some projections, and the parameters of the updates.
fn adapted(device: &Device) -> (Decoder, Vec<Param>) {
    let mut model = model(EXPERTS, device);
    model.freeze();
    for layer in &mut model.layers {
        layer.self_attn.q_proj.add_lora(3, 6.0);
        layer.self_attn.v_proj.add_lora(3, 6.0);
    }
    let added = model.trained();
    assert_eq!(added.len(), 4 * model.layers.len());
    for param in &added {
        param.materialize(device, 5).unwrap();
    }
    (model, added)
}

fn loss(model: &Decoder, ids: &Tensor) -> f32 {
    let loss = model.loss(&TokenBatch::new(ids, ids), F32).unwrap();
    loss.sum.item().unwrap()
}

/// One step of gradient descent on `params`; returns the number of nonzero gradients.
fn descend(model: &Decoder, params: &[Param], ids: &Tensor, rate: f64) -> usize {
    let batch = TokenBatch::new(ids, ids);
    let (loss, tape) = Tape::record(|| model.loss(&batch, F32)).unwrap();
    let mut grads = Grads::new(params).unwrap();
    let seed = ops::reciprocal(&loss.weight).unwrap();
    tape.backward_from(&[(&loss.total, seed)], &mut grads).unwrap();
    let mut moved = 0;
    for param in params {
        let gradient = grads.get(param).unwrap();
        moved += usize::from(gradient.to_vec::<f32>().unwrap().iter().any(|x| *x != 0.0));
        let step = ops::affine(&gradient, -rate, 0.0).unwrap();
        param.set(&(&param.value().unwrap() + &step).unwrap()).unwrap();
    }
    moved
}

/// An update changes nothing at first. Training only the updates lowers the loss, moves no other
/// parameter, and the merged model computes the same.
#[test]
fn adapters_train_without_other_parameters_and_merge() {
    let device = Device::cpu();
    let ids = ids(&device, 2, 11);
    let plain = model(EXPERTS, &device);
    let (mut model, added) = adapted(&device);
    let frozen: Vec<Param> = plain.params();
    let values = |params: &[Param]| -> Vec<Vec<f32>> {
        params.iter().map(|param| param.value().unwrap().to_vec().unwrap()).collect()
    };
    let before = values(&frozen);
    let first = loss(&model, &ids);
    assert_eq!(first, loss(&plain, &ids));

    // b is zero at first, so a has no gradient in the first step.
    assert_eq!(descend(&model, &added, &ids, 0.5), added.len() / 2);
    assert_eq!(descend(&model, &added, &ids, 0.5), added.len());
    let trained = loss(&model, &ids);
    assert!(trained < first, "{first} to {trained}");
    let own: Vec<Param> =
        model.params().into_iter().filter(|param| !param.name().contains("lora_")).collect();
    assert_eq!(own.len(), frozen.len());
    assert_eq!(values(&own), before);

    for layer in &mut model.layers {
        layer.self_attn.q_proj.merge_lora().unwrap();
        layer.self_attn.v_proj.merge_lora().unwrap();
    }
    assert_eq!(model.params().len(), frozen.len());
    let merged = loss(&model, &ids);
    assert_relative_eq!(merged, trained, max_relative = 1e-4);
    assert_relative_ne!(merged, first, max_relative = 1e-3);
}

/// A model that is written as a Hugging Face folder is read with its updates. A rank that differs
/// from that of the tensors is an error.
#[test]
fn adapters_are_stored_with_their_model() {
    let device = Device::cpu();
    let (model, _) = adapted(&device);
    let temp = tempfile::tempdir().unwrap();
    for (name, folder) in [("root", ""), ("nested", "inside")] {
        let mut snapshot = Snapshot::new(temp.path(), name);
        hf::add_model(&model, Experts::OneByOne, &mut snapshot, folder).unwrap();
        snapshot.save().unwrap();
        let read = hf::load(&temp.path().join(name).join(folder), &device).unwrap();
        let values = |model: &Decoder| -> Vec<(String, Vec<f32>)> {
            let params = model.params().into_iter();
            params.map(|it| (it.name().to_owned(), it.value().unwrap().to_vec().unwrap())).collect()
        };
        assert_eq!(values(&read.model), values(&model), "{name}");
    }

    let (root, ids) = (temp.path().join("root"), ids(&device, 2, 11));
    let read = hf::load(&root, &device).unwrap().model;
    assert_eq!(loss(&read, &ids), loss(&model, &ids));

    let file = root.join("lora.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let path = "model.layers.0.self_attn";
    let huge = usize::MAX.to_string();
    for (change, to, expected) in [
        ("3", "0", "has rank 0, but must have at least 1"),
        ("3", "4", "q_proj` has rank 4, but `"),
        ("3", &huge, "lora_A.weight` has shape [3, "),
        ("3", "-1", "invalid value: integer `-1`"),
        ("q_proj", "k_proj", "k_proj` has rank 3, but there is no tensor `"),
    ] {
        std::fs::write(&file, text.replacen(change, to, 1)).unwrap();
        let error = hf::load(&root, &device).err().unwrap().to_string();
        assert!(error.contains("lora.json: "), "{error}");
        assert!(error.contains(expected), "{change} to {to}: {error}");
        assert!(to == "-1" || error.contains(path), "{error}");
    }
}
