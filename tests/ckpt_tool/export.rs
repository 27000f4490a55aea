//! `export`: what is written is a model of the hub.

use std::fs;
use std::path::Path;

use half::bf16;
use meshgrad::ckpt::{FolderWriter, Staging, step_name};
use meshgrad::models::hf;
use meshgrad::runtime::Device;
use serde_json::Value;

use crate::models::{self, Model};
use crate::{Workplace, shown_without_times};

/// A run with one checkpoint: a model that transformers made, and a trainer's state.
fn run(place: &Workplace) -> Model {
    let fixture = "tests/parity/fixtures/moe-hub-sharded";
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join(fixture);
    let config = fs::read(fixture.join("config.json")).unwrap();
    let mut model = models::read(&fixture);
    model.retain(|name, _| name.starts_with("model.") || name == "lm_head.weight");

    fs::create_dir(place.path("run")).unwrap();
    let mut staging = Staging::new(place.path("run"), &step_name(7)).unwrap();
    let mut write = |folder: &str| {
        let mut writer = FolderWriter::new();
        for (name, tensor) in &model {
            writer.add(name, tensor.dtype, &tensor.shape).unwrap();
        }
        writer.write(&mut staging, folder, |info, data| {
            data.append(&model[&info.name].bytes)
        })
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
fn what_it_says() {
    let place = Workplace::new();
    run(&place);
    fs::create_dir(place.path("bare")).unwrap();
    models::folder(&place.path("bare"), &models::mixture());
    insta::assert_snapshot!(shown_without_times([
        place.ckpt(&["export", "run", "--hf", "hub", "--max-shard", "20kB"]),
        place.ckpt(&["export", "run/step-000007", "--hf", "hub"]),
        place.ckpt(&["export", "run", "--hf", "other", "--dtype", "I8"]),
        place.ckpt(&["export", "bare", "--hf", "other"]),
        place.ckpt(&["export", "bare/model.safetensors", "--hf", "other"]),
        place.ckpt(&["export", "absent", "--hf", "other"]),
    ]));
}

/// The weights rounded as the `half` crate does, their dtype in the configuration, nothing of the
/// trainer; and it loads.
#[test]
fn it_is_a_model_of_the_hub() {
    let place = Workplace::new();
    let model = run(&place);
    for (dtype, name) in [("BF16", "bfloat16"), ("F16", "float16"), ("F32", "float32")] {
        let said = place.ckpt(&["export", "run", "--hf", dtype, "--dtype", dtype]);
        assert_eq!(said.code, 0, "{}", said.shown());
        let files = [
            "config.json",
            "manifest.json",
            "model.safetensors",
            "tokenizer.json",
        ];
        assert_eq!(place.names(dtype), files);

        let config = fs::read(place.path(dtype).join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        assert_eq!([&config["dtype"], &config["torch_dtype"]], [name, name]);
        let loaded = hf::load(&place.path(dtype), &Device::cpu()).unwrap();
        assert_eq!(loaded.model.config().num_hidden_layers, 2);
    }

    assert_eq!(models::read(&place.path("F32")), model);
    for (name, rounded) in models::read(&place.path("BF16")) {
        let floats = model[&name].bytes.chunks_exact(4);
        let floats = floats.map(|it| f32::from_le_bytes(it.try_into().unwrap()));
        let wanted: Vec<u8> = floats
            .flat_map(|it| bf16::from_f32(it).to_le_bytes())
            .collect();
        assert_eq!(rounded.bytes, wanted, "{name}");
    }
}
