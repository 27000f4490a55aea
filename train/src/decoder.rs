//! Training runs of a decoder, configured by `[model]` and `[balancing]`.

pub mod tables;
mod weights;

use std::sync::Arc;

use meshgrad_autograd::Module;
use meshgrad_ckpt::Committed;
use meshgrad_error::error;
use meshgrad_models::families::FamilyConfig;
use meshgrad_models::moe::Dispatch;
use meshgrad_models::{Balancing, Decoder, hf};
use meshgrad_runtime::Device;
use toml::Value;

use crate::config::{CapacityChoice, Config, DispatchChoice, TokenizerChoice};
use crate::generate::check_vocabulary;
use crate::session::{Session, Summary};
use crate::tokenizer::Tokenizer;
use crate::{Result, checkpoint, memory};
pub use tables::{BalancingConfig, ModelTable, Tables};
use weights::{fill, model_folder};
pub use weights::{load, load_checkpoint};

/// Trains the decoder of `[model]`. The configuration must have been read with [`Tables`].
///
/// # Errors
/// As [`Session::train`] and [`model_config`].
pub fn train(session: Session<'_>) -> Result<Summary> {
    train_with(session, |_| Ok(()))
}

/// As [`train`], for a model that `change` changes before it has values, in new and in resumed runs.
/// Parameters that it adds, such as adapters, get their initial values, and all others the weights
/// of `model.from`.
///
/// ```no_run
/// use meshgrad_autograd::Module;
/// use meshgrad_train::decoder;
/// # use meshgrad_train::session::Session;
///
/// # fn train(session: Session<'_>) -> meshgrad_train::Result<()> {
/// decoder::train_with(session, |model| {
///     model.freeze();
///     for projection in model.projections_mut() {
///         projection.add_lora(8, 16.0);
///     }
///     Ok(())
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`train`], and those of `change`.
pub fn train_with(
    session: Session<'_>,
    change: impl FnOnce(&mut Decoder) -> Result<()>,
) -> Result<Summary> {
    let config = session.config;
    // Report errors before the text is read.
    let tables = config.model_tables::<Tables>()?;
    session.train_from(
        sketch(config),
        |data, checkpoint| {
            let mut model = model(config, data.tokenizer.vocab_size(), checkpoint)?;
            change(&mut model)?;
            Ok(model)
        },
        |model, device, notes| {
            if let Some(from) = tables.model.origin() {
                let ignore_unused = tables.model.ignores_unused();
                let verify = config.checkpoint.verify;
                notes.extend(fill(model, from, device, verify, ignore_unused)?);
            }
            // Without a folder, this initializes everything; with one, only router biases that the
            // folder lacks.
            model.materialize_missing(device, config.train.seed)
        },
    )
}

/// Checks, before threads and files exist, that a new run of the decoder of `[model]` fits in the memory
/// that is free when threads of this process train it, one rank on each of `devices`.
///
/// # Errors
/// With [`NotEnoughMemory`](memory::NotEnoughMemory).
pub fn check_threads(config: &Config, devices: &[Device]) -> Result<()> {
    match sketch(config) {
        Some(model) => memory::check_threads(&model, config, devices),
        None => Ok(()),
    }
}

/// The model of a new run, as far as it is known before there is data; `None` if it cannot be
/// built, which the run reports.
fn sketch(config: &Config) -> Option<Decoder> {
    let vocab_size = match &config.data.tokenizer {
        TokenizerChoice::Byte => Tokenizer::byte().vocab_size(),
        // A trained tokenizer may have fewer tokens than its limit.
        TokenizerChoice::Bpe(size) => *size,
        TokenizerChoice::File(path) => Tokenizer::from_file(path).ok()?.vocab_size(),
    };
    model(config, vocab_size, None).ok()
}

/// The decoder of `[model]`, balanced as `[balancing]` says, for a new run or for the state in the
/// checkpoint `from`. It has router biases if `[balancing]` updates them or the checkpoint has
/// them. `vocab_size` is that of the tokenizer.
///
/// # Errors
/// As [`model_config`].
pub fn model(config: &Config, vocab_size: usize, from: Option<&Committed>) -> Result<Decoder> {
    let tables: Tables = config.model_tables()?;
    let balancing = &tables.balancing;
    let shapes = model_config(config, vocab_size)?;
    let mut model = Decoder::new(&*shapes)?.balanced(Balancing {
        auxiliary: shapes.auxiliary_loss().0,
        balance: balancing.balance,
        z: balancing.z_loss_coef,
        bias_update_rate: balancing.bias_update_rate,
    });
    model.dispatch_experts_by(match config.parallel.dispatch {
        DispatchChoice::Auto => Dispatch::Cheapest,
        DispatchChoice::AllGather => Dispatch::AllGather,
        DispatchChoice::AllToAll => Dispatch::AllToAll,
    });
    model.adapt_expert_slots(config.parallel.capacity == CapacityChoice::Auto);
    // A checkpoint has the files that its run started with.
    let verify = config.checkpoint.verify;
    let origin = || {
        let origin = tables.model.origin();
        origin.map(|from| model_folder(from, verify)).transpose()
    };
    let folder = match from {
        Some(checkpoint) => Some(checkpoint.path().to_owned()),
        None => origin()?,
    };
    if let (Some(folder), Some(_)) = (&folder, tables.model.origin()) {
        model = model.with_companions(hf::companions(folder)?);
    }
    // Saved biases are kept if the configuration does not update them.
    let has_biases = folder.is_some_and(|folder| checkpoint::has_buffers(&folder));
    if balancing.bias_update_rate > 0.0 || has_biases {
        model.add_router_biases();
    }
    Ok(model)
}

/// The model configuration in `[model]`. `vocab_size` defaults to the tokenizer's.
///
/// # Errors
/// When `config` was not read with [`Tables`]; for a missing key or invalid sizes; when the tokenizer
/// has more tokens than the model.
pub fn model_config(config: &Config, vocab_size: usize) -> Result<Arc<dyn FamilyConfig>> {
    let Tables { model, .. } = config.model_tables()?;
    let mut table = model.sizes();
    let vocabulary = Value::Integer(vocab_size as i64);
    table.entry("vocab_size").or_insert(vocabulary);
    let model = tables::read(&table).map_err(|problem| error!(Invalid, "[model]: {problem}"))?;
    model.validate()?;
    check_vocabulary(vocab_size, model.vocab_size())?;
    Ok(model)
}
