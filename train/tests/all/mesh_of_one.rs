//! A model on a mesh of one rank: every op of training accepts replicated tensors.

use meshgrad_autograd::{Module, Tape};
use meshgrad_mesh::{Mesh, Sharding};
use meshgrad_models::families::qwen3::Qwen3Config;
use meshgrad_models::{Compute, Decoder, Model, TokenBatch};
use meshgrad_runtime::{DType, Device, Result, Tensor, with_mesh};
use meshgrad_train::config::{Algorithm, OptimizerConfig};
use meshgrad_train::optim::AdamWConfig;
use meshgrad_train::optimizer::Optimizer;

const CONFIG: &str = r#"{
    "model_type": "qwen3_moe", "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 24, "moe_intermediate_size": 8, "mlp_only_layers": [0],
    "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true,
    "vocab_size": 50, "tie_word_embeddings": false, "rope_theta": 10000.0,
    "max_position_embeddings": 32
}"#;

/// The losses and norms of three steps, and all parameters after them.
fn train(mesh: Option<&Mesh>, compute: Compute) -> Result<(Vec<f32>, Vec<Vec<f32>>)> {
    let device = Device::cpu();
    let model = Decoder::materialized(&Qwen3Config::from_json(CONFIG).unwrap(), &device, 7)?;
    let config = OptimizerConfig::new(Algorithm::AdamW(AdamWConfig::default()), 1e-2);
    let mut optimizer = Optimizer::new(&model, &device, &config, 1).unwrap();
    let ids: Vec<i64> = (0..12).map(|at| at * 7 % 50).collect();
    let batch = Tensor::from_slice(&device, &[2, 6], &ids)?;
    let batch = match mesh {
        Some(mesh) => batch.with_sharding(&Sharding::replicated(mesh, &[2, 6])?, 0)?,
        None => batch,
    };

    let mut numbers = Vec::new();
    for step in 1..=3 {
        let (loss, tape) = Tape::record(|| model.loss(&TokenBatch::new(&batch, &batch), compute))?;
        tape.backward(&loss.total, optimizer.grads())?;
        let norm = optimizer.step(&loss.weight, step, 1e-2).unwrap();
        numbers.extend([loss.sum.item::<f32>()?, norm.item::<f32>()?]);
    }
    let params = model.params();
    let values = params.iter().map(|param| param.value()?.to_vec::<f32>());
    Ok((numbers, values.collect::<Result<_>>()?))
}

#[test]
fn training_gives_the_bits_of_training_without_a_mesh() {
    let mesh = Mesh::new(&[1, 1], &["dp", "tp"]).unwrap();
    for (dtype, checkpointing) in [(DType::F32, false), (DType::F32, true), (DType::BF16, false)] {
        let compute = Compute { dtype, checkpointing };
        let expected = train(None, compute).unwrap();
        let on_mesh = with_mesh(&mesh, 0, || train(Some(&mesh), compute)).unwrap();
        assert_eq!(on_mesh, expected, "{dtype}");
    }
}
