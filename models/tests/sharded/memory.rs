//! No rank allocates a whole logits, matrix or inner activation.

use meshgrad_autograd::{Module, Result};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::Mesh;
use meshgrad_models::config::Qwen3Config;
use meshgrad_models::{Compute, Model, ModelParallelism, Qwen3, TokenBatch};
use meshgrad_runtime::{DType, Device, Tensor};

use crate::run::gradients;

const TOKENS: usize = 96;
const VOCABULARY: usize = 4096;
const HIDDEN: usize = 32;
const INNER: usize = 1024;

fn config() -> Qwen3Config {
    let text = format!(
        r#"
        model_type = "qwen3"
        vocab_size = {VOCABULARY}
        hidden_size = {HIDDEN}
        intermediate_size = {INNER}
        num_hidden_layers = 2
        num_attention_heads = 4
        num_key_value_heads = 4
        tie_word_embeddings = true
        "#
    );
    toml::from_str(&text).unwrap()
}

/// The largest allocation of a step and of what comes before it, in bytes.
fn largest(device: &Device, model: &Qwen3) -> Result<usize> {
    model.materialize(device, 1)?;
    let ids: Vec<i64> = (0..TOKENS)
        .map(|at| (at * 31 % VOCABULARY) as i64)
        .collect();
    let ids = Tensor::from_slice(device, &[1, TOKENS], &ids)?.as_replicated()?;
    let batch = TokenBatch::new(&ids, &ids);
    let compute = Compute {
        dtype: DType::F32,
        checkpointing: false,
    };
    gradients(&model.params(), || model.loss(&batch, compute))?;
    Ok(device.memory_stats().largest)
}

#[test]
fn no_rank_allocates_what_is_sharded() {
    let bytes = |elements: usize| 4 * elements;
    let logits = bytes(TOKENS * VOCABULARY);
    let matrix = bytes(VOCABULARY * HIDDEN);
    let activation = bytes(TOKENS * 2 * INNER);
    let smallest = logits.min(matrix).min(activation);

    let device = Device::cpu();
    let alone = largest(&device, &Qwen3::new(&config()).unwrap()).unwrap();
    assert!(alone >= smallest, "{alone}");

    let mesh = Mesh::new(&[4], &["tp"]).unwrap();
    let on_ranks = Local::run(4, |rank| {
        Redistributor::new(rank).run_on(&mesh, || {
            let model = Qwen3::new(&config())?;
            let parallelism = ModelParallelism::new(&mesh).tensor(["tp"]).unwrap();
            let plan = model.plan(&parallelism.sequence_parallel(true))?;
            plan.apply(&model, Rank::rank(rank))?;
            largest(rank.device(), &model)
        })
    });
    for (rank, largest) in on_ranks.unwrap().into_iter().enumerate() {
        assert!(
            largest < smallest,
            "rank {rank}: {largest} of {smallest} bytes"
        );
    }
}
