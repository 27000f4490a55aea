//! A mixture of experts over ranks: each of four ranks has two of eight experts and a part of the batch, and tokens
//! travel to their experts and back. The losses are those of one rank.
//!
//! `cargo run --example 15-experts-over-ranks`

use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::models::moe::Dispatch;
use meshgrad::prelude::*;

const RANKS: usize = 4;
const STEPS: u64 = 5;
const CONFIG: &str = r#"{
    "model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24
}"#;

/// This rank's rows of a batch; on one rank, all.
fn batch(device: &Device, step: u64) -> Result<TokenBatch> {
    let id = |at: u64| ((at * at * 7 + at * 3 + step) % 64) as i64;
    let rows = |shift: u64| {
        let ids: Vec<i64> = (0..8 * 16).map(|at| id(at + shift)).collect();
        let whole = Tensor::from_slice(device, &[8, 16], &ids)?.as_replicated()?;
        ops::redistribute(&whole, [("dp", Placement::shard(0))])
    };
    Ok(TokenBatch::new(&rows(0)?, &rows(1)?))
}

/// The losses of some steps.
fn losses(model: Decoder, device: &Device) -> Result<Vec<f64>> {
    model.materialize(device, 1)?;
    let mut trainer = Trainer::new(model, &Config::default(), device)?;
    let step = |step| Ok(trainer.step(step, [batch(device, step)])?.wait(&trainer.model)?.loss);
    (1..=STEPS).map(step).collect()
}

fn on_rank(rank: &dyn Rank) -> Result<Vec<f64>> {
    let mut model = Decoder::new(&Qwen3Config::from_json(CONFIG)?)?;
    model.dispatch_experts_by(Dispatch::AllToAll);
    // The same ranks twice: for experts, and for all else, which is sharded over the ranks.
    let (mesh, experts) = (Mesh::new(&[RANKS], &["dp"])?, Mesh::new(&[RANKS], &["ep"])?);
    let none: [&str; 0] = [];
    Redistributor::new(rank).run_on(&mesh, || {
        let parallelism = ModelParallelism::new(&mesh).experts(&experts, ["ep"], none)?;
        model.plan(&parallelism)?.apply(&model, rank.rank())?;
        let homes = DataParallel::new(rank, &mesh, Strategy::fsdp(["dp"]));
        homes.mesh(&experts, none, none).apply(&model)?;
        let held = model.sparse_blocks().next().map(|moe| moe.down_proj.sharded_shape());
        println!("rank {}: down_proj {:?}", rank.rank(), held.map(|shape| shape.local().to_vec()));
        losses(model, rank.device())
    })
}

fn main() -> Result<()> {
    let one = losses(Decoder::new(&Qwen3Config::from_json(CONFIG)?)?, &Device::cpu())?;
    let ranks = ranks::run(RANKS, on_rank)?;
    for (step, (one, ranks)) in one.iter().zip(&ranks[0]).enumerate() {
        println!("step {}: one rank {one:.6}, {RANKS} ranks {ranks:.6}", step + 1);
        assert!((one - ranks).abs() < 1e-4);
    }
    Ok(())
}
