//! Training runs of a decoder, configured by `[model]`, `[balancing]` and `[adapter]`.

pub mod tables;
mod weights;

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use meshgrad_autograd::Module;
use meshgrad_ckpt::Committed;
use meshgrad_error::{bail, ensure, error};
use meshgrad_models::families::FamilyConfig;
use meshgrad_models::moe::Dispatch;
use meshgrad_models::{Balancing, Decoder, Model, hf};
use meshgrad_runtime::Device;
use toml::Value;

use crate::config::{CapacityChoice, Config, DispatchChoice, TokenizerChoice};
use crate::configured::dtype;
use crate::generate::check_vocabulary;
use crate::session::{Session, Summary};
use crate::tokenizer::Tokenizer;
use crate::{Result, checkpoint, memory};
pub use tables::{AdapterConfig, BalancingConfig, ModelTable, Tables};
use weights::{fill, fill_adapter, model_folder};
pub use weights::{load, load_checkpoint};

/// Trains the decoder of `[model]`. The configuration must have been read with [`Tables`].
///
/// # Errors
/// As [`Session::train`] and [`model_config`].
pub fn train(session: Session<'_>) -> Result<Summary> {
    train_with(session, |_| Ok(()))
}

/// As [`train`], for a model that `change` changes before it has values, in new and in resumed runs.
/// Parameters that it adds get their initial values, and all others the weights of `model.from`.
///
/// ```no_run
/// use meshgrad_autograd::Module;
/// use meshgrad_train::decoder;
/// # use meshgrad_train::session::Session;
///
/// # fn train(session: Session<'_>) -> meshgrad_train::Result<()> {
/// decoder::train_with(session, |model| {
///     // Train the norms only.
///     let is_norm = |name: &str| name.ends_with("norm.weight");
///     model.params().iter().filter(|param| !is_norm(param.name())).for_each(|param| param.freeze());
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
    let is_new = Cell::new(true);
    session.train_from(
        sketch(config),
        |data, checkpoint| {
            is_new.set(checkpoint.is_none());
            let mut model = model(config, data.tokenizer.vocab_size(), checkpoint)?;
            change(&mut model)?;
            hf::stored_parts(&model)?; // Fail before a step.
            Ok(model)
        },
        |model, device, notes| {
            if let Some(from) = tables.model.origin() {
                let ignore_unused = tables.model.ignores_unused();
                let verify = config.checkpoint.verify;
                let base = model.adapter().and_then(|adapter| adapter.base.as_deref());
                let from = base.map_or(from, Path::new);
                notes.extend(fill(model, from, device, verify, ignore_unused)?);
            }
            if let (Some(from), true) = (&tables.adapter.from, is_new.get()) {
                fill_adapter(model, from, device)?;
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
    add_adapter(&mut model, &tables, config, from)?;
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

/// Adds the adapter of `[adapter]`. The other parameters are stored in `train.dtype`.
fn add_adapter(
    model: &mut Decoder,
    tables: &Tables,
    config: &Config,
    checkpoint: Option<&Committed>,
) -> Result<()> {
    let base = tables.model.origin().map(|from| model_folder(from, config.checkpoint.verify));
    let Some(lora) = tables.adapter.lora(base.transpose()?.as_deref()) else {
        return Ok(());
    };
    let base = Path::new(lora.base.as_deref().unwrap_or_default());
    ensure!(
        hf::read_adapter(base)?.is_none() && !checkpoint::has_averages(base),
        Unsupported,
        "model.from = {} has an adapter or averages of its weights; an adapter updates the weights of a plain \
         folder: merge or export them first (meshgrad ckpt merge, meshgrad ckpt export)",
        base.display()
    );
    // The folder may have been moved, but not replaced by another one.
    let saved = checkpoint.map(|it| hf::read_adapter(it.path())).transpose()?.flatten();
    if let Some(saved) = saved.and_then(|saved| saved.base)
        && Path::new(&saved) != base
        && Path::new(&saved).exists()
    {
        bail!(
            Invalid,
            "the run trains an adapter of {saved}, but model.from is now {}; change it back",
            base.display()
        );
    }
    model.add_adapter(&lora)?;
    model.store_frozen_as(dtype(config.train.dtype))
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
