//! Runs of Qwen3, which `[model]` and `[balancing]` configure.

use std::path::Path;

use meshgrad_ckpt::Committed;
use meshgrad_models::config::Qwen3Config;
use meshgrad_models::hf::Loader;
use meshgrad_models::{Balancing, Qwen3, folder};
use meshgrad_runtime::Device;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::config::{Config, ModelTables, Violation};
use crate::session::{Session, Summary};
use crate::{Result, TrainError, checkpoint};

/// The tables of a Qwen3. By default, it is a Qwen3-MoE of about 9 million parameters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tables {
    /// Sizes.
    pub model: ModelTable,
    /// Balancing of experts, in addition to `model.router_aux_loss_coef`.
    pub balancing: BalancingConfig,
}

/// `[model]`: keys of [`Qwen3Config`], which are those of Hugging Face's `config.json`, with values
/// of their types. Keys may be missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Table", into = "Table")]
pub struct ModelTable(Table);

/// `[balancing]`: balancing of experts. The weight of the load-balancing loss is the model's
/// `router_aux_loss_coef`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalancingConfig {
    /// The amount by which each step raises the router biases of experts with few tokens and lowers
    /// the others (Wang et al. 2024, who use 0.001). 0 freezes existing biases and adds none.
    pub bias_update_rate: f64,
    /// Weight of the router z-loss (Zoph et al. 2022, who use 0.001); 0 disables it.
    pub z_loss_coef: f64,
}

impl ModelTables for Tables {
    /// Another `model_type` than the default has other keys, so `[model]` then starts empty.
    fn defaults(given: &Table) -> Tables {
        let mut tables = Tables::default();
        let model_type = |model: &Table| model.get("model_type").cloned();
        let given = given.get("model").and_then(Value::as_table);
        let given = given.and_then(model_type);
        if given.is_some() && given != model_type(&tables.model.0) {
            tables.model.0.clear();
        }
        tables
    }

    fn violations(&self) -> Vec<Violation> {
        let balancing = &self.balancing;
        let numbers = [
            ("balancing.bias_update_rate", balancing.bias_update_rate),
            ("balancing.z_loss_coef", balancing.z_loss_coef),
        ];
        let invalid = |value: f64| !(value.is_finite() && value >= 0.0);
        let invalid = numbers.into_iter().filter(|(_, value)| invalid(*value));
        let violation = |(key, value): (&str, f64)| Violation {
            key: key.to_owned(),
            problem: format!("{value} is not a finite number of at least 0"),
        };
        invalid.map(violation).collect()
    }
}

impl Default for ModelTable {
    /// 4 layers of 256 features, 8 experts, 2 per token.
    fn default() -> ModelTable {
        ModelTable(toml::toml! {
            model_type = "qwen3_moe"
            hidden_size = 256
            num_hidden_layers = 4
            num_attention_heads = 8
            num_key_value_heads = 4
            head_dim = 32
            num_experts = 8
            num_experts_per_tok = 2
            moe_intermediate_size = 256
            norm_topk_prob = true
            router_aux_loss_coef = 0.01
            rope_theta = 10000.0
            rms_norm_eps = 1e-6
            tie_word_embeddings = false
        })
    }
}

impl TryFrom<Table> for ModelTable {
    type Error = String;

    /// Keeps the keys of `written`, with values in the types of [`Qwen3Config`].
    fn try_from(mut written: Table) -> Result<ModelTable, String> {
        let mut complete = toml::toml! {
            model_type = "qwen3"
            vocab_size = 1
            hidden_size = 1
            num_hidden_layers = 1
            num_attention_heads = 1
        };
        complete.extend(written.clone());
        let config: Result<Qwen3Config, toml::de::Error> = complete.try_into();
        let config = config.map_err(|error| error.message().to_owned())?;
        let typed = Table::try_from(&config).map_err(|error| error.to_string())?;
        for (key, value) in &mut written {
            if let Some(typed) = typed.get(key) {
                *value = typed.clone();
            }
        }
        Ok(ModelTable(written))
    }
}

impl From<ModelTable> for Table {
    fn from(model: ModelTable) -> Table {
        model.0
    }
}

/// Trains the Qwen3 of `[model]`, of a configuration that was read with [`Tables`].
///
/// # Errors
/// As [`Session::train`] and [`model_config`].
pub fn train(session: Session<'_>) -> Result<Summary> {
    let config = session.config;
    // An error before the text is read.
    config.model_tables::<Tables>()?;
    session.train(|data, from| model(config, data.tokenizer.vocab_size(), from))
}

/// Loads the Qwen3 of a checkpoint or of a Hugging Face folder, with the low-rank updates and the
/// router biases that it has. The weights are those that training continues from;
/// [`checkpoint::load_averages`] replaces them.
///
/// `progress` is called with the bytes read so far and the total.
///
/// # Errors
/// As [`Loader::load`]; when the router biases cannot be read.
pub fn load(folder: &Path, device: &Device, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Qwen3> {
    let mut model = Loader::new(folder).progress(progress).load(device)?.model;
    if checkpoint::has_buffers(folder) {
        model.add_router_biases();
    }
    checkpoint::load_buffers(folder, &model, device)?;
    Ok(model)
}

/// The Qwen3 of `[model]`, balanced as `[balancing]` says, for a new run or for the state in the
/// checkpoint `from`. It has router biases if `[balancing]` updates them or the checkpoint has them.
/// `vocab_size` is that of the tokenizer.
///
/// # Errors
/// As [`model_config`].
pub fn model(config: &Config, vocab_size: usize, from: Option<&Committed>) -> Result<Qwen3> {
    let Tables { balancing, .. } = config.model_tables()?;
    let shapes = model_config(config, vocab_size)?;
    let mut model = Qwen3::new(&shapes)?.balanced(Balancing {
        auxiliary: shapes.router_aux_loss_coef,
        z: balancing.z_loss_coef,
        bias_update_rate: balancing.bias_update_rate,
    });
    // Saved biases are kept if the configuration no longer updates them.
    let has_biases = from.is_some_and(|from| checkpoint::has_buffers(from.path()));
    if balancing.bias_update_rate > 0.0 || has_biases {
        model.add_router_biases();
    }
    Ok(model)
}

/// The model configuration in `[model]`. `vocab_size` defaults to the tokenizer's.
///
/// # Errors
/// [`ConfigError::Tables`](crate::config::ConfigError::Tables) when `config` was not read with
/// [`Tables`]; [`TrainError::ModelTable`] for a missing key; [`TrainError::Folder`] for invalid
/// sizes; [`TrainError::Vocabulary`].
pub fn model_config(config: &Config, vocab_size: usize) -> Result<Qwen3Config> {
    let Tables { model, .. } = config.model_tables()?;
    let mut table = model.0;
    let vocabulary = Value::Integer(vocab_size as i64);
    table.entry("vocab_size").or_insert(vocabulary);
    let model: Qwen3Config =
        table
            .try_into()
            .map_err(|error: toml::de::Error| TrainError::ModelTable {
                message: error.message().into(),
            })?;
    model.validate().map_err(folder::Error::from)?;
    if model.vocab_size < vocab_size {
        return Err(TrainError::Vocabulary {
            tokenizer: vocab_size,
            model: model.vocab_size,
        });
    }
    Ok(model)
}
