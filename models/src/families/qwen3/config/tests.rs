//! The fixtures of `tests/parity`: configurations and frequencies as interpreted by transformers
//! 5.23.

use std::path::PathBuf;

use serde_json::Value;

use super::*;
use crate::config::{RopeScaling, RopeType};
use crate::{Decoder, Model};

const FIXTURES: [&str; 12] = [
    "dense-gqa-tied",
    "dense-bias-yarn",
    "dense-window-linear",
    "dense-layer-types-mqa",
    "dense-defaults",
    "moe-hub-sharded",
    "moe-fused",
    "moe-sparse-step",
    "moe-idle-expert",
    "moe-all-experts-tied",
    "moe-window-fused-sharded",
    "moe-aux-loss",
];

/// The configuration `tiny` of benches/: the model of the default run.
const TINY: &str = r#"
model_type = "qwen3_moe"
vocab_size = 4096
hidden_size = 256
num_hidden_layers = 4
num_attention_heads = 8
num_key_value_heads = 4
num_experts = 8
num_experts_per_tok = 2
moe_intermediate_size = 256
"#;

fn parity(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/parity").join(path)
}

fn fixture(name: &str) -> Qwen3Config {
    let text = std::fs::read_to_string(parity(&format!("fixtures/{name}/config.json"))).unwrap();
    Qwen3Config::from_json(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn model(config: &Qwen3Config) -> Decoder {
    Decoder::new(config).unwrap()
}

fn tiny() -> Qwen3Config {
    toml::from_str(TINY).unwrap()
}

fn windows(config: &Qwen3Config) -> Vec<Option<usize>> {
    (0..config.num_hidden_layers).map(|layer| config.window(layer)).collect()
}

fn moe_layers(config: &Qwen3Config) -> Vec<usize> {
    (0..config.num_hidden_layers).filter(|layer| config.is_moe_layer(*layer)).collect()
}

fn error_of(json: &str) -> String {
    Qwen3Config::from_json(json).unwrap_err().to_string()
}

fn problems_of(config: &Qwen3Config) -> Vec<String> {
    let error = config.validate().unwrap_err();
    error.details::<Problems>().unwrap().0.clone()
}

// ---- reading ----

#[test]
fn layers_match_transformers() {
    assert_eq!(windows(&fixture("dense-gqa-tied")), [None, None]);
    assert_eq!(windows(&fixture("dense-window-linear")), [None, Some(5), Some(5)]);
    assert_eq!(windows(&fixture("dense-layer-types-mqa")), [Some(4), None, Some(4)]);
    assert_eq!(windows(&fixture("moe-window-fused-sharded")), [Some(3), Some(3)]);

    assert!(moe_layers(&fixture("dense-defaults")).is_empty());
    assert_eq!(moe_layers(&fixture("moe-hub-sharded")), [0, 1]);
    assert_eq!(moe_layers(&fixture("moe-fused")), [0, 2]);
    assert_eq!(moe_layers(&fixture("moe-sparse-step")), [1]);
    assert_eq!(moe_layers(&fixture("moe-aux-loss")), [1, 2]);
}

#[test]
fn omitted_keys_have_hugging_faces_defaults() {
    let dense = Qwen3Config::from_json(r#"{"model_type": "qwen3"}"#).unwrap();
    assert_eq!((dense.hidden_size, dense.num_hidden_layers, dense.num_kv_heads()), (4096, 32, 32));
    assert_eq!((dense.head_dim(), dense.intermediate_size, dense.vocab_size), (128, 22016, 151936));
    assert_eq!(dense.rope().unwrap(), Rope { theta: 1e4, scaling: RopeScaling::None });

    let moe = Qwen3Config::from_json(r#"{"model_type": "qwen3_moe"}"#).unwrap();
    assert_eq!((moe.hidden_size, moe.num_hidden_layers, moe.num_kv_heads()), (2048, 24, 4));
    assert_eq!((moe.head_dim(), moe.num_experts, moe.num_experts_per_tok), (64, 128, 8));
    assert!(!moe.norm_topk_prob && !moe.tie_word_embeddings);

    let windowed = r#"{"model_type": "qwen3", "use_sliding_window": true}"#;
    let windowed = Qwen3Config::from_json(windowed).unwrap();
    assert_eq!((windowed.window(27), windowed.window(28)), (None, Some(4096)));
}

#[test]
fn null_is_a_missing_key() {
    let json = r#"{"model_type": "qwen3", "num_attention_heads": 8, "num_key_value_heads": null,
                   "rope_scaling": null, "sliding_window": null, "layer_types": null}"#;
    let config = Qwen3Config::from_json(json).unwrap();
    assert_eq!(config.num_kv_heads(), 8);
    assert_eq!(config.rope().unwrap().scaling, RopeScaling::None);
}

/// The frequencies equal those that transformers 5.23 prints for the parity fixtures, within a
/// tolerance: transformers computes the powers of theta in f32. For theta = 1e6, rounding the
/// exponent changes the result by up to 1e-6 of its value.
#[test]
fn rotary_frequencies_match_transformers() {
    let golden: [(&str, &[f64], f64); 5] = [
        (
            "dense-gqa-tied",
            &[
                1.0,
                0.06309573352336884,
                0.003981071524322033,
                0.0002511885541025549,
                1.5848929251660593e-05,
            ],
            1.0,
        ),
        (
            "dense-bias-yarn",
            &[1.0, 0.26879361271858215, 0.07000000029802322, 0.01739252731204033],
            1.138629436111989,
        ),
        (
            "dense-window-linear",
            &[0.3333333432674408, 0.04199736937880516, 0.005291336681693792],
            1.0,
        ),
        (
            "dense-layer-types-mqa",
            &[
                1.0,
                0.38649728894233704,
                0.1493801474571228,
                0.05183907970786095,
                0.015955189242959023,
                0.004589545540511608,
            ],
            0.8,
        ),
        (
            "moe-all-experts-tied",
            &[
                1.0,
                0.18205642700195312,
                0.023477379232645035,
                0.002514239400625229,
                0.00013732006482314318,
            ],
            1.2079441541679836,
        ),
    ];
    for (name, frequencies, attention_factor) in golden {
        let config = fixture(name);
        let rope = config.rope().unwrap();
        let actual = rope.inverse_frequencies(config.head_dim());

        assert_eq!(actual.len(), frequencies.len(), "{name}");
        for (actual, expected) in actual.iter().zip(frequencies) {
            assert!(
                (actual / expected - 1.0).abs() < 1e-6,
                "{name}: {actual}, expected {expected}"
            );
        }
        assert!((rope.attention_factor() - attention_factor).abs() < 1e-15, "{name}");
    }
}

#[test]
fn unknown_keys_are_all_named() {
    let error =
        error_of(r#"{"model_type": "qwen3", "logit_cap": 30, "use_cache": true, "mtp": 1}"#);
    assert!(error.contains("logit_cap, mtp"), "{error}");
    assert!(!error.contains("use_cache"), "{error}");
}

#[test]
fn wrong_values_are_named_with_key_and_value() {
    for (pair, expected) in [
        (
            r#""hidden_act": "relu""#,
            r#"hidden_act = "relu" in config.json: unknown variant `relu`, expected one of `silu`, `gelu`"#,
        ),
        (r#""hidden_size": -4"#, "hidden_size = -4 in config.json: invalid value: integer `-4`"),
        (r#""hidden_size": "64""#, "hidden_size = \"64\" in config.json: invalid type: string"),
        (
            r#""rope_scaling": {"rope_type": "longrope"}"#,
            "unknown variant `longrope`, expected one of `default`",
        ),
        (r#""layer_types": ["mamba"]"#, "unknown variant `mamba`"),
        (
            r#""num_experts": 4, "num_local_experts": 8"#,
            "num_experts = 4 but num_local_experts = 8",
        ),
    ] {
        let error = error_of(&format!(r#"{{"model_type": "qwen3_moe", {pair}}}"#));
        assert!(error.contains(expected), "{error}");
    }

    assert!(error_of("[1]").contains("a list, expected an object"));
    assert!(error_of("{").contains("not valid JSON"));
    assert!(error_of("{}").contains("model_type is missing"));
    assert!(error_of(r#"{"model_type": "llama"}"#).contains("model_type is `llama`"));
}

// ---- writing ----

/// A written configuration describes the same model, with every default filled in.
#[test]
fn written_config_reads_as_the_same_model() {
    for name in FIXTURES {
        let config = fixture(name);
        let read_again = Qwen3Config::from_json(&config.to_json().unwrap()).unwrap();
        assert_eq!(read_again, config.resolved().unwrap(), "{name}");
        assert_eq!(read_again.resolved().unwrap(), read_again, "{name}");

        assert_eq!(windows(&read_again), windows(&config), "{name}");
        assert_eq!(moe_layers(&read_again), moe_layers(&config), "{name}");
        assert_eq!(read_again.rope().unwrap(), config.rope().unwrap(), "{name}");
        let [again, once] = [&read_again, &config].map(|it| model(it).parameter_count());
        assert_eq!(again, once, "{name}");
    }
}

#[test]
fn toml_keeps_every_field() {
    let mut configs: Vec<_> = FIXTURES.map(fixture).into();
    configs.push(tiny());
    configs.extend(FIXTURES.map(|name| fixture(name).resolved().unwrap()));

    for config in configs {
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<Qwen3Config>(&text).unwrap(), config, "{text}");
    }
}

#[test]
fn toml_is_strict() {
    let typo = toml::from_str::<Qwen3Config>(&format!("{TINY}\nhiden_size = 3")).unwrap_err();
    assert!(typo.to_string().contains("unknown field `hiden_size`"), "{typo}");

    let missing =
        toml::from_str::<Qwen3Config>(&TINY.replace("hidden_size = 256", "")).unwrap_err();
    assert!(missing.to_string().contains("missing field `hidden_size`"), "{missing}");
}

#[test]
fn keys_lists_every_field() {
    let mut full = fixture("dense-layer-types-mqa").resolved().unwrap();
    full.rope_parameters = full.rope_scaling.clone();
    full.bos_token_id = Some(1);
    full.eos_token_id = Some(TokenIds::Many(vec![1, 2]));
    full.pad_token_id = Some(0);

    let Value::Object(fields) = serde_json::to_value(&full).unwrap() else { unreachable!() };
    assert_eq!(fields.keys().collect::<Vec<_>>(), Qwen3Config::KEYS);
}

// ---- counting ----

/// The count equals the number of elements in the fixture's files.
#[test]
fn parameter_counts_match_the_files() {
    for name in FIXTURES {
        let count = model(&fixture(name)).parameter_count();
        assert_eq!(count.total(), elements_in(&parity(&format!("fixtures/{name}"))), "{name}");
    }
}

fn elements_in(folder: &std::path::Path) -> u64 {
    let folder = meshgrad_ckpt::Folder::open(folder).unwrap();
    let elements = |shape: &[usize]| shape.iter().product::<usize>() as u64;
    folder.tensors().map(|tensor| elements(&tensor.shape)).sum()
}

#[test]
fn published_models_have_their_published_sizes() {
    let config = Qwen3Config::from_json(
        r#"{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
            "head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 4, "moe_intermediate_size": 768,
            "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936}"#,
    )
    .unwrap();
    let qwen3_30b_a3b = model(&config).parameter_count();
    assert_eq!(qwen3_30b_a3b.total(), 30_532_122_624);
    assert_eq!(qwen3_30b_a3b.active(), 3_353_032_704);

    let (tiny, tokens) = (tiny(), 256.0);
    let count = model(&tiny).parameter_count();
    assert_eq!(count.total(), 9_185_792);
    assert_eq!(count.active_in_matmuls(), 3_418_624);
    let features = (tiny.num_attention_heads * tiny.head_dim() * tiny.num_hidden_layers) as f64;
    let flops = model(&tiny).flops_per_token(256).unwrap();
    assert_eq!(flops, 6.0 * 3_418_624.0 + 6.0 * features * tokens);
}

#[test]
fn huge_sizes_are_errors_not_panics() {
    let mut config = tiny();
    config.num_hidden_layers = usize::MAX;
    config.hidden_size = usize::MAX - 1;
    config.num_attention_heads = usize::MAX;
    config.num_experts = usize::MAX;
    config.vocab_size = 0;

    assert!(problems_of(&config).len() >= 5);
}

// ---- validation ----

#[test]
fn every_problem_is_reported_at_once() {
    let mut config = tiny();
    config.num_key_value_heads = Some(3);
    config.head_dim = Some(15);
    config.num_experts_per_tok = 9;
    config.rope_scaling =
        Some(RopeKeys { rope_type: Some(RopeType::Linear), ..RopeKeys::default() });

    let expected = [
        "num_attention_heads = 8 is not a multiple of num_key_value_heads = 3; every key-value head \
         serves the same number of query heads",
        "head_dim = 15 is odd; rotary embedding needs an even number of features",
        "num_experts_per_tok = 9 is more than num_experts = 8; lower the first or raise the second",
        "rope_type = linear needs factor; add it next to rope_type",
    ];
    assert_eq!(problems_of(&config), expected);
    let text = config.validate().unwrap_err().to_string();
    assert_eq!(text.matches("\n  - ").count(), 4, "{text}");
}

#[test]
fn each_problem_is_found() {
    type Change = fn(&mut Qwen3Config);
    let cases: [(Change, &str); 17] = [
        (|c| c.vocab_size = 0, "vocab_size is 0"),
        (|c| c.num_attention_heads = 0, "num_attention_heads is 0"),
        (|c| c.num_key_value_heads = Some(0), "num_key_value_heads is 0"),
        (|c| c.moe_intermediate_size = 0, "moe_intermediate_size is 0"),
        (|c| c.mlp_only_layers = vec![2], "intermediate_size is 0"),
        (|c| c.decoder_sparse_step = 0, "decoder_sparse_step is 0"),
        (|c| c.num_attention_heads = 12, "hidden_size = 256 is not a multiple"),
        (|c| c.rms_norm_eps = f64::NAN, "rms_norm_eps = NaN must be"),
        (|c| c.rope_theta = Some(-1.0), "rope_theta = -1 must be a positive number"),
        (|c| c.attention_dropout = 0.1, "attention_dropout = 0.1 must be 0"),
        (|c| c.use_sliding_window = true, "sliding_window is missing"),
        (|c| (c.use_sliding_window, c.sliding_window) = (true, Some(0)), "sliding_window is 0"),
        (|c| c.layer_types = Some(vec![LayerType::FullAttention]), "layer_types has 1 entries"),
        (
            |c| c.layer_types = Some(vec![LayerType::SlidingAttention; 4]),
            "layer_types[0] contradicts use_sliding_window = false",
        ),
        (|c| c.model_type = ModelType::Qwen3, "num_experts = 8 needs model_type = qwen3_moe"),
        (
            |c| {
                c.rope_theta = Some(5.0);
                c.rope_parameters = Some(RopeKeys { rope_theta: Some(6.0), ..RopeKeys::default() });
            },
            "rope_theta = 5 but rope_parameters.rope_theta = 6",
        ),
        (
            |c| {
                let partial = RopeKeys { partial_rotary_factor: Some(0.5), ..RopeKeys::default() };
                c.rope_parameters = Some(partial);
            },
            "partial_rotary_factor = 0.5 must be 1",
        ),
    ];

    tiny().validate().unwrap();
    for (change, expected) in cases {
        let mut config = tiny();
        change(&mut config);
        let text = config.validate().unwrap_err().to_string();
        assert!(text.contains(expected), "expected {expected:?} in {text}");
    }
}
