//! Laws that hold for whole models of any configuration.

mod balancing;
mod bf16;
mod checkpointing;
mod decoding;
mod documents;
mod lora;
mod padding;
mod shapes;
mod unused;

use meshgrad_autograd::{Grads, Module, Tape};
use meshgrad_models::{Balancing, Compute, Decoder, Loss, Model, TokenBatch};
use meshgrad_runtime::{DType, Device, Key, Tensor, ops};

use crate::small::config;

/// Sliding and full attention; two query heads per key head.
const WINDOW: &str = r#"
    model_type = "qwen3"
    vocab_size = 96
    hidden_size = 32
    intermediate_size = 64
    num_hidden_layers = 3
    num_attention_heads = 4
    num_key_value_heads = 2
    use_sliding_window = true
    sliding_window = 4
    layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
"#;

/// Six query heads, one key head, head_dim independent of the hidden size.
const GROUPED: &str = r#"
    model_type = "qwen3"
    vocab_size = 96
    hidden_size = 40
    intermediate_size = 72
    num_hidden_layers = 2
    num_attention_heads = 6
    num_key_value_heads = 1
    head_dim = 16
    tie_word_embeddings = true
"#;

/// Eight experts, two per token.
const EXPERTS: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 96
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 2
    num_experts = 8
    num_experts_per_tok = 2
    moe_intermediate_size = 48
    norm_topk_prob = true
    initializer_range = 0.1
"#;

/// Positions beyond the original context; biases in attention.
pub(crate) const YARN: &str = r#"
    model_type = "qwen3"
    vocab_size = 96
    hidden_size = 32
    intermediate_size = 64
    num_hidden_layers = 2
    num_attention_heads = 4
    attention_bias = true
    max_position_embeddings = 32
    rope_scaling = { rope_type = "yarn", factor = 4.0, original_max_position_embeddings = 8 }
"#;

const F32: Compute = Compute::new(DType::F32);

fn model(text: &str, device: &Device) -> Decoder {
    Decoder::materialized(&config(text), device, 7).unwrap()
}

/// Random ids, [rows, tokens].
fn ids(device: &Device, rows: usize, tokens: usize) -> Tensor {
    let key = Key::new(3).fold_name("ids");
    let uniform = ops::uniform(device, &[rows * tokens], DType::F64, key, 0.0, 96.0).unwrap();
    let ids: Vec<i64> = uniform.to_vec::<f64>().unwrap().into_iter().map(|id| id as i64).collect();
    Tensor::from_slice(device, &[rows, tokens], &ids).unwrap()
}

/// The loss with `ids` as inputs and labels, and the gradient of each parameter.
fn gradients(
    model: &Decoder,
    ids: &Tensor,
    compute: Compute,
    balancing: Balancing,
) -> (Loss, Vec<(String, Vec<f32>)>) {
    gradients_of(model, &TokenBatch::new(ids, ids), compute, balancing)
}

/// The loss of a batch, and the gradient of each parameter.
fn gradients_of(
    model: &Decoder,
    batch: &TokenBatch,
    compute: Compute,
    balancing: Balancing,
) -> (Loss, Vec<(String, Vec<f32>)>) {
    let mut grads = Grads::new(&model.params()).unwrap();
    let model = model.clone().balanced(balancing);
    let (loss, tape) = Tape::record(|| model.loss(batch, compute)).unwrap();
    tape.backward(&loss.total, &mut grads).unwrap();

    let all = grads.all().unwrap();
    let values = all
        .into_iter()
        .map(|(param, gradient)| (param.name().to_owned(), gradient.to_vec().unwrap()));
    let values = values.collect();
    (loss, values)
}
