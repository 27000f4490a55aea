//! `export`: writes a Hugging Face model.

use std::fs;
use std::path::Path;

use approx::assert_relative_eq;
use half::bf16;
use meshgrad::autograd::{Module, ops};
use meshgrad::ckpt::{FolderWriter, Snapshot, Staging, step_name};
use meshgrad::models::folder::{self, NamedTensor};
use meshgrad::models::hf::{self, Experts};
use meshgrad::models::{Compute, Decoder};
use meshgrad::runtime::{DType, Device, Key, Tensor};
use serde_json::Value;

use crate::ckpt_tool::models::{self, Model};
use crate::ckpt_tool::shown_without_times;
use crate::test_dir::TestDir;

/// A run with one checkpoint: a model from transformers, and a trainer's state.
fn run(dir: &TestDir) -> Model {
    let fixture = "tests/parity/fixtures/moe-hub-sharded";
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join(fixture);
    let config = fs::read(fixture.join("config.json")).unwrap();
    let mut model = models::read(&fixture);
    model.retain(|name, _| name.starts_with("model.") || name == "lm_head.weight");

    fs::create_dir(dir.path("run")).unwrap();
    let mut staging = Staging::new(dir.path("run"), &step_name(7)).unwrap();
    let mut write = |folder: &str| {
        let mut writer = FolderWriter::new();
        for (name, tensor) in &model {
            writer.add(name, tensor.dtype, &tensor.shape).unwrap();
        }
        writer.write(&mut staging, folder, |info, data| data.append(&model[&info.name].bytes))
    };
    write("").unwrap();
    write("trainer/exp_avg").unwrap();
    staging.write("config.json", &config).unwrap();
    staging.write("tokenizer.json", b"{}\n").unwrap();
    staging.write("trainer/state.json", b"{}\n").unwrap();
    staging.commit().unwrap();
    model
}

#[test]
fn output() {
    let dir = TestDir::new();
    run(&dir);
    fs::create_dir(dir.path("bare")).unwrap();
    models::folder(&dir.path("bare"), &models::mixture());
    insta::assert_snapshot!(shown_without_times([
        dir.ckpt(&["export", "run", "--hf", "hub", "--max-shard", "20kB"]),
        dir.ckpt(&["export", "run/step-000007", "--hf", "hub"]),
        dir.ckpt(&["export", "run", "--hf", "other", "--dtype", "I8"]),
        dir.ckpt(&["export", "bare", "--hf", "other"]),
        dir.ckpt(&["export", "bare/model.safetensors", "--hf", "other"]),
        dir.ckpt(&["export", "absent", "--hf", "other"]),
    ]));
}

/// The export has weights rounded as by the `half` crate, their dtype in the configuration, and no
/// trainer state. It loads.
#[test]
fn the_export_is_a_loadable_model() {
    let dir = TestDir::new();
    let model = run(&dir);
    for (dtype, name) in [("BF16", "bfloat16"), ("F16", "float16"), ("F32", "float32")] {
        let output = dir.ckpt(&["export", "run", "--hf", dtype, "--dtype", dtype]);
        assert_eq!(output.code, 0, "{}", output.shown());
        let files = ["config.json", "manifest.json", "model.safetensors", "tokenizer.json"];
        assert_eq!(dir.names(dtype), files);

        let config = fs::read(dir.path(dtype).join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        assert_eq!([&config["dtype"], &config["torch_dtype"]], [name, name]);
        let loaded = hf::load(&dir.path(dtype), &Device::cpu()).unwrap();
        assert_eq!(loaded.model.layers.len(), 2);
    }

    assert_eq!(models::read(&dir.path("F32")), model);
    for (name, rounded) in models::read(&dir.path("BF16")) {
        let floats = model[&name].bytes.chunks_exact(4);
        let floats = floats.map(|it| f32::from_le_bytes(it.try_into().unwrap()));
        let wanted: Vec<u8> = floats.flat_map(|it| bf16::from_f32(it).to_le_bytes()).collect();
        assert_eq!(rounded.bytes, wanted, "{name}");
    }
}

/// A model from transformers, with trained low-rank updates if `adapted`.
fn model(adapted: bool) -> Decoder {
    let fixture = "tests/parity/fixtures/dense-gqa-tied";
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join(fixture);
    let device = Device::cpu();
    let mut model = hf::load(&fixture, &device).unwrap().model;
    if adapted {
        model.freeze();
        for projection in model.projections_mut().step_by(2) {
            projection.add_lora(3, 5.0);
        }
        for param in model.trained() {
            let (shape, key) = (param.shape().to_vec(), Key::new(4).fold_name(param.name()));
            let value = ops::normal(&device, &shape, DType::F32, key, 0.0, 0.3).unwrap();
            param.set(&value).unwrap();
        }
    }
    model
}

/// The averages of what is trained of `model`.
fn averages(model: &Decoder) -> Vec<NamedTensor> {
    let halves = model.trained().into_iter().map(|param| {
        let half = ops::affine(&param.value().unwrap(), 0.5, 0.0).unwrap();
        NamedTensor::new(param.name(), half)
    });
    halves.collect()
}

fn logits(model: &Decoder) -> Vec<f32> {
    let device = model.params()[0].value().unwrap().device().clone();
    let ids = Tensor::from_slice(&device, &[1, 6], &[5i64, 0, 17, 3, 60, 2]).unwrap();
    let compute = Compute::new(DType::F32);
    model.logits(&ids, compute).unwrap().value().to_vec().unwrap()
}

/// An export computes what the run computes: low-rank updates are merged, and the averages of the
/// weights are taken unless `--raw` asks for the others. The report says both.
#[test]
fn the_export_computes_what_the_run_computes() {
    for (adapted, averaged) in [(true, false), (false, true), (true, true)] {
        let dir = TestDir::new();
        let model = model(adapted);
        let map = model.config().mapping(Experts::OneByOne, false).unwrap();
        let mut snapshot = Snapshot::new(dir.path("run"), &step_name(7));
        fs::create_dir(dir.path("run")).unwrap();
        hf::add_model(&model, Experts::OneByOne, &mut snapshot, "").unwrap();
        let buffer = Tensor::from_slice(&Device::cpu(), &[2], &[0.0f32, 1.0]).unwrap();
        let buffers = [NamedTensor::new("bias", buffer)];
        folder::add_tensors(&buffers, &map, &mut snapshot, "trainer/buffers").unwrap();
        if averaged {
            folder::add_tensors(&averages(&model), &map, &mut snapshot, "trainer/ema").unwrap();
        }
        snapshot.save().unwrap();

        let export = |to: &str, more: &[&str]| {
            let command = ["export", "run", "--hf", to, "--dtype", "F32"];
            let output = dir.ckpt(&[&command[..], more].concat());
            assert_eq!(output.code, 0, "{}", output.shown());
            assert!(!dir.path(to).join("lora.json").exists());
            let loaded = hf::load(&dir.path(to), &Device::cpu()).unwrap().model;
            (logits(&loaded), output)
        };
        let (raw, raw_output) = export("raw", &["--raw"]);
        let (actual, output) = export("plain", &[]);
        let expect = |actual: &[f32]| {
            for (actual, expected) in actual.iter().zip(logits(&model)) {
                assert_relative_eq!(*actual, expected, epsilon = 1e-4, max_relative = 1e-4);
            }
        };
        expect(&raw);
        for named in averages(&model).into_iter().filter(|_| averaged) {
            let params = model.params();
            let param = params.iter().find(|param| param.name() == named.name).unwrap();
            param.set(&named.tensor).unwrap();
        }
        expect(&actual);
        assert_eq!(raw == actual, !averaged);

        let (shown, raw_shown) = (output.shown(), raw_output.shown());
        assert_eq!(shown.contains("averages of the run; --raw exports"), averaged, "{shown}");
        assert_eq!(raw_shown.contains("not their averages"), averaged, "{raw_shown}");
        assert_eq!(shown.contains("5 low-rank updates"), adapted, "{shown}");
        assert!(shown.contains("router biases, for which the format has no place"), "{shown}");
        let json = dir.ckpt(&["export", "run", "--hf", "json", "--json"]).json();
        assert_eq!(json["weights"].is_string(), averaged);
        assert_eq!(json["merged"].is_u64(), adapted);
    }
}
