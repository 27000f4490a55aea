//! Data-parallel training of a model of your own, from the parts of `meshgrad train`: fully sharded over two ranks, with
//! copies on two more. The same `main` runs as threads and as processes.
//!
//! ```text
//! cargo run --example 14-data-parallel     # four threads; saves to runs/sine, which must not exist
//! meshgrad launch -n 4 -- target/debug/examples/14-data-parallel runs/sine-2
//! ```

use std::path::PathBuf;

use meshgrad::checkpoint_ranks;
use meshgrad::comm::launch::Environment;
use meshgrad::comm::{Local, Rank, Redistributor, World};
use meshgrad::data_parallel::{Home, Homes};
use meshgrad::mesh::{Mesh, Placement, Sharding};
use meshgrad::models::folder;
use meshgrad::models::layers::Linear;
use meshgrad::prelude::*;
use meshgrad::train::config::Config;
use meshgrad::train::trainer::Trainer;

const ROWS: usize = 64;
const STEPS: u64 = 200;

/// Learns y = sin(x).
#[derive(Module)]
struct Sine {
    up: Linear,
    down: Linear,
}

impl Sine {
    fn new() -> Sine {
        let init = Init::Normal { std: 0.5 };
        Sine {
            up: Linear::new("up", 1, 32).bias(true).init(init),
            down: Linear::new("down", 32, 1).bias(true).init(init),
        }
    }
}

impl Model for Sine {
    type Batch = (Var, Var);

    /// The sum of squared errors. Sums add up over ranks; the trainer divides once by the weight.
    fn loss(&self, (x, y): &(Var, Var), _: Compute) -> Result<Loss> {
        let hidden = ops::silu(&self.up.forward(x)?)?;
        let error = (&self.down.forward(&hidden)? - y)?;
        let total = ops::sum(&(&error * &error)?, &[0, 1])?;
        let weight = ops::full(x.value().device(), &[], DType::F32, ROWS as f64)?;
        Ok(Loss::new(total, weight))
    }
}

/// This rank's rows of a batch.
fn batch(
    mesh: &Mesh,
    rank: &dyn Rank,
) -> std::result::Result<(Var, Var), Box<dyn std::error::Error + Send + Sync>> {
    let rows = [("copies", Placement::shard(0)), ("dp", Placement::shard(0))];
    let sharding = Sharding::new(mesh, rows, &[ROWS, 1])?;
    let own = sharding
        .region(rank.rank())
        .expect("the rank is in the mesh");
    let own = own.dims()[0].ranges().iter().cloned().flatten();
    let x: Vec<f32> = own
        .map(|row| row as f32 / ROWS as f32 * 6.0 - 3.0)
        .collect();
    let y: Vec<f32> = x.iter().map(|x| x.sin()).collect();
    let tensor = |values: &[f32]| {
        let local = Tensor::from_slice(rank.device(), &[values.len(), 1], values)?;
        local.with_sharding(&sharding, rank.rank())
    };
    Ok((Var::constant(tensor(&x)?), Var::constant(tensor(&y)?)))
}

fn train(rank: &dyn Rank) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mesh = Mesh::new(&[2, 2], &["copies", "dp"])?;
    Redistributor::new(rank).run_on(&mesh, || {
        let (model, device) = (Sine::new(), rank.device());
        let home = || Home::hsdp(["dp"], ["copies"]);
        Homes::new(rank, &mesh, home())
            .unit("up", home())
            .unit("down", home())
            .settle(&model)?;
        model.materialize(device, 1)?;

        let mut config = Config::default();
        config.optimizer.learning_rate = 0.01;
        let mut trainer = Trainer::new(model, &config, device)?;
        let batch = batch(&mesh, rank)?;
        for step in 1..=STEPS {
            let done = trainer
                .step(step, [Ok(batch.clone())])?
                .wait(&trainer.model)?;
            if rank.rank() == 0 && (step == 1 || step == STEPS) {
                println!("step {step:>3}  loss {:.5}", done.loss);
            }
        }

        let dir = PathBuf::from(
            std::env::args()
                .nth(1)
                .unwrap_or_else(|| "runs/sine".to_owned()),
        );
        let saved = folder::save_sharded(&trainer.model, &dir, &mut checkpoint_ranks(rank)?)?;
        println!("rank {} wrote {} bytes", rank.rank(), saved.written_bytes);
        Ok(())
    })
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    match Environment::read()? {
        Some(_) => train(&World::from_env()?),
        None => Ok(Local::run(4, |rank| train(rank)).map(drop)?),
    }
}
