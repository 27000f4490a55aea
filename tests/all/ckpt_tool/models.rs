//! Small models in files, folders and checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use meshgrad::ckpt::{Dtype, Error, FileWriter, FolderWriter, Staging, TensorSink, step_name};
use safetensors::SafeTensors;

pub(crate) type Model = BTreeMap<String, Tensor>;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// A tensor of reproducible numbers with magnitudes like those of weights.
pub(crate) fn tensor(dtype: Dtype, shape: &[usize], seed: u64) -> Tensor {
    let elements = shape.iter().product::<usize>();
    let bytes = (0..elements as u64).flat_map(|at| encode(dtype, number(seed, at)));
    Tensor { dtype, shape: shape.to_vec(), bytes: bytes.collect() }
}

pub(crate) fn tensor_of(dtype: Dtype, values: &[f64]) -> Tensor {
    Tensor {
        dtype,
        shape: vec![values.len()],
        bytes: values.iter().flat_map(|v| encode(dtype, *v)).collect(),
    }
}

/// A multiple of 2^-12 between -2 and 2.
fn number(seed: u64, at: u64) -> f64 {
    let mixed = (seed << 32 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 50) as f64 - 8192.0) / 4096.0
}

fn encode(dtype: Dtype, value: f64) -> Vec<u8> {
    match dtype {
        Dtype::F64 => value.to_le_bytes().to_vec(),
        Dtype::F32 => (value as f32).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        // E5M2 is the upper byte of f16.
        Dtype::F8E5M2 => vec![f16::from_f64(value).to_le_bytes()[1]],
        Dtype::I64 => ((value * 4096.0) as i64).to_le_bytes().to_vec(),
        Dtype::I32 => ((value * 4096.0) as i32).to_le_bytes().to_vec(),
        Dtype::U8 => vec![(value * 64.0 + 128.0) as u8],
        Dtype::Bool => vec![u8::from(value > 0.0)],
        other => panic!("unexpected dtype {other}"),
    }
}

/// A mixture of experts: three layers with four experts, the first layer dense.
pub(crate) fn mixture() -> Model {
    let mut model = Model::new();
    let mut add = |name: String, dtype, shape: &[usize]| {
        let seed = model.len() as u64;
        model.insert(name, tensor(dtype, shape, seed));
    };
    add("lm_head.weight".into(), Dtype::BF16, &[48, 8]);
    add("model.embed_tokens.weight".into(), Dtype::BF16, &[48, 8]);
    add("model.norm.weight".into(), Dtype::F32, &[8]);
    for layer in 0..3 {
        let prefix = format!("model.layers.{layer}");
        add(format!("{prefix}.input_layernorm.weight"), Dtype::F32, &[8]);
        add(format!("{prefix}.self_attn.q_proj.weight"), Dtype::BF16, &[16, 8]);
        if layer == 0 {
            add(format!("{prefix}.mlp.down_proj.weight"), Dtype::BF16, &[8, 12]);
            continue;
        }
        for expert in 0..4 {
            let name = format!("{prefix}.mlp.experts.{expert}.down_proj.weight");
            add(name, Dtype::BF16, &[8, 4]);
        }
    }
    model
}

/// A mixture of experts with Qwen3's names, whose q has eight times as many heads as k and v.
pub(crate) fn qwen3() -> Model {
    let mut model = Model::new();
    let mut add = |name: &str, shape: &[usize]| {
        let seed = model.len() as u64;
        model.insert(name.to_owned(), tensor(Dtype::F32, shape, seed));
    };
    add("lm_head.weight", &[20, 6]);
    add("model.embed_tokens.weight", &[20, 6]);
    add("model.norm.weight", &[6]);
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}");
        for (name, rows) in [("q", 16), ("k", 2), ("v", 2)] {
            add(&format!("{prefix}.self_attn.{name}_proj.weight"), &[rows, 6]);
        }
        add(&format!("{prefix}.self_attn.o_proj.weight"), &[6, 16]);
        add(&format!("{prefix}.mlp.gate.weight"), &[3, 6]);
        for expert in 0..3 {
            let prefix = format!("{prefix}.mlp.experts.{expert}");
            add(&format!("{prefix}.gate_proj.weight"), &[5, 6]);
            add(&format!("{prefix}.up_proj.weight"), &[5, 6]);
            add(&format!("{prefix}.down_proj.weight"), &[6, 5]);
        }
    }
    model
}

/// Reads a folder with the `safetensors` crate.
pub(crate) fn read(folder: &Path) -> Model {
    let mut model = Model::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "safetensors") {
            continue;
        }
        for (name, tensor) in read_file(&path) {
            let before = model.insert(name.clone(), tensor);
            assert!(before.is_none(), "{name} is in two files");
        }
    }
    model
}

/// Reads a file with the `safetensors` crate.
pub(crate) fn read_file(path: &Path) -> Model {
    let bytes = fs::read(path).unwrap();
    let all = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let tensor = Tensor {
            dtype: format!("{:?}", view.dtype()).parse().unwrap(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        };
        (name.to_owned(), tensor)
    };
    all.iter().map(tensor).collect()
}

/// Writes a model to one file.
pub(crate) fn file(path: &Path, model: &Model) {
    file_with(path, model, &[("format", "pt")]);
}

/// Writes a model to one file with this metadata.
pub(crate) fn file_with(path: &Path, model: &Model, metadata: &[(&str, &str)]) {
    let mut writer = FileWriter::new();
    for (key, value) in metadata {
        writer.set_metadata(key, value);
    }
    for (name, tensor) in model {
        writer.add(name, tensor.dtype, &tensor.shape).unwrap();
    }
    writer.save::<Error>(path, |info, data| data.append(&model[&info.name].bytes)).unwrap();
}

/// Writes a Hugging Face folder with one file.
pub(crate) fn folder(path: &Path, model: &Model) {
    fs::create_dir_all(path).unwrap();
    file(&path.join("model.safetensors"), model);
}

/// Writes a Hugging Face folder with several files and an index.
pub(crate) fn shards(path: &Path, model: &Model) {
    let parent = path.parent().unwrap();
    let mut staging = Staging::new(parent, path.file_name().unwrap().to_str().unwrap()).unwrap();
    write(&mut staging, "", model, 1000);
    staging.commit().unwrap();
    fs::remove_file(path.join("manifest.json")).unwrap();
}

/// Writes a checkpoint of a run, with part of an optimizer's state.
pub(crate) fn checkpoint(run: &Path, step: u64, model: &Model) {
    fs::create_dir_all(run).unwrap();
    let mut staging = Staging::new(run, &step_name(step)).unwrap();
    write(&mut staging, "", model, u64::MAX);
    let embedding = "model.embed_tokens.weight";
    let mean = tensor(Dtype::F32, &model[embedding].shape, step);
    let limits = Model::from([(embedding.to_owned(), mean)]);
    write(&mut staging, "trainer/exp_avg", &limits, u64::MAX);
    staging.write("trainer/state.json", b"{}\n").unwrap();
    staging.commit().unwrap();
}

fn write(staging: &mut Staging, folder: &str, model: &Model, max_shard_bytes: u64) {
    let mut writer = FolderWriter::new().max_shard_bytes(max_shard_bytes);
    for (name, tensor) in model {
        writer.add(name, tensor.dtype, &tensor.shape).unwrap();
    }
    let data = |info: &meshgrad::ckpt::TensorInfo, data: &mut TensorSink<'_>| {
        data.append(&model[&info.name].bytes)
    };
    writer.write::<Error>(staging, folder, data).unwrap();
}
