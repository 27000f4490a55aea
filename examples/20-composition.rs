//! Three layers of one model, each on four ranks in its own way: one is replicated, one fully sharded, and of one each
//! rank has two of eight experts. The losses are those of one rank: `cargo run --example 20-composition`

use meshgrad::models::{families::qwen3::Qwen3Config, moe::Moe};
use meshgrad::prelude::*;
use meshgrad::runtime::{Key, ops::normal};
use meshgrad::train::decoder::Tables;

const MOE: &str = r#"{"model_type": "qwen3_moe", "vocab_size": 1, "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}"#;

#[derive(Module)]
struct Mixed(Linear, Linear, Moe);

impl Model for Mixed {
    type Batch = Var;
    type Stream = ();

    fn loss(&self, x: &Var, _: Compute) -> Result<Loss> {
        let hidden = self.1.forward(&ops::silu(&self.0.forward(x)?)?)?;
        let error = (&(&hidden + &self.2.forward(&hidden)?.0)? + x)?;
        let weight = ops::full(x.value().device(), &[], DType::F32, 32.0)?;
        Ok(Loss::new(ops::sum(&(&error * &error)?, &[0, 1])?, weight))
    }
}

fn divide(model: &Mixed, rank: &dyn Rank, mesh: &Mesh) -> Result<()> {
    let (experts, at) = (Mesh::new(&[4], &["ep"])?, [("ep", Placement::shard(0))]);
    ModelPlan::new(mesh).place_on(&experts, "moe.experts.*_proj", at).apply(model, rank.rank())?;
    DataParallel::new(rank, mesh, Strategy::replicate(["dp"])) // the first layer and the router
        .unit("second", Strategy::fsdp(["dp"]))
        .mesh(&experts, [""; 0], [""; 0]) // neither divided further nor copied
        .apply(model)
}

fn losses(device: &Device, divide: impl FnOnce(&Mixed) -> Result<()>) -> Result<Vec<f64>> {
    let [first, second] = ["first", "second"].map(|name| Linear::new(name, 16, 16));
    let model = Mixed(first, second, Qwen3Config::from_json(MOE)?.moe(&"moe".into()));
    divide(&model)?;
    model.materialize(device, 1)?;
    let x = normal(device, &[32, 16], DType::F32, Key::new(1), 0.0, 1.0)?.as_replicated()?;
    let x = Var::constant(ops::redistribute(&x, [("dp", Placement::shard(0))])?);
    let config = Config::parse::<Tables>("optimizer.learning_rate = 0.5", "main", &[])?;
    let mut trainer = Trainer::new(model, &config, device)?;
    let step = |step| Ok(trainer.step(step, [Ok(x.clone())])?.wait(&trainer.model)?.loss);
    (1..=3).map(step).collect()
}

fn main() -> Result<()> {
    let (one, dp) = (losses(&Device::cpu(), |_| Ok(()))?, Mesh::new(&[4], &["dp"])?);
    let ranks = ranks::run(4, |rank| {
        Redistributor::new(rank).run_on(&dp, || losses(rank.device(), |it| divide(it, rank, &dp)))
    })?;
    println!("losses of one rank {one:.4?}, of each of four {:.4?}", ranks[0]);
    assert!(one.iter().zip(&ranks[0]).all(|(one, ranks)| (one - ranks).abs() < 1e-4));
    Ok(())
}
