//! What dense families with the names of Llama have in common.

mod keys;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use meshgrad_autograd::{ModulePath, Result};
use meshgrad_ckpt::mapping::Mapping;
use meshgrad_error::Kind;
use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::{Map, Value};

pub use self::keys::DenseKeys;
use super::{Family, FamilyConfig};
use crate::attention::Attention;
use crate::config::{Problems, checks, json};
use crate::hf::map::Experts;
use crate::hf::map::mapping;
use crate::parts::Parts;

/// The configuration of a dense family: [`DenseKeys`] and keys of its own.
pub trait DenseConfig:
    Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static
{
    /// `model_type`.
    const MODEL_TYPE: &'static str;
    /// The class that transformers instantiates.
    const ARCHITECTURE: &'static str;
    /// The keys besides [`DenseKeys::KEYS`].
    const KEYS: &'static [&'static str];

    /// Hugging Face's defaults.
    fn defaults() -> Value;

    /// The common keys.
    fn keys(&self) -> &DenseKeys;

    /// With these common keys.
    fn with_keys(self, keys: DenseKeys) -> Self;

    /// The problems of its own keys.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// The attention of layer `number`, at the path `at`.
    fn attention(&self, at: &ModulePath, number: usize) -> Attention;
}

/// The family of a configuration.
pub struct Dense<C>(PhantomData<fn() -> C>);

impl<C> Dense<C> {
    /// For the list of [`FAMILIES`](super::FAMILIES).
    pub const FAMILY: Dense<C> = Dense(PhantomData);
}

fn known<C: DenseConfig>() -> Vec<&'static str> {
    DenseKeys::KEYS.iter().chain(C::KEYS).copied().collect()
}

impl<C: DenseConfig> Family for Dense<C> {
    fn model_types(&self) -> &'static [&'static str] {
        const { &[C::MODEL_TYPE] }
    }

    fn read_json(&self, keys: Map<String, Value>) -> Result<Arc<dyn FamilyConfig>> {
        let config: C = json::settings(&known::<C>(), C::defaults(), keys)?;
        problems(&config).check(Kind::Malformed)?;
        Ok(Arc::new(config))
    }

    fn read_table(
        &self,
        keys: Map<String, Value>,
    ) -> Result<Arc<dyn FamilyConfig>, serde_json::Error> {
        let known = known::<C>();
        if let Some(unknown) = keys.keys().find(|key| !known.contains(&key.as_str())) {
            let known: Vec<String> = known.iter().map(|key| format!("`{key}`")).collect();
            let known = known.join(", ");
            let problem = format!("unknown field `{unknown}`, expected one of {known}");
            return Err(serde_json::Error::custom(problem));
        }
        Ok(Arc::new(serde_json::from_value::<C>(keys.into())?))
    }
}

fn problems(config: &impl DenseConfig) -> Problems {
    Problems([config.keys().problems(), config.problems()].concat())
}

impl<C: DenseConfig> FamilyConfig for C {
    fn model_type(&self) -> &'static str {
        C::MODEL_TYPE
    }

    fn validate(&self) -> Result<()> {
        problems(self).check(Kind::Invalid)
    }

    fn parts(&self) -> Result<Parts> {
        self.keys().parts(|at, number| self.attention(at, number))
    }

    fn json(&self) -> Result<Map<String, Value>> {
        FamilyConfig::validate(self)?;
        let resolved = self.clone().with_keys(self.keys().resolved()?);
        json::keys_to_write(&resolved, C::ARCHITECTURE)
    }

    fn table(&self) -> Result<Map<String, Value>> {
        let mut keys = json::table(self)?;
        keys.retain(|_, value| !value.is_null());
        Ok(keys)
    }

    fn mapping(&self, experts: Experts, twice: bool) -> Result<Mapping> {
        mapping(experts, twice && self.keys().tie_word_embeddings)
    }

    fn vocab_size(&self) -> usize {
        self.keys().vocab_size
    }

    fn zero_sizes(&self) -> Vec<&'static str> {
        checks::zero_sizes(&self.keys().sizes())
    }

    fn shared(&self) -> Arc<dyn FamilyConfig> {
        Arc::new(self.clone())
    }
}
