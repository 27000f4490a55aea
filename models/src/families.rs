//! Families of models: each says how its configuration is read, which blocks it is built of, and under which names its
//! tensors are stored. Everything else is the [`Decoder`](crate::Decoder)'s.

pub mod dense;
pub mod llama;
pub mod mistral;
pub mod qwen2;
pub mod qwen3;

use std::sync::Arc;

use meshgrad_error::{Result, error};
use serde_json::Value;

use self::dense::Dense;
use crate::config::json;
pub use crate::family::{Family, FamilyConfig};

/// All families.
pub static FAMILIES: &[&dyn Family] = &[
    &qwen3::Qwen3,
    &Dense::<llama::LlamaConfig>::FAMILY,
    &Dense::<mistral::MistralConfig>::FAMILY,
    &Dense::<qwen2::Qwen2Config>::FAMILY,
];

/// The family of a `model_type`.
pub fn family(model_type: &str) -> Option<&'static dyn Family> {
    FAMILIES.iter().copied().find(|family| family.model_types().contains(&model_type))
}

/// Reads the text of a config.json of any family.
///
/// # Errors
/// For invalid JSON; for a `model_type` of no family, with those that there are; as [`Family::read_json`].
pub fn from_json(text: &str) -> Result<Arc<dyn FamilyConfig>> {
    let keys = json::keys_of(text)?;
    let known: Vec<&str> = FAMILIES.iter().flat_map(|it| it.model_types()).copied().collect();
    json::check_model_type(&keys, &known)?;
    let name = keys.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let family = family(name).ok_or_else(|| error!(Unsupported, "model_type is `{name}`"))?;
    family.read_json(keys)
}
