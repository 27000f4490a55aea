//! Configurations of a small mixture of experts.

use std::path::Path;

use meshgrad_train::config::Config;
use meshgrad_train::decoder;

const MODEL: &str = r#"
    [model]
    model_type = "qwen3_moe"
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    num_experts = 4
    num_experts_per_tok = 1
    moe_intermediate_size = 32
    initializer_range = 0.2
"#;

const RUN: &str = r#"
    [data]
    paths = ["TEXT"]

    [train]
    steps = 4
    batch_size = 4
    micro_batch_size = 2
    seq_len = 32

    [checkpoint]
    every = 2
    keep = 0

    [sample]
    every = 0
"#;

/// A run from scratch.
pub(crate) fn config(overrides: &[&str]) -> Config {
    parse(MODEL, &[&["data.tokenizer=byte"], overrides].concat())
}

/// A run that starts from the checkpoint or run `from`, with its tokenizer.
pub(crate) fn config_from(from: &Path, overrides: &[&str]) -> Config {
    let from = format!("model.from={:?}", from.to_str().unwrap());
    parse("", &[&[from.as_str()], overrides].concat())
}

fn parse(model: &str, overrides: &[&str]) -> Config {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/balancing.rs");
    let run = RUN.replace("TEXT", text.to_str().unwrap());
    let overrides: Vec<_> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    Config::parse::<decoder::Tables>(&[model, &run].concat(), "the test", &overrides).unwrap()
}
