//! Runs of Qwen3, which `[model]` and `[balancing]` configure.

use meshgrad_models::config::Qwen3Config;
use meshgrad_models::{Balancing, Qwen3, folder};

use crate::config::Config;
use crate::session::{Session, Summary};
use crate::{Result, TrainError, checkpoint};

/// Trains the Qwen3 of `[model]`.
///
/// # Errors
/// As [`Session::train`] and [`model_config`].
pub fn train(session: Session<'_>) -> Result<Summary> {
    let config = session.config;
    session.train(|data, from| {
        let mut model = model(config, data.tokenizer.vocab_size())?;
        // Saved biases are kept if the configuration no longer updates them.
        if from.is_some_and(|from| checkpoint::has_buffers(from.path())) {
            model.add_router_biases();
        }
        Ok(model)
    })
}

/// The Qwen3 of `config.model`, balanced as `config.balancing` says, with router biases if that
/// updates them. `vocab_size` is that of the tokenizer.
///
/// # Errors
/// As [`model_config`].
pub fn model(config: &Config, vocab_size: usize) -> Result<Qwen3> {
    let shapes = model_config(config, vocab_size)?;
    let mut model = Qwen3::new(&shapes)?.balanced(Balancing {
        auxiliary: shapes.router_aux_loss_coef,
        z: config.balancing.z_loss_coef,
        bias_update_rate: config.balancing.bias_update_rate,
    });
    if config.balancing.bias_update_rate > 0.0 {
        model.add_router_biases();
    }
    Ok(model)
}

/// The model configuration in `[model]`. `vocab_size` defaults to the tokenizer's.
///
/// # Errors
/// [`TrainError::ModelTable`] for an unknown key, a wrong type or invalid sizes.
pub fn model_config(config: &Config, vocab_size: usize) -> Result<Qwen3Config> {
    let mut table = config.model.clone();
    let vocabulary = toml::Value::Integer(vocab_size as i64);
    table.entry("vocab_size").or_insert(vocabulary);
    let model: Qwen3Config =
        toml::Value::Table(table)
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
