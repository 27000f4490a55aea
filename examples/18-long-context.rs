//! Sequences over ranks: each of four ranks has a quarter of each sequence. Keys go around two of them, and two divide
//! the heads. A row has three documents, which do not see each other. The losses are those of one rank.
//!
//! `cargo run --example 18-long-context`

use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::prelude::*;

const STEPS: u64 = 5;
const ROWS: usize = 2;
const TOKENS: usize = 64;
/// Where documents start.
const STARTS: [usize; 3] = [0, 23, 41];
const CONFIG: &str = r#"{
    "model_type": "qwen3", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2
}"#;

/// This rank's part of a batch; on one rank, all.
fn batch(device: &Device, step: u64) -> Result<TokenBatch> {
    let part = |value: &dyn Fn(usize) -> i64| {
        let values: Vec<i64> = (0..ROWS * TOKENS).map(value).collect();
        let whole = Tensor::from_slice(device, &[ROWS, TOKENS], &values)?.as_replicated()?;
        let tokens = [("cp", Placement::head_and_tail(1)), ("sp", Placement::shard(1))];
        ops::redistribute(&whole, tokens)
    };
    let id = |at: usize| ((at * at * 7 + at * 3 + step as usize) % 64) as i64;
    let document = |at: usize| STARTS.iter().filter(|start| **start <= at % TOKENS).count() - 1;
    let batch = TokenBatch::new(&part(&id)?, &part(&|at| id(at + 1))?);
    Ok(TokenBatch {
        documents: Some(part(&|at| document(at) as i64)?),
        positions: Some(part(&|at| (at % TOKENS - STARTS[document(at)]) as i64)?),
        ..batch
    })
}

/// The losses of some steps.
fn losses(model: Decoder, device: &Device) -> Result<Vec<f64>> {
    model.materialize(device, 1)?;
    let mut trainer = Trainer::new(model, &Config::default(), device)?;
    let step = |step| Ok(trainer.step(step, [batch(device, step)])?.wait(&trainer.model)?.loss);
    (1..=STEPS).map(step).collect()
}

fn model() -> Result<Decoder> {
    Decoder::new(&Qwen3Config::from_json(CONFIG)?)
}

fn on_rank(rank: &dyn Rank) -> Result<Vec<f64>> {
    let (model, mesh) = (model()?, Mesh::new(&[2, 2], &["cp", "sp"])?);
    Redistributor::new(rank).run_on(&mesh, || {
        let parallelism = ModelParallelism::new(&mesh).context(["cp"])?.ring(true);
        let plan = model.plan(&parallelism.ulysses(["sp"])?)?;
        plan.apply(&model, rank.rank())?;
        let homes = DataParallel::new(rank, &mesh, Strategy::hsdp(["cp"], ["sp"]));
        homes.apply(&model)?;
        losses(model, rank.device())
    })
}

fn main() -> Result<()> {
    let one = losses(model()?, &Device::cpu())?;
    let ranks = ranks::run(4, on_rank)?;
    for (step, (one, ranks)) in one.iter().zip(&ranks[0]).enumerate() {
        println!("step {}: one rank {one:.6}, four ranks {ranks:.6}", step + 1);
        assert!((one - ranks).abs() < 1e-4);
    }
    Ok(())
}
