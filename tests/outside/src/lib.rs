//! A language model with its own configuration tables and its own optimizer. meshgrad knows neither
//! the model nor the optimizer.

pub mod activation;
pub mod model;
pub mod optimizer;

use std::path::Path;

use meshgrad::ckpt::Committed;
use meshgrad::prelude::*;
use meshgrad::train::config::{Config, Override};
use meshgrad::train::events::Event;
use meshgrad::train::generate::sample;
use meshgrad::train::session::{Session, Summary};
use meshgrad::train::tokenizer::Tokenizer;
use meshgrad::train::{self, checkpoint};

use model::{Bigram, Tables};
use optimizer::Adagrad;

const CONFIG: &str = r#"
    train = { steps = 12, batch_size = 4, micro_batch_size = 2, seq_len = 16 }
    data = { paths = ["TEXT"], tokenizer = "byte" }
    checkpoint = { every = 4, keep = 0 }
    sample = { every = 6, tokens = 12, prompt = "pub fn " }
    log = { val_every = 6, val_batches = 2 }
    optimizer = { learning_rate = 0.1 }
    model = { width = 32 }
"#;

/// Trains in `run_dir` on `device` with the overrides `sets`. `on_event` is called at every event.
pub fn train(
    device: &Device,
    run_dir: &Path,
    sets: &[&str],
    mut on_event: impl FnMut(Event<'_>) + Send + 'static,
) -> train::Result<Summary> {
    let text = CONFIG.replace("TEXT", concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
    let sets = sets.iter().map(|set| set.parse());
    let sets: Vec<Override> = sets.collect::<Result<_, _>>()?;
    let config = Config::parse::<Tables>(&text, "the configuration", &sets)?;
    let tables: Tables = config.model_tables()?;
    Session::new(&config, device)
        .run_dir(run_dir)
        .optimizer(Adagrad::new)
        .schedule(|step: u64| 1.0 / (1.0 + 0.1 * step as f64))
        .subscribe("caller", move |event| {
            on_event(event);
            Ok(())
        })
        .train(|data, _| Ok(Bigram::new(data.tokenizer.vocab_size(), &tables)))
}

/// The text that the model of a checkpoint generates with `seed`.
pub fn sampled(device: &Device, checkpoint: &Path, seed: u64) -> train::Result<String> {
    let saved = Committed::open(checkpoint)?;
    let config = Config::read::<Tables>(Some(&checkpoint.join("trainer/config.toml")), &[])?;
    let tokenizer = Tokenizer::from_file(&checkpoint.join("tokenizer.json"))?;
    let model = Bigram::new(tokenizer.vocab_size(), &config.model_tables()?);
    checkpoint::load_model(&saved, &model, device)?;
    sample(&model, &tokenizer, &config.sample, seed, DType::F32, device)
}
