//! Low-rank updates of projections inside a model.

use std::path::Path;

use approx::{assert_relative_eq, assert_relative_ne};
use meshgrad_autograd::{Grads, Module, Param, Tape, ops};
use meshgrad_ckpt::Snapshot;
use meshgrad_models::hf::{self, Experts};
use meshgrad_models::lora::LoraConfig;
use meshgrad_models::{Decoder, Model, TokenBatch};
use meshgrad_runtime::{Device, Tensor};

use crate::laws::{F32, GROUPED, WINDOW, ids, model};

fn config(targets: &[&str], base: Option<&Path>) -> LoraConfig {
    LoraConfig {
        rank: 3,
        alpha: 6.0,
        rslora: false,
        targets: targets.iter().map(|name| (*name).to_owned()).collect(),
        base: base.map(|base| base.to_str().unwrap().to_owned()),
    }
}

/// The model with low-rank updates of some projections, and the parameters of the updates.
fn adapted(device: &Device, base: Option<&Path>) -> (Decoder, Vec<Param>) {
    let mut model = model(WINDOW, device);
    model.add_adapter(&config(&["self_attn.[qv]_proj", "up_proj"], base)).unwrap();
    let added = model.trained();
    assert_eq!(added.len(), 6 * model.layers.len());
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
    let plain = model(WINDOW, &device);
    let (mut model, added) = adapted(&device, None);
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

    model.merge_adapter().unwrap();
    assert_eq!(model.params().len(), frozen.len());
    let merged = loss(&model, &ids);
    assert_relative_eq!(merged, trained, max_relative = 1e-4);
    assert_relative_ne!(merged, first, max_relative = 1e-3);
}

/// An adapter is read with the weights of its own folder, or of the one that it names. What does not fit the
/// weights is an error that names both.
#[test]
fn adapters_are_stored_as_peft_does() {
    let device = Device::cpu();
    let temp = tempfile::tempdir().unwrap();
    let write = |model: &Decoder, name: &str, folder: &str| {
        let mut snapshot = Snapshot::new(temp.path(), name);
        hf::add_model(model, Experts::OneByOne, &mut snapshot, folder).unwrap();
        snapshot.save().unwrap();
        temp.path().join(name).join(folder)
    };
    let base = write(&model(WINDOW, &device), "base", "");
    let other = write(&model(GROUPED, &device), "other", "");
    let values = |model: &Decoder| -> Vec<(String, Vec<f32>)> {
        let params = model.params().into_iter();
        params.map(|it| (it.name().to_owned(), it.value().unwrap().to_vec().unwrap())).collect()
    };
    let ids = ids(&device, 2, 11);
    for (name, folder, base) in
        [("root", "", None), ("nested", "inside", None), ("apart", "", Some(&*base))]
    {
        let (model, added) = adapted(&device, base);
        descend(&model, &added, &ids, 0.5);
        let path = write(&model, name, folder);
        assert_eq!(path.join("model.safetensors").exists(), base.is_none());
        let read = hf::load(&path, &device).unwrap().model;
        assert_eq!(values(&read), values(&model), "{name}");
        assert_eq!(loss(&read, &ids), loss(&model, &ids));
    }

    let file = temp.path().join("apart/adapter_config.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let targets = "\"target_modules\": [\n    \"q_proj\",\n    \"up_proj\",\n    \"v_proj\"\n  ]";
    assert!(text.contains(targets), "{text}");
    let base = base.to_str().unwrap();
    for (change, to, expected) in [
        ("\"r\": 3", "\"r\": 0", "an adapter has rank 0, but must have at least 1"),
        ("\"r\": 3", "\"r\": 4", "lora_A.weight` has shape [3, 32], but with r = 4 `"),
        (
            "\"bias\": \"none\"",
            "\"bias\": \"all\"",
            "adapters with bias = \"all\" are not supported",
        ),
        ("\"LORA\"", "\"IA3\"", "adapters with peft_type = IA3 are not supported"),
        ("\"r\": 3", "\"r\": 3, \"use_dora\": true", "adapters with use_dora = true are not"),
        ("\"r\": 3", "\"r\": 3, \"init_lora_weights\": \"pissa\"", "init_lora_weights = \"pissa\""),
        (base, other.to_str().unwrap(), "the adapter is of another base model than "),
        (base, "Qwen/Qwen3", "the base model `Qwen/Qwen3` is not a folder; download it"),
        (base, file.parent().unwrap().to_str().unwrap(), "has an adapter itself; merge that first"),
    ] {
        assert!(text.contains(change), "{text}");
        std::fs::write(&file, text.replacen(change, to, 1)).unwrap();
        let error = hf::load(file.parent().unwrap(), &device).err().unwrap().to_string();
        assert!(error.contains("adapter_"), "{error}");
        assert!(error.contains(expected), "{change} to {to}: {error}");
    }
}

/// Targets that match nothing are errors that list what there is.
#[test]
fn targets_match_projections() {
    let device = Device::cpu();
    let mut plain = model(WINDOW, &device);
    for (target, expected) in [
        (
            "qproj",
            "the target `qproj` of the adapter matches no projection of the model, which has down",
        ),
        ("lm_head", "the target `lm_head` of the adapter matches no projection"),
        ("proj", "the target `proj` of the adapter"),
        ("[", "`[` is not a pattern of projections"),
    ] {
        let error = plain.add_adapter(&config(&[target], None)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let targets = |names: &[&str]| {
        let mut model = model(WINDOW, &device);
        model.add_adapter(&config(names, None)).unwrap();
        model.adapter().unwrap().targets.clone()
    };
    assert_eq!(targets(&["q_*", "*.k_proj"]), ["k_proj", "q_proj"]);
    assert_eq!(targets(&["layers.0.*.q_proj"]), ["model.layers.0.self_attn.q_proj"]);
}
