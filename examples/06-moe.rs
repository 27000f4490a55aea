//! Trains a mixture of experts with a custom loop, which is made of the parts of `meshgrad train`
//! and computes the same bits.
//!
//! `cargo run --release --example 06-moe -- CONFIG.toml RUN_DIR`

use std::path::Path;

use meshgrad::ckpt::ranks::{Ranks, ShardedSnapshot};
use meshgrad::prelude::*;
use meshgrad::train::batches::TokenBatches;
use meshgrad::train::checkpoint;
use meshgrad::train::data::Data;
use meshgrad::train::decoder;
use meshgrad::train::run_folder::RunFolder;

const SMALL: &str = r#"
    train = { steps = 20, batch_size = 4, micro_batch_size = 2, seq_len = 64 }
    data = { paths = ["examples"], tokenizer = "byte" }
    [model]
    model_type = "qwen3_moe"
    hidden_size = 64
    num_hidden_layers = 2
    num_attention_heads = 4
    num_experts = 4
    num_experts_per_tok = 2
    moe_intermediate_size = 64
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let config = match arguments.first() {
        Some(file) => Config::read::<decoder::Tables>(Some(Path::new(file)), &[])?,
        None => Config::parse::<decoder::Tables>(SMALL, "the embedded configuration", &[])?,
    };
    let run = RunFolder::open(Path::new(arguments.get(1).map_or("runs/06-moe", String::as_str)))?;

    run.set_aside_after(0)?; // moves the files of an earlier run aside

    let device = Device::cpu();
    let data = Data::prepare(&config.data, &run)?;
    let tokens = data.tokens.training();
    let Config { train, .. } = &config;
    let order = data.order(train.seq_len, train.batch_size, train.seed)?;

    let model = decoder::model(&config, data.tokenizer.vocab_size(), None)?;
    model.materialize(&device, config.train.seed)?;
    let mut trainer = Trainer::new(model, &config, &device)?;
    let batches = TokenBatches::new(tokens, &device);
    let (rows, at_a_time) = (config.train.batch_size, config.train.micro_batch_size);
    for step in 1..=config.train.steps {
        let microbatches = batches.of_step(&order, step, rows, at_a_time);
        let record = trainer.step(step, microbatches)?.wait(&trainer.model)?;
        if step == 1 || step % 10 == 0 {
            let shares = record.expert_shares;
            println!("step {step}  loss {:.4}  experts {shares:.2?}", record.loss);
        }
    }

    let (step, seed) = (config.train.steps, config.train.seed);
    let data_digest = format!("{:032x}", data.texts.digest);
    let packing_digest = order.packing_digest();
    let state = checkpoint::RunState { step, seed, data_digest, packing_digest };
    let saved = checkpoint::SavedRun {
        config: &config,
        model: &trainer.model,
        optimizer: &trainer.optimizer,
        tokenizer: &data.tokenizer,
        state: &state,
        has_buffers: !trainer.model.buffers().is_empty(),
    };
    let snapshot = checkpoint::snapshot(run.path(), &saved);
    let saved = ShardedSnapshot::save(snapshot, &mut Ranks::alone())?;
    println!("saved {}", saved.committed.path().display());
    Ok(())
}
