//! Folders with tensors that the model does not have, and folders that cannot be loaded at all.

use std::path::Path;

use meshgrad_autograd::{Init, Module, Param};
use meshgrad_ckpt::{Dtype, FileWriter, Folder};
use meshgrad_load::LoadOptions;
use meshgrad_models::families::qwen3::Qwen3Config;
use meshgrad_models::folder;
use meshgrad_models::hf::{self, Experts, Loader};
use meshgrad_models::{Decoder, Model, Stage};
use meshgrad_runtime::Device;

use crate::laws::{EXPERTS, GROUPED, WINDOW, model};

/// Saves `model` as a Hugging Face folder, with more tensors of these names.
fn save(model: &Decoder, dir: &Path, more: &[&str]) {
    let map = model.config().mapping(Experts::OneByOne, false).unwrap();
    let mut tensors = folder::stored(&folder::params(model).unwrap(), &map).unwrap();
    let (first, bytes) = tensors[0].clone();
    for name in more {
        let mut spec = first.clone();
        spec.name = (*name).to_owned();
        tensors.push((spec, bytes.clone()));
    }
    std::fs::create_dir_all(dir).unwrap();
    for (name, text) in model.files().unwrap() {
        std::fs::write(dir.join(name), text).unwrap();
    }
    let mut file = FileWriter::new();
    for (spec, _) in &tensors {
        let shape: Vec<usize> = spec.shape.iter().map(|extent| *extent as usize).collect();
        file.add(&spec.name, Dtype::F32, &shape).unwrap();
    }
    let write = file.save(dir.join("model.safetensors"), |tensor, sink| {
        let found = tensors.iter().find(|(spec, _)| spec.name == tensor.name);
        sink.append(&found.unwrap().1)
    });
    write.unwrap();
}

fn values(module: &impl Module) -> Vec<(String, Vec<f32>)> {
    let params = module.params().into_iter();
    params.map(|it| (it.name().to_owned(), it.value().unwrap().to_vec().unwrap())).collect()
}

/// A whole model that leaves tensors unused is an error that names them. `ignore_unused` loads the
/// same values without them and returns their names.
#[test]
fn tensors_that_the_model_does_not_have_are_an_error() {
    let device = Device::cpu();
    for (text, unused) in [
        (WINDOW, "model.layers.0.self_attn.q_proj.bias"),
        (WINDOW, "model.layers.3.input_layernorm.weight"),
        (WINDOW, "model.layers.0.self_attn.q_proj.lora_A.weight"),
        (WINDOW, "model.layers.3.mlp.gate_proj.weight"),
        (GROUPED, "score.weight"),
        (EXPERTS, "model.layers.0.mlp.shared_expert.up_proj.weight"),
        (EXPERTS, "model.layers.5.mlp.experts.0.up_proj.weight"),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let saved = model(text, &device);
        save(&saved, temp.path(), &[unused]);
        let error = hf::load(temp.path(), &device).err().unwrap().to_string();
        assert!(error.contains(": the model does not use all tensors: "), "{error}");
        assert!(error.contains(&format!("`{unused}`")), "{error}");
        assert!(error.contains("--ignore-unused"), "{error}");

        let loaded = Loader::new(temp.path()).ignore_unused().load(&device).unwrap();
        assert_eq!(values(&loaded.model), values(&saved), "{unused}");
        assert_eq!(loaded.ignored, [unused]);
        let note = hf::ignored_note(temp.path(), &loaded.ignored).unwrap();
        assert!(note.contains("ignored 1 tensor ") && note.contains(unused), "{note}");
    }
}

/// At most ten names are listed. Tensors without an effect are ignored, and missing tensors are
/// reported with those that are not used.
#[test]
fn the_error_lists_ten_names() {
    let device = Device::cpu();
    let temp = tempfile::tempdir().unwrap();
    let names: Vec<String> = (10..23).map(|layer| format!("model.layers.{layer}.x")).collect();
    let without_effect =
        ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.mtp.norm.weight", "mtp.fc.weight"];
    let more: Vec<&str> = names.iter().map(String::as_str).chain(without_effect).collect();
    save(&model(GROUPED, &device), temp.path(), &more);
    let error = hf::load(temp.path(), &device).err().unwrap().to_string();
    assert_eq!(error.matches("model.layers.").count(), 10, "{error}");
    assert!(error.contains("unexpected: 3 more") && !error.contains("mtp"), "{error}");

    save(&model(GROUPED, &device), temp.path(), &without_effect);
    let mut ignored = hf::load(temp.path(), &device).unwrap().ignored;
    ignored.sort();
    assert_eq!(ignored, without_effect);

    // Biases that the model has and the folder lacks, and one tensor that nothing uses.
    let config = temp.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replace("\"attention_bias\": false", "\"attention_bias\": true");
    save(&model(GROUPED, &device), temp.path(), &["score.weight"]);
    std::fs::write(&config, text).unwrap();
    let loader = Loader::new(temp.path());
    let error = loader.load(&device).err().unwrap().to_string();
    assert!(error.contains("q_proj.bias") && error.contains("score.weight"), "{error}");
    assert!(!error.contains("--ignore-unused"), "{error}");
    let error = loader.ignore_unused().load(&device).err().unwrap().to_string();
    assert!(error.contains("q_proj.bias") && !error.contains("score.weight"), "{error}");
}

/// A stage of a model asks for its own tensors, whichever else the folder has.
#[test]
fn stages_ask_for_their_own_tensors() {
    let device = Device::cpu();
    let temp = tempfile::tempdir().unwrap();
    let saved = model(EXPERTS, &device);
    save(&saved, temp.path(), &["score.weight"]);
    let mut all = Vec::new();
    for stage in Stage::of_sizes(&[1, 1]).unwrap() {
        let part = Decoder::new(saved.config()).unwrap().part(&[stage]).unwrap();
        let filled = Loader::new(temp.path()).fill(&part, &device).unwrap();
        assert!(filled.ignored.is_empty());
        all.extend(values(&part));
    }
    let mut expected = values(&saved);
    all.sort_by(|a, b| a.0.cmp(&b.0));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(all, expected);
}

#[derive(Module)]
#[module(crate = meshgrad_autograd)]
struct Two {
    a: Param,
    b: Option<Param>,
}

impl Two {
    fn new(has_b: bool) -> Two {
        let param = |name| Param::new(name, [3], Init::Ones);
        Two { a: param("a"), b: has_b.then(|| param("b")) }
    }
}

/// The same for any module, by name; `fill_part` is for parts.
#[test]
fn modules_use_all_tensors_of_their_folder() {
    let (device, temp) = (Device::cpu(), tempfile::tempdir().unwrap());
    let dir = temp.path().join("two");
    let two = Two::new(true);
    two.materialize(&device, 1).unwrap();
    folder::save(&two, &dir).unwrap();

    let one = Two::new(false);
    let error = folder::load(&one, &dir, &device).unwrap_err().to_string();
    assert!(error.contains("unexpected: the model does not use `b`"), "{error}");
    assert!(!one.a.has_value());
    let (stored, by_name) = (Folder::open(&dir).unwrap(), folder::by_name().unwrap());
    let options = LoadOptions::default();
    assert!(folder::fill(&one, &device, &stored, &by_name, &options).is_err());
    folder::fill_part(&one, &device, &stored, &by_name, &options).unwrap();
    assert_eq!(values(&one), values(&two)[..1]);
}

/// Two parameters of one name would be one tensor of the folder.
#[test]
fn modules_with_one_name_twice_are_not_saved_or_loaded() {
    let (device, temp) = (Device::cpu(), tempfile::tempdir().unwrap());
    let dir = temp.path().join("twice");
    let twice = Two { a: Two::new(false).a, b: Some(Two::new(false).a) };
    for param in twice.params() {
        param.materialize(&device, 1).unwrap();
    }
    let expected = "`a` and `b` are two parameters or buffers named `a`";
    let error = folder::save(&twice, &dir).unwrap_err().to_string();
    assert!(error.contains(expected) && !dir.exists(), "{error}");
    folder::save(&Two { a: twice.a.clone(), b: None }, &dir).unwrap();
    let error = folder::load(&twice, &dir, &device).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");

    let tensors = folder::params(&twice).unwrap();
    let error = folder::stored(&tensors, &folder::by_name().unwrap()).unwrap_err().to_string();
    assert_eq!(error, "two tensors are named `a`; give each its own name");
}

/// Quantized weights are refused with the way out, whatever may be ignored.
#[test]
fn quantized_folders_are_refused() {
    let device = Device::cpu();
    for (end, method, way_out) in [
        ("weight_scale_inv", "fp8", "meshgrad ckpt convert DIR NEW --map qwen3-fp8.map"),
        ("qweight", "gptq or awq", "model.dequantize()"),
        ("weight.absmax", "bitsandbytes", "model.dequantize()"),
    ] {
        let temp = tempfile::tempdir().unwrap();
        save(&model(WINDOW, &device), temp.path(), &[&format!("model.layers.0.mlp.up_proj.{end}")]);
        let loader = Loader::new(temp.path()).ignore_unused();
        let error = loader.load(&device).err().unwrap().to_string();
        for part in [end, method, way_out] {
            assert!(error.contains(part), "{error}");
        }
    }
    let config = r#"{"model_type": "qwen3", "quantization_config": {"quant_method": "fp8"}}"#;
    let error = Qwen3Config::from_json(config).unwrap_err().to_string();
    assert!(error.contains("(fp8)") && error.contains("meshgrad ckpt convert"), "{error}");
    assert!(!error.contains("remove"), "{error}");
    Qwen3Config::from_json(r#"{"model_type": "qwen3", "quantization_config": null}"#).unwrap();
}
