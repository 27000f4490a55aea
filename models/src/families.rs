//! Families of models: each says how its configuration is read, which blocks it is built of, and under which names its
//! tensors are stored. Everything else is the [`Decoder`](crate::Decoder)'s.

pub mod deepseek_v3;
pub mod gemma3;
pub mod gpt2;
pub mod llama;
pub mod llama_like;
pub mod mistral;
pub mod mixtral;
pub mod olmo2;
pub mod olmoe;
pub mod qwen2;
pub mod qwen3;

use std::sync::{Arc, PoisonError, RwLock};

use meshgrad_error::{Error, Result, error};
use serde_json::Value;

use self::llama_like::LlamaLikeFamily;
use crate::config::json;
pub use crate::family::{Family, FamilyConfig};

/// The families of this crate.
static FAMILIES: &[&dyn Family] = &[
    &qwen3::Qwen3,
    &LlamaLikeFamily::<llama::LlamaConfig>::FAMILY,
    &LlamaLikeFamily::<mistral::MistralConfig>::FAMILY,
    &LlamaLikeFamily::<mixtral::MixtralConfig>::FAMILY,
    &LlamaLikeFamily::<qwen2::Qwen2Config>::FAMILY,
    &LlamaLikeFamily::<deepseek_v3::DeepseekV3Config>::FAMILY,
    &LlamaLikeFamily::<gemma3::Gemma3Config>::FAMILY,
    &gpt2::Gpt2,
    &LlamaLikeFamily::<olmo2::Olmo2Config>::FAMILY,
    &LlamaLikeFamily::<olmoe::OlmoeConfig>::FAMILY,
];

/// A `model_type` that is close to one of a family, which one, and what differs.
const CLOSE: [(&str, &str, &str); 10] = [
    (
        "deepseek_v2",
        "deepseek_v3",
        "it chooses experts by a softmax, and groups by their best expert",
    ),
    ("gemma2", "gemma3_text", "it bounds scores and logits, and has no norms of queries and keys"),
    (
        "gemma3",
        "gemma3_text",
        "it has images; its `text_config` is the configuration of the text model",
    ),
    ("granite", "llama", "it multiplies embeddings, scores, residuals and logits by factors"),
    ("mistral3", "mistral", "it has images"),
    ("olmo3", "olmo2", "most of its layers have a window"),
    ("phi3", "llama", "its files merge the projections to heads, and gate and up"),
    ("qwen2_5_vl", "qwen2", "it has images"),
    (
        "qwen2_moe",
        "qwen3_moe",
        "it has biases, a gated shared expert and no norms of queries and keys",
    ),
    ("smollm3", "llama", "some of its layers have no rotation"),
];

/// Those of other crates.
static REGISTERED: RwLock<Vec<&'static dyn Family>> = RwLock::new(Vec::new());

/// Adds a family of another crate to those that configurations and folders may name. Of two with one `model_type`, the
/// first one is used; those of this crate are the first.
///
/// ```
/// use meshgrad_autograd::{Module, ModulePath};
/// use meshgrad_models::attention::Attention;
/// use meshgrad_models::families::llama_like::{LlamaKeys, LlamaLike, LlamaLikeFamily};
/// use meshgrad_models::norms::RmsNorm;
/// use meshgrad_models::{Decoder, families};
/// use serde::{Deserialize, Serialize};
/// use serde_json::{Value, json};
///
/// #[derive(Clone, Debug, Serialize, Deserialize)]
/// struct Normed {
///     #[serde(flatten)]
///     keys: LlamaKeys,
/// }
///
/// impl LlamaLike for Normed {
///     const MODEL_TYPE: &'static str = "normed";
///     const ARCHITECTURE: &'static str = "NormedForCausalLM";
///     const KEYS: &'static [&'static str] = &[];
///
///     fn defaults() -> Value {
///         json!({
///             "model_type": "normed", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 6,
///             "num_hidden_layers": 2, "num_attention_heads": 2,
///         })
///     }
///
///     fn keys(&self) -> &LlamaKeys {
///         &self.keys
///     }
///
///     fn with_keys(self, keys: LlamaKeys) -> Normed {
///         Normed { keys }
///     }
///
///     fn attention(&self, at: &ModulePath, _number: usize) -> Attention {
///         self.keys.attention(at).head_norms(|name, features| RmsNorm::new(at.sub(name), features, 1e-5))
///     }
/// }
///
/// # fn main() -> meshgrad_models::Result<()> {
/// families::register(&LlamaLikeFamily::<Normed>::FAMILY);
/// let config = families::from_json(r#"{"model_type": "normed", "num_hidden_layers": 3}"#)?;
/// assert_eq!(Decoder::new(&*config)?.params().len(), 3 + 3 * 10);
/// # Ok(())
/// # }
/// ```
pub fn register(family: &'static dyn Family) {
    REGISTERED.write().unwrap_or_else(PoisonError::into_inner).push(family);
}

/// All families, in the order in which they are searched.
fn families() -> Vec<&'static dyn Family> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    FAMILIES.iter().chain(&*registered).copied().collect()
}

/// The values of `model_type` that a family has.
pub fn model_types() -> Vec<&'static str> {
    families().iter().flat_map(|family| family.model_types()).copied().collect()
}

/// The family of a `model_type`.
pub fn family(model_type: &str) -> Option<&'static dyn Family> {
    families().into_iter().find(|family| family.model_types().contains(&model_type))
}

/// Reads the text of a config.json of any family.
///
/// # Errors
/// For invalid JSON; for a `model_type` of no family, with those that there are; as [`Family::read_json`].
pub fn from_json(text: &str) -> Result<Arc<dyn FamilyConfig>> {
    let keys = json::keys_of(text)?;
    let found = keys.get("model_type");
    match found.and_then(Value::as_str).and_then(family) {
        Some(family) => family.read_json(keys),
        None => Err(unknown(found)),
    }
}

/// The error for a `model_type` of no family.
fn unknown(found: Option<&Value>) -> Error {
    let unknown = json::unknown_model_type(found, &model_types());
    let close = CLOSE.iter().find(|(other, ..)| found.is_some_and(|found| found == other));
    match close {
        Some((other, close, differs)) => {
            error!(Unsupported, "{unknown}; `{other}` is close to `{close}`, but {differs}")
        }
        None => unknown,
    }
}
