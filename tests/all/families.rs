//! Each family trains, on one rank and on several, samples, and is refused where it is not known.

use std::fs;

use approx::assert_relative_eq;
use meshgrad::train::metrics;

use crate::test_dir::TestDir;

const CONFIG: &str = r#"
[data]
paths = ["text.txt"]
tokenizer = "byte"

[train]
steps = 3
batch_size = 4
seq_len = 16

[sample]
every = 3
tokens = 4

[log]
every = 1
tensorboard = false
"#;

const SIZES: &str =
    "hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2, num_attention_heads = 4";

const SIZES_OF_GPT2: &str = "n_embd = 16, n_inner = 24, n_layer = 2, n_head = 4, n_positions = 512";

/// A `model_type`, and keys of its own.
const FAMILIES: [(&str, &str); 9] = [
    (
        "deepseek_v3",
        "num_key_value_heads = 4, q_lora_rank = 8, kv_lora_rank = 6, qk_nope_head_dim = 4, qk_rope_head_dim = 2, \
        v_head_dim = 5, moe_intermediate_size = 6, n_routed_experts = 4, num_experts_per_tok = 2, n_group = 2, \
        topk_group = 1, first_k_dense_replace = 1",
    ),
    ("gemma3_text", "num_key_value_heads = 2, sliding_window = 5, sliding_window_pattern = 2"),
    ("gpt2", ""),
    (
        "llama",
        "num_key_value_heads = 2, attention_bias = true, rope_scaling = { rope_type = 'llama3', factor = 4.0, \
        low_freq_factor = 1.0, high_freq_factor = 4.0, original_max_position_embeddings = 8 }",
    ),
    ("mistral", "num_key_value_heads = 2, sliding_window = 5"),
    ("mixtral", "num_key_value_heads = 2, num_local_experts = 4, num_experts_per_tok = 2"),
    ("olmo2", "num_key_value_heads = 2, attention_bias = true"),
    ("olmoe", "num_experts = 4, num_experts_per_tok = 2"),
    (
        "qwen2",
        "num_key_value_heads = 2, use_sliding_window = true, sliding_window = 5, max_window_layers = 1",
    ),
];

/// Ranks have the losses of one rank, up to rounding, and their checkpoint is saved and read as a folder of the family.
#[test]
fn families_train_on_ranks_as_on_one() {
    for (name, own) in FAMILIES {
        let dir = TestDir::with(&[
            ("text.txt", &"one two three four five ".repeat(40)),
            ("run.toml", CONFIG),
        ]);
        let sizes = if name == "gpt2" { SIZES_OF_GPT2 } else { SIZES };
        let model = format!("model={{ model_type = '{name}', {sizes}, {own} }}");
        let train = |run: &str, more: &[&str]| {
            let own = ["train", "run.toml", "--run-dir", run, "--set", &model];
            dir.succeeds(&[&own, more].concat());
            let records = metrics::read(&dir.path(run).join("metrics.jsonl")).unwrap();
            records.iter().map(|it| (it.loss, it.grad_norm)).collect::<Vec<_>>()
        };
        let one = train("one", &[]);
        assert_eq!(one.len(), 3);
        let degrees = ["tp", "pp", "dp_shard", "cp_shard", "ep"];
        let count = if own.contains("experts") { 5 } else { 4 };
        for degree in &degrees[..count] {
            let set = format!("parallel.{degree}=2");
            let of_ranks = train(degree, &["--ranks", "2", "--set", &set]);
            for ((loss, norm), (one_loss, one_norm)) in of_ranks.iter().zip(&one) {
                assert_relative_eq!(loss, one_loss, max_relative = 1e-5);
                assert_relative_eq!(norm, one_norm, max_relative = 1e-4);
            }
        }

        let config = fs::read_to_string(dir.path("one/step-000003/config.json")).unwrap();
        assert!(config.contains(&format!("\"model_type\": \"{name}\"")), "{config}");
        let text =
            |run: &str| dir.succeeds(&["sample", run, "--prompt", "one", "--temperature", "0"]);
        assert_eq!(text("one"), text("one/step-000003"));
        let tuned = ["train", "run.toml", "--from", "one", "--run-dir", "tuned"];
        assert!(dir.succeeds(&tuned).contains(&format!("{name} 2 layers of 16")));
    }
}

/// A `model_type` of no family, and keys of another one, are errors that name those that are known.
#[test]
fn unknown_families_are_errors() {
    let dir = TestDir::with(&[("text.txt", &"one two ".repeat(200)), ("run.toml", CONFIG)]);
    fs::create_dir(dir.path("other")).unwrap();
    fs::write(dir.path("other/config.json"), r#"{"model_type": "bert"}"#).unwrap();
    let known = "supported are `qwen3`, `qwen3_moe`, `llama`, `mistral`,";
    let error = dir.fails(&["train", "run.toml", "--from", "other"]);
    assert!(error.contains("model_type is `bert`") && error.contains(known), "{error}");
    fs::write(dir.path("other/config.json"), r#"{"model_type": "gemma2"}"#).unwrap();
    let error = dir.fails(&["train", "run.toml", "--from", "other"]);
    assert!(error.contains("close to `gemma3_text`, but it bounds scores and logits"), "{error}");
    for (set, expected) in [
        ("model.model_type='bert'", "unknown variant `bert`, expected one of `qwen3`"),
        (
            "model={ model_type = 'mistral', attention_bias = true }",
            "unknown field `attention_bias`",
        ),
        (
            "model={ model_type = 'llama', hidden_size = 16 }",
            "model.num_attention_heads: missing; a llama needs it",
        ),
        (
            "model={ model_type = 'gpt2', n_embd = 16, n_layer = 1, n_head = 2, n_positions = 8 }",
            "a sequence of 16 tokens is too long: the model has 8 learned positions",
        ),
    ] {
        let error = dir.fails(&["train", "run.toml", "--set", set]);
        assert!(error.contains(expected), "{error}");
    }
}
