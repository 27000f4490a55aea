//! Small Qwen3 models for tests that compare the ranks of a mesh with one rank.

use meshgrad_autograd::{Init, Module, Param};
use meshgrad_mesh::Mesh;
use meshgrad_models::families::qwen3::Qwen3Config;
use meshgrad_models::lora::LoraConfig;
use meshgrad_models::{Balance, Balancing, Compute, Decoder};
use meshgrad_runtime::DType;

/// Names and sizes of mesh axes.
pub(crate) type Axes = &'static [(&'static str, usize)];

/// Three key-value heads and a vocabulary that three ranks share unevenly; biases.
pub(crate) const DENSE: &str = r#"
    model_type = "qwen3"
    vocab_size = 97
    hidden_size = 20
    intermediate_size = 22
    num_hidden_layers = 3
    num_attention_heads = 6
    num_key_value_heads = 3
    head_dim = 8
    attention_bias = true
    initializer_range = 0.2
"#;

/// Two key-value heads; tied embeddings; padding; a sliding window.
pub(crate) const TIED: &str = r#"
    model_type = "qwen3"
    vocab_size = 61
    hidden_size = 16
    intermediate_size = 24
    num_hidden_layers = 2
    num_attention_heads = 8
    num_key_value_heads = 2
    head_dim = 4
    tie_word_embeddings = true
    pad_token_id = 5
    use_sliding_window = true
    sliding_window = 3
    layer_types = ["sliding_attention", "full_attention"]
    initializer_range = 0.2
"#;

/// Five experts, two per token; the second layer is dense.
pub(crate) const EXPERTS: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 53
    hidden_size = 16
    intermediate_size = 20
    num_hidden_layers = 3
    num_attention_heads = 4
    num_key_value_heads = 4
    num_experts = 5
    num_experts_per_tok = 2
    moe_intermediate_size = 14
    mlp_only_layers = [1]
    norm_topk_prob = true
    initializer_range = 0.2
"#;

/// Every expert has every token, so that rounding does not change the routing.
pub(crate) const ALL_EXPERTS: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 53
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 4
    num_experts = 3
    num_experts_per_tok = 3
    moe_intermediate_size = 14
    initializer_range = 0.2
"#;

/// Two of eight experts per token.
pub(crate) const EIGHT_EXPERTS: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 53
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 4
    num_key_value_heads = 4
    num_experts = 8
    num_experts_per_tok = 2
    moe_intermediate_size = 9
    norm_topk_prob = true
    initializer_range = 0.2
"#;

pub(crate) const BALANCING: Balancing =
    Balancing { auxiliary: 0.1, balance: Balance::Pooled, z: 0.01, bias_update_rate: 0.001 };

pub(crate) fn config(text: &str) -> Qwen3Config {
    toml::from_str(text).unwrap()
}

pub(crate) fn mesh(axes: Axes) -> Mesh {
    let (names, sizes): (Vec<&str>, Vec<usize>) = axes.iter().copied().unzip();
    Mesh::new(&sizes, &names).unwrap()
}

pub(crate) fn compute(is_bf16: bool, checkpointing: bool) -> Compute {
    let dtype = match is_bf16 {
        true => DType::BF16,
        false => DType::F32,
    };
    Compute { dtype, checkpointing }
}

/// Adds low-rank updates of all projections, beside what is trained. They are not zero, so each has a gradient.
pub(crate) fn add_adapters(model: &mut Decoder) {
    let trained = model.trained();
    let targets = vec!["*_proj".to_owned()];
    let config = LoraConfig { rank: 3, alpha: 6.0, rslora: false, targets, base: None };
    model.add_adapter(&config).unwrap();
    trained.iter().for_each(Param::unfreeze);
    for lora in model.loras_mut() {
        let shape = [lora.b.shape()[0], lora.b.shape()[1]];
        lora.b = Param::new(lora.b.name(), shape, Init::Normal { std: 0.3 });
    }
}

/// The L2 norm.
pub(crate) fn norm(values: &[f32]) -> f64 {
    let squares = values.iter().map(|x| f64::from(*x).powi(2));
    squares.sum::<f64>().sqrt()
}

/// The norm of the difference.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    let differences = a.iter().zip(b).map(|(a, b)| a - b);
    norm(&differences.collect::<Vec<_>>())
}
