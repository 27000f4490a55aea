//! Reading and writing config.json.
//!
//! A family applies its defaults and the spellings of its keys. Keys in [`IGNORED_KEYS`] do not affect the computation
//! and are skipped. An unknown key is an error, because it may affect the computation.

use meshgrad_error::{Error, Result, bail, ensure, error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::problems::way_out_of;

/// Keys of config.json that do not affect the computation: metadata of the library, defaults that
/// old versions wrote for every architecture, and generation settings that old versions stored
/// here.
const IGNORED_KEYS: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_experts_implementation",
    "_name_or_path",
    "add_cross_attention",
    "architectures",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "experts_implementation",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "prefix",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// The keys of the text of a config.json, without those that are skipped.
///
/// # Errors
/// For invalid JSON and for quantized weights.
pub(crate) fn keys_of(text: &str) -> Result<Map<String, Value>> {
    let mut keys = match serde_json::from_str(text).map_err(not_json)? {
        Value::Object(keys) => keys,
        other => bail!(
            Malformed,
            "config.json holds {}, expected an object with a model's settings",
            kind(&other)
        ),
    };
    refuse_quantized(&mut keys)?;
    keys.retain(|key, _| !IGNORED_KEYS.contains(&key.as_str()));
    Ok(keys)
}

/// The settings of `keys` over `defaults`.
///
/// # Errors
/// For keys that are not `known`, with all of them; for a value of a wrong type.
pub(crate) fn settings<C: DeserializeOwned>(
    known: &[&str],
    defaults: Value,
    keys: Map<String, Value>,
) -> Result<C> {
    let unknown: Vec<_> =
        keys.keys().filter(|key| !known.contains(&key.as_str())).cloned().collect();
    ensure!(
        unknown.is_empty(),
        Unsupported,
        "config.json has unknown keys: {}; remove them if they do not affect the computation",
        unknown.join(", ")
    );
    match defaults {
        Value::Object(defaults) => overlay(defaults, keys),
        _ => overlay(Map::new(), keys),
    }
}

/// The keys of `config` as a table.
pub(crate) fn table(config: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(config).map_err(not_json)? {
        Value::Object(keys) => Ok(keys),
        _ => Ok(Map::new()),
    }
}

/// What `config` writes, with the class that transformers instantiates.
pub(crate) fn keys_to_write(
    config: &impl Serialize,
    architecture: &str,
) -> Result<Map<String, Value>> {
    let mut keys = Map::from_iter([("architectures".to_owned(), Value::from(vec![architecture]))]);
    keys.extend(table(config)?);
    Ok(keys)
}

/// Merges two spellings of a key, of which transformers reads both.
///
/// # Errors
/// When they disagree.
pub(crate) fn unify(keys: &mut Map<String, Value>, name: &str, other_name: &str) -> Result<()> {
    let Some(other) = keys.shift_remove(other_name) else {
        return Ok(());
    };
    let value = keys.get(name).unwrap_or(&other);
    ensure!(
        *value == other,
        Malformed,
        "{name} = {value} but {other_name} = {other} in config.json: both are names of the same \
         number; keep one"
    );
    keys.insert(name.to_owned(), other);
    Ok(())
}

/// The text of a config.json.
pub(crate) fn written(keys: &Map<String, Value>) -> Result<String> {
    Ok(serde_json::to_string_pretty(keys).map_err(not_json)? + "\n")
}

pub(crate) fn not_json(cause: serde_json::Error) -> Error {
    error!(Malformed, "config.json is not valid JSON: {cause}").caused_by(cause)
}

/// The error for a `model_type` that is not among `known`, which are at least two.
pub(crate) fn unknown_model_type(found: Option<&Value>, known: &[&str]) -> Error {
    let found = match found {
        Some(Value::String(name)) => format!("`{name}`"),
        Some(other) => other.to_string(),
        None => "missing".to_owned(),
    };
    let quoted: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    let (last, others) =
        quoted.split_last().map_or(("", &[][..]), |(last, others)| (&last[..], others));
    error!(Unsupported, "model_type is {found}; supported are {} and {last}", others.join(", "))
}

/// Removes the keys of quantization if they are null.
fn refuse_quantized(keys: &mut Map<String, Value>) -> Result<()> {
    for key in ["quantization_config", "compression_config"] {
        let quantization = keys.shift_remove(key).filter(|value| !value.is_null());
        if let Some(quantization) = quantization {
            let method = quantization.get("quant_method").and_then(Value::as_str);
            let method = method.unwrap_or("unknown method");
            bail!(
                Unsupported,
                "{key} in config.json says that the weights are quantized ({method}), and they would be \
                 read without their scales; {}",
                way_out_of(method)
            );
        }
    }
    Ok(())
}

/// Applies `keys` to `settings` one at a time, so that an error can name the key.
fn overlay<C: DeserializeOwned>(
    mut settings: Map<String, Value>,
    keys: Map<String, Value>,
) -> Result<C> {
    for (key, value) in keys {
        settings.insert(key.clone(), value.clone());
        parse::<C>(&settings)
            .map_err(|reason| error!(Malformed, "{key} = {value} in config.json: {reason}"))?;
    }
    parse(&settings).map_err(not_json)
}

fn parse<C: DeserializeOwned>(settings: &Map<String, Value>) -> Result<C, serde_json::Error> {
    serde_json::from_value(Value::Object(settings.clone()))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
