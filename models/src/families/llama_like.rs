//! Families with the layers of Llama: attention and a feed-forward block, each after a norm.

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

pub use self::keys::LlamaKeys;
use super::{Family, FamilyConfig};
use crate::attention::{Attention, Rotary};
use crate::config::checks::{self, Size};
use crate::config::{Problems, json};
use crate::hf::map::{Experts, mapping};
use crate::layer::{FeedForward, Layer};
use crate::parts::{Ends, Parts};

/// The configuration of such a family: [`LlamaKeys`] and keys of its own.
pub trait LlamaLike:
    Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static
{
    /// `model_type`.
    const MODEL_TYPE: &'static str;
    /// The class that transformers instantiates.
    const ARCHITECTURE: &'static str;
    /// The keys besides [`LlamaKeys::KEYS`].
    const KEYS: &'static [&'static str];

    /// The base of the rotary frequencies that no key sets.
    const THETA: f64 = 10_000.0;

    /// Hugging Face's defaults, at least of the keys that must be given otherwise.
    fn defaults() -> Value;

    /// Defaults that also hold in a `[model]` table, of which there are none beside those of [`LlamaKeys`].
    fn table_defaults() -> Value {
        Value::Null
    }

    /// Gives keys the names that the configuration has.
    ///
    /// # Errors
    /// When two spellings of a key disagree.
    fn rename(_keys: &mut Map<String, Value>) -> Result<()> {
        Ok(())
    }

    /// Gives `keys`, which have the names of the configuration, those of config.json.
    fn rename_back(&self, _keys: &mut Map<String, Value>) {}

    /// With what follows from its own keys.
    fn completed(self) -> Self {
        self
    }

    /// The common keys.
    fn keys(&self) -> &LlamaKeys;

    /// With these common keys.
    fn with_keys(self, keys: LlamaKeys) -> Self;

    /// The problems of its own keys.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Its own sizes that must be at least 1.
    fn sizes(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }

    /// The attention of layer `number`, at the path `at`.
    fn attention(&self, at: &ModulePath, number: usize) -> Attention;

    /// The feed-forward block of layer `number`, at the path `at`: a gated MLP.
    fn feed_forward(&self, at: &ModulePath, _number: usize) -> FeedForward {
        FeedForward::Dense(self.keys().mlp(at))
    }

    /// Layer `number`, at the path `at`: with norms before its blocks.
    fn layer(&self, at: &ModulePath, number: usize) -> Layer {
        let attention = self.attention(&at.sub("self_attn"), number);
        self.keys().layer(at, attention, self.feed_forward(&at.sub("mlp"), number))
    }

    /// The ends of the model at the path `at`.
    fn ends(&self, at: &ModulePath) -> Ends {
        self.keys().ends(at)
    }

    /// The rotations that layers name: one.
    ///
    /// # Errors
    /// When the settings are not valid.
    fn rotations(&self) -> Result<Vec<Rotary>> {
        Ok(vec![Rotary::new(&self.keys().rope()?, self.keys().head_dim())])
    }

    /// As [`FamilyConfig::mapping`], for embeddings that may be stored twice. The names are those of Llama, and for
    /// experts of Qwen3.
    ///
    /// # Errors
    /// When it cannot be parsed.
    fn tensors(&self, experts: Experts, twice: bool) -> Result<Mapping> {
        mapping(experts, twice)
    }

    /// As [`FamilyConfig::without_effect`].
    fn unused(&self) -> Vec<String> {
        Vec::new()
    }

    /// As [`FamilyConfig::auxiliary_loss`].
    fn auxiliary(&self) -> (f64, bool) {
        (0.0, false)
    }
}

/// The family of a configuration.
pub struct LlamaLikeFamily<C>(PhantomData<fn() -> C>);

impl<C> LlamaLikeFamily<C> {
    /// The family, to be [registered](super::register).
    pub const FAMILY: LlamaLikeFamily<C> = LlamaLikeFamily(PhantomData);
}

fn known<C: LlamaLike>() -> Vec<&'static str> {
    LlamaKeys::KEYS.iter().chain(C::KEYS).copied().collect()
}

impl<C: LlamaLike> Family for LlamaLikeFamily<C> {
    fn model_types(&self) -> &'static [&'static str] {
        const { &[C::MODEL_TYPE] }
    }

    fn read_json(&self, mut keys: Map<String, Value>) -> Result<Arc<dyn FamilyConfig>> {
        C::rename(&mut keys)?;
        let config: C = json::settings(&known::<C>(), C::defaults(), keys)?;
        let config = with_theta(config).completed();
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
        let mut settings = match C::table_defaults() {
            Value::Object(defaults) => defaults,
            _ => Map::new(),
        };
        settings.extend(keys);
        Ok(Arc::new(with_theta(serde_json::from_value::<C>(settings.into())?).completed()))
    }
}

/// With the family's base of the rotary frequencies, if no key sets one.
fn with_theta<C: LlamaLike>(config: C) -> C {
    let keys = config.keys();
    let inner = [&keys.rope_parameters, &keys.rope_scaling];
    let is_set = inner.iter().any(|it| it.as_ref().is_some_and(|it| it.rope_theta.is_some()));
    if is_set || keys.rope_theta.is_some() {
        return config;
    }
    let keys = LlamaKeys { rope_theta: Some(C::THETA), ..keys.clone() };
    config.with_keys(keys)
}

fn sizes(config: &impl LlamaLike) -> Vec<Size> {
    let own = config.sizes().into_iter().map(|(key, value)| (key, value, true));
    config.keys().sizes().into_iter().chain(own).collect()
}

fn problems(config: &impl LlamaLike) -> Problems {
    let mut problems = Vec::new();
    checks::check_sizes(&sizes(config), &mut problems);
    Problems([problems, config.keys().problems(), config.problems()].concat())
}

impl<C: LlamaLike> FamilyConfig for C {
    fn model_type(&self) -> &'static str {
        C::MODEL_TYPE
    }

    fn validate(&self) -> Result<()> {
        problems(self).check(Kind::Invalid)
    }

    fn parts(&self) -> Result<Parts> {
        let at = ModulePath::from("model");
        let layer = |number| self.layer(&at.sub("layers").index(number), number);
        let layers = (0..self.keys().num_hidden_layers).map(layer).collect();
        Ok(Parts::new(&at, self.ends(&at), layers, self.rotations()?))
    }

    fn json(&self) -> Result<Map<String, Value>> {
        FamilyConfig::validate(self)?;
        let resolved = self.clone().with_keys(self.keys().resolved()?);
        let mut keys = json::keys_to_write(&resolved, C::ARCHITECTURE)?;
        // Without a key, transformers has its default.
        if let Value::Object(defaults) = C::defaults() {
            for key in defaults.keys().filter(|key| *key != "model_type") {
                keys.entry(key).or_insert(Value::Null);
            }
        }
        self.rename_back(&mut keys);
        Ok(keys)
    }

    fn table(&self) -> Result<Map<String, Value>> {
        let mut keys = json::table(self)?;
        keys.retain(|_, value| !value.is_null());
        Ok(keys)
    }

    fn mapping(&self, experts: Experts, twice: bool) -> Result<Mapping> {
        self.tensors(experts, twice && self.keys().tie_word_embeddings)
    }

    fn without_effect(&self) -> Vec<String> {
        self.unused()
    }

    fn vocab_size(&self) -> usize {
        self.keys().vocab_size
    }

    fn zero_sizes(&self) -> Vec<&'static str> {
        checks::zero_sizes(&sizes(self))
    }

    fn auxiliary_loss(&self) -> (f64, bool) {
        self.auxiliary()
    }

    fn shared(&self) -> Arc<dyn FamilyConfig> {
        Arc::new(self.clone())
    }
}
