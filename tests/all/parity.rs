//! Parity with transformers: logits, loss and every gradient of the fixtures in `tests/parity`,
//! through the program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use meshgrad::ckpt::{Folder, Snapshot, TensorFile};
use meshgrad::models::hf;
use meshgrad::prelude::*;

use crate::test_dir::{MESHGRAD, Output};

#[allow(dead_code)] // Its main is not run here.
#[path = "../../examples/10-gpt2.rs"]
mod gpt2;

/// The largest allowed difference of a logit, relative to the largest logit.
const LOGITS: f64 = 2e-5;
/// The largest allowed 1 - cos between a gradient and the expected one.
const ANGLE: f64 = 1e-6;
/// The largest allowed relative difference between the norms of a gradient and the expected one.
const NORM: f64 = 1e-4;

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f64>)>;

fn read(path: &Path) -> Tensors {
    let file = TensorFile::open(path).unwrap();
    let tensors = file.tensors().iter().map(|info| {
        let bytes = file.read(&info.name).unwrap();
        let values =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).into());
        (info.name.clone(), (info.shape.clone(), values.collect()))
    });
    tensors.collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

fn forward(fixture: &Path, output: &Path, arguments: &[&str]) {
    let mut command = Command::new(MESHGRAD);
    command.arg("forward").arg(fixture).args(["--grads", "--input"]);
    command.arg(fixture.join("input.safetensors")).arg("--output").arg(output).args(arguments);
    Output::of(&mut command).success();
}

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/fixtures");
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(found.len() >= 6, "only {} fixtures", found.len());
    found
}

/// Compares all expected tensors, and returns those out of tolerance.
fn differences(expected: &Tensors, actual: &Tensors) -> Vec<String> {
    let mut found = Vec::new();
    for (name, (shape, expected)) in expected {
        if name == "aux_loss" {
            continue; // Part of the loss; stored for reference.
        }
        let Some((actual_shape, actual)) = actual.get(name) else {
            found.push(format!("{name} is missing"));
            continue;
        };
        if shape != actual_shape {
            found.push(format!("{name} is {actual_shape:?}, not {shape:?}"));
            continue;
        }

        let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        let difference =
            expected.iter().zip(actual).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        if !name.starts_with("grad.") {
            if difference.is_nan() || difference > LOGITS * largest {
                found.push(format!("{name} differs by {difference:e} of {largest}"));
            }
            continue;
        }
        // A zero gradient, such as that of an expert without tokens, has no angle.
        if norm(expected) == 0.0 {
            if norm(actual) != 0.0 {
                found.push(format!("{name} must be zero"));
            }
            continue;
        }
        let angle = 1.0 - dot(expected, actual) / (norm(expected) * norm(actual));
        let length = (norm(actual) / norm(expected) - 1.0).abs();
        let close = angle <= ANGLE && length <= NORM;
        if !close {
            found.push(format!("{name}: 1 - cos {angle:e}, norm {length:e}"));
        }
    }
    for name in actual.keys().filter(|name| !expected.contains_key(*name)) {
        found.push(format!("{name} is not expected"));
    }
    found
}

#[test]
fn logits_loss_and_gradients_match_transformers() {
    let place = tempfile::tempdir().unwrap();
    for fixture in fixtures() {
        let output = place.path().join("out.safetensors");
        forward(&fixture, &output, &[]);
        let expected = read(&fixture.join("expected.safetensors"));
        let found = differences(&expected, &read(&output));
        assert!(found.is_empty(), "{}:\n{}", fixture.display(), found.join("\n"));
    }
}

/// With `pad_token_id`, the gradients are those of transformers without it, except that the row of
/// padding is zero: `padding_idx` of torch's embedding.
#[test]
fn padding_has_no_gradient() {
    let place = tempfile::tempdir().unwrap();
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/fixtures/dense-defaults");
    let padded = place.path().join("padded");
    std::fs::create_dir(&padded).unwrap();
    for name in ["config.json", "input.safetensors", "model.safetensors"] {
        std::fs::copy(fixture.join(name), padded.join(name)).unwrap();
    }
    let input = TensorFile::open(fixture.join("input.safetensors")).unwrap();
    let padding = input.read("input_ids").unwrap()[0]; // little-endian
    let config = std::fs::read_to_string(padded.join("config.json")).unwrap();
    let config = config.replacen('{', &format!("{{ \"pad_token_id\": {padding},"), 1);
    std::fs::write(padded.join("config.json"), config).unwrap();

    let output = place.path().join("out.safetensors");
    forward(&padded, &output, &[]);
    let mut expected = read(&fixture.join("expected.safetensors"));
    let actual = read(&output);
    assert!(!differences(&expected, &actual).is_empty());
    let (shape, gradient) = expected.get_mut("grad.model.embed_tokens.weight").unwrap();
    gradient[usize::from(padding) * shape[1]..][..shape[1]].fill(0.0);
    let found = differences(&expected, &actual);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Logits, loss and gradients match on a GPU too: the emulator, or the machine's GPU if
/// `MESHGRAD_TEST_GPU` is `cuda`. The fixtures have experts, dense layers, windows, biases and
/// scaled positions.
#[test]
fn a_gpu_matches_transformers() {
    let device = match std::env::var("MESHGRAD_TEST_GPU").as_deref() {
        Ok("cuda") => "cuda",
        _ => "emulator",
    };
    let place = tempfile::tempdir().unwrap();
    for name in [
        "dense-bias-yarn",
        "dense-window-linear",
        "moe-hub-sharded",
        "moe-sparse-step",
        "llama-3-rope",
        "mistral-window",
        "qwen2-window-tied",
        "deepseek-v3-hub",
        "gemma3-scaled",
        "gpt2-scaled-by-layer",
        "olmoe-gqa-aux-tied",
    ] {
        let fixture = fixtures().into_iter().find(|path| path.ends_with(name));
        let fixture = fixture.unwrap_or_else(|| panic!("no fixture {name}"));
        let output = place.path().join("out.safetensors");
        forward(&fixture, &output, &["--device", device]);
        let expected = read(&fixture.join("expected.safetensors"));
        let found = differences(&expected, &read(&output));
        assert!(found.is_empty(), "{name}:\n{}", found.join("\n"));
    }
}

/// The likeliest tokens are those of transformers, one at a time with a cache. Texts are longer than windows.
#[test]
fn greedy_texts_match_transformers() {
    let device = Device::cpu();
    for fixture in fixtures() {
        let greedy = TensorFile::open(fixture.join("greedy.safetensors")).unwrap();
        let bytes = greedy.read("greedy").unwrap();
        let expected: Vec<i64> =
            bytes.as_chunks().0.iter().map(|id| i64::from_le_bytes(*id)).collect();

        let model = hf::load(&fixture, &device).unwrap().model;
        let mut cache = model.cache(&device, DType::F32, expected.len()).unwrap();
        let mut text = expected[..4].to_vec();
        let mut new = text.clone();
        while text.len() < expected.len() {
            let ids = Tensor::from_slice(&device, &[1, new.len()], &new).unwrap();
            let logits = model.next_logits(&ids, &mut cache, DType::F32).unwrap();
            let logits = logits.to_vec::<f32>().unwrap();
            let likeliest = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
            new = vec![likeliest.unwrap() as i64];
            text.extend(&new);
        }
        assert_eq!(text, expected, "{}", fixture.display());
    }
}

/// A model that is saved has the tensors of the folder that it was loaded from, and once more the same bytes. Its
/// config.json is one that tests/parity/check_written.py compares with the original in transformers.
#[test]
fn saved_models_have_the_tensors_of_their_folders() {
    let place = tempfile::tempdir().unwrap();
    let save = |loaded: &hf::Loaded, name: &str| {
        let mut snapshot = Snapshot::new(place.path(), name);
        hf::add_model(&loaded.model, loaded.experts, &mut snapshot, "").unwrap();
        snapshot.save().unwrap();
        place.path().join(name)
    };
    for fixture in fixtures() {
        let name = fixture.file_name().unwrap().to_str().unwrap();
        let loaded = hf::load(&fixture, &Device::cpu()).unwrap();
        let saved = save(&loaded, name);
        let again = save(&hf::load(&saved, &Device::cpu()).unwrap(), &format!("{name}-again"));
        for file in ["config.json", "model.safetensors"] {
            let [saved, again] = [&saved, &again].map(|dir| std::fs::read(dir.join(file)).unwrap());
            assert!(saved == again, "{name}: {file}");
        }

        let config = std::fs::read_to_string(saved.join("config.json")).unwrap();
        let written = fixture.with_file_name("").join(format!("../written/{name}.json"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&written, &config).unwrap();
        }
        let committed = std::fs::read_to_string(&written).unwrap();
        assert_eq!(config, committed, "{name}: set UPDATE_GOLDEN=1, then run check_written.py");

        let (original, saved) = (Folder::open(&fixture).unwrap(), Folder::open(&saved).unwrap());
        for tensor in saved.tensors() {
            let first = tensor.name.trim_start_matches("transformer."); // of GPT-2's first files
            let stored =
                [&tensor.name[..], first].into_iter().find(|it| original.get(it).is_some());
            let stored = stored.unwrap_or_else(|| panic!("{name}: {}", tensor.name));
            assert!(original.read(stored).unwrap() == saved.read(&tensor.name).unwrap(), "{name}");
        }
        let without_effect = [".attn.bias", ".eh_proj.weight"];
        let unused = |name: &str| without_effect.iter().any(|end| name.ends_with(end));
        let unused = original.tensors().filter(|tensor| unused(&tensor.name)).count();
        assert_eq!(saved.tensors().count(), original.tensors().count() - unused, "{name}");
    }
}

/// Logits in bf16 have the direction of the expected ones.
#[test]
fn bf16_logits_have_the_expected_direction() {
    let place = tempfile::tempdir().unwrap();
    for fixture in fixtures() {
        let output = place.path().join("out.safetensors");
        forward(&fixture, &output, &["--dtype", "bf16"]);
        let (expected, actual) = (read(&fixture.join("expected.safetensors")), read(&output));
        let (_, logits) = &expected["logits"];
        let cosine = dot(logits, &actual["logits"].1) / (norm(logits) * norm(&actual["logits"].1));
        assert!(cosine > 0.99, "{}: cosine of the logits {cosine}", fixture.display());
    }
}

/// A model written against the ops alone has the logits, loss and gradients of transformers' GPT-2.
#[test]
fn the_gpt2_example_matches_transformers() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/gpt2");
    let device = Device::cpu();
    let model = gpt2::load(&dir, &device).unwrap();
    let input = TensorFile::open(dir.join("input.safetensors")).unwrap();
    let ids = |name: &str| {
        let shape = &input.get(name).unwrap().shape;
        let bytes = input.read(name).unwrap();
        let ids: Vec<i64> = bytes.as_chunks().0.iter().map(|id| i64::from_le_bytes(*id)).collect();
        Tensor::from_slice(&device, shape, &ids).unwrap()
    };
    let batch = TokenBatch::new(&ids("input_ids"), &ids("labels"));
    let compute = Compute::new(DType::F32);

    let (loss, tape) = Tape::record(|| model.loss(&batch, compute)).unwrap();
    let params = model.params();
    let mut grads = Grads::new(&params).unwrap();
    let seed = ops::reciprocal(&loss.weight).unwrap();
    tape.backward_from(&[(&loss.total, seed)], &mut grads).unwrap();

    let logits = model.logits(&batch.ids).unwrap();
    let mean = (&loss.sum / &loss.weight).unwrap();
    let mean = ops::reshape(&mean, &[1]).unwrap();
    let mut actual = Tensors::new();
    let mut add = |name: String, tensor: &Tensor| {
        let values = tensor.to_vec::<f32>().unwrap().into_iter();
        actual.insert(name, (tensor.shape().to_vec(), values.map(f64::from).collect()));
    };
    add("logits".into(), logits.value());
    add("loss".into(), &mean);
    for param in &params {
        add(format!("grad.{}", param.name()), &grads.get(param).unwrap());
    }

    let expected = read(&dir.join("expected.safetensors"));
    let found = differences(&expected, &actual);
    assert!(found.is_empty(), "{}", found.join("\n"));

    // The comparison notices a wrong gradient.
    let name = "grad.transformer.h.1.ln_2.bias";
    let scaled = actual.get_mut(name).unwrap();
    scaled.1.iter_mut().for_each(|value| *value *= 1.001);
    assert_eq!(differences(&expected, &actual).len(), 1);
}
