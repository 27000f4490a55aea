//! `export`: writes a Hugging Face model.

use std::fs;
use std::path::Path;

use half::bf16;
use meshgrad::ckpt::{FolderWriter, Staging, step_name};
use meshgrad::models::hf;
use meshgrad::runtime::Device;
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
        assert_eq!(loaded.model.config().num_hidden_layers, 2);
    }

    assert_eq!(models::read(&dir.path("F32")), model);
    for (name, rounded) in models::read(&dir.path("BF16")) {
        let floats = model[&name].bytes.chunks_exact(4);
        let floats = floats.map(|it| f32::from_le_bytes(it.try_into().unwrap()));
        let wanted: Vec<u8> = floats.flat_map(|it| bf16::from_f32(it).to_le_bytes()).collect();
        assert_eq!(rounded.bytes, wanted, "{name}");
    }
}
