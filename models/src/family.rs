//! What a family of models must say of itself.

use std::fmt;
use std::sync::Arc;

use meshgrad_ckpt::mapping::Mapping;
use meshgrad_error::Result;
use serde_json::{Map, Value};

use crate::config::json;
use crate::hf::map::Experts;
use crate::parts::Parts;

/// A family, by which a program that knows only `model_type` finds the rest.
pub trait Family: Sync {
    /// The values of `model_type` in config.json.
    fn model_types(&self) -> &'static [&'static str];

    /// Reads the keys of a config.json, with Hugging Face's defaults for missing keys.
    ///
    /// # Errors
    /// For unknown keys, values of a wrong type and invalid sizes, with all of them.
    fn read_json(&self, keys: Map<String, Value>) -> Result<Arc<dyn FamilyConfig>>;

    /// Reads the keys of a `[model]` table, which has no defaults that are sizes of a model.
    ///
    /// # Errors
    /// For a missing or unknown key or a value of a wrong type, with the first. Sizes are not checked.
    fn read_table(
        &self,
        keys: Map<String, Value>,
    ) -> Result<Arc<dyn FamilyConfig>, serde_json::Error>;
}

/// The configuration of a model of some family.
pub trait FamilyConfig: fmt::Debug + Send + Sync {
    /// `model_type`.
    fn model_type(&self) -> &'static str;

    /// Checks that a model can be built.
    ///
    /// # Errors
    /// With all [`Problems`](crate::config::Problems).
    fn validate(&self) -> Result<()>;

    /// The blocks of the whole model, without values. The configuration is valid.
    ///
    /// # Errors
    /// When they do not fit together.
    fn parts(&self) -> Result<Parts>;

    /// The keys of the config.json that transformers reads as the same model, without a dtype.
    ///
    /// # Errors
    /// When the configuration is not valid.
    fn json(&self) -> Result<Map<String, Value>>;

    /// The keys of the `[model]` table that reads as this configuration.
    ///
    /// # Errors
    /// For a number that JSON does not have.
    fn table(&self) -> Result<Map<String, Value>>;

    /// The [mapping](meshgrad_ckpt::mapping) between parameters and the tensors of a Hugging Face folder, which may
    /// store tied embeddings `twice`.
    ///
    /// # Errors
    /// When it cannot be parsed.
    fn mapping(&self, experts: Experts, twice: bool) -> Result<Mapping>;

    /// Patterns of tensors that its folders may have and that do not change what the model computes.
    fn without_effect(&self) -> Vec<String> {
        Vec::new()
    }

    /// The number of tokens.
    fn vocab_size(&self) -> usize;

    /// The keys of sizes that are 0, but must be at least 1.
    fn zero_sizes(&self) -> Vec<&'static str>;

    /// The weight of the load-balancing loss, and whether transformers adds it to the loss.
    fn auxiliary_loss(&self) -> (f64, bool) {
        (0.0, false)
    }

    /// A shared copy.
    fn shared(&self) -> Arc<dyn FamilyConfig>;
}

/// The text of the config.json of a folder whose tensors are f32.
///
/// # Errors
/// As [`FamilyConfig::json`].
pub(crate) fn json_of_f32(config: &dyn FamilyConfig) -> Result<String> {
    let mut keys = config.json()?;
    keys.insert("dtype".into(), "float32".into());
    json::written(&keys)
}
