//! Hugging Face folders of small models.

use std::path::Path;

use half::bf16;
use meshgrad_ckpt::{Dtype, FileWriter};
use meshgrad_models::families::qwen3::Qwen3Config;
use meshgrad_models::hf::Experts;
use meshgrad_models::{Decoder, folder};
use meshgrad_runtime::Device;

/// A dense model with tied embeddings, and experts whose rows exceed the smallest bound.
pub(crate) const CONFIGS: [(&str, &str); 2] = [
    (
        "tied",
        r#"
        model_type = "qwen3"
        vocab_size = 700
        hidden_size = 40
        intermediate_size = 72
        num_hidden_layers = 2
        num_attention_heads = 6
        num_key_value_heads = 1
        head_dim = 16
        tie_word_embeddings = true
        "#,
    ),
    (
        "experts",
        r#"
        model_type = "qwen3_moe"
        vocab_size = 300
        hidden_size = 64
        num_hidden_layers = 2
        num_attention_heads = 4
        num_key_value_heads = 2
        num_experts = 12
        num_experts_per_tok = 2
        moe_intermediate_size = 56
        norm_topk_prob = true
        "#,
    ),
];

pub(crate) fn config(text: &str) -> Qwen3Config {
    toml::from_str(text).unwrap()
}

/// A folder of a model with random parameters.
pub(crate) struct Folder {
    folder: tempfile::TempDir,
    bytes: u64,
}

impl Folder {
    pub(crate) fn new(text: &str, experts: Experts, dtype: Dtype) -> Folder {
        let config = config(text);
        let model = Decoder::materialized(&config, &Device::cpu(), 7).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config.to_json().unwrap()).unwrap();

        let tensors = saved(&model, experts);
        let mut writer = FileWriter::new();
        for (name, shape, _) in &tensors {
            writer.add(name, dtype, shape).unwrap();
        }
        let path = folder.path().join("model.safetensors");
        let mut bytes = 0;
        let saved = writer.save(&path, |tensor, data| {
            let (_, _, values) = tensors.iter().find(|it| it.0 == tensor.name).unwrap();
            let stored = match dtype {
                Dtype::BF16 => narrowed(values),
                _ => values.clone(),
            };
            bytes += stored.len() as u64;
            data.append(&stored)
        });
        saved.unwrap();
        Folder { folder, bytes }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Bytes of all tensors.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Name, shape and bytes of each saved tensor of a model.
pub(crate) fn saved(model: &Decoder, experts: Experts) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let values = folder::params(model).unwrap();
    let tensors =
        folder::stored(&values, &model.config().mapping(experts, false).unwrap()).unwrap();
    let plain = tensors.into_iter().map(|(spec, bytes)| {
        let shape = spec.shape.iter().map(|extent| *extent as usize);
        (spec.name, shape.collect(), bytes)
    });
    plain.collect()
}

fn narrowed(values: &[u8]) -> Vec<u8> {
    let values = values.as_chunks().0.iter().copied().map(f32::from_le_bytes);
    values.flat_map(|it| bf16::from_f32(it).to_le_bytes()).collect()
}
