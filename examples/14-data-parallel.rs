//! Data-parallel training of a model of your own, from the parts of `meshgrad train`: sharded over two ranks, with
//! copies on two more. The same `main` runs as threads and as processes.
//!
//! ```text
//! cargo run --example 14-data-parallel             # four threads
//! cargo run --example 14-data-parallel sine        # saves the model to the new folder `sine`
//! meshgrad launch -n 4 -- target/debug/examples/14-data-parallel
//! ```

use meshgrad::checkpoint_ranks;
use meshgrad::comm::launch::Environment;
use meshgrad::comm::{Local, ProcessRank, Rank, Redistributor};
use meshgrad::data_parallel::{DataParallel, Strategy};
use meshgrad::mesh::{Mesh, Placement};
use meshgrad::models::folder;
use meshgrad::models::layers::Linear;
use meshgrad::prelude::*;
use meshgrad::train::config::Config;
use meshgrad::train::trainer::Trainer;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

const ROWS: usize = 64;
const STEPS: u64 = 200;

/// Learns y = sin(x).
#[derive(Module)]
struct Sine {
    up: Linear,
    down: Linear,
}

impl Model for Sine {
    type Batch = (Var, Var);
    type Stream = ();

    /// The sum of squared errors. Sums add up over ranks; the trainer divides once by the weight.
    fn loss(&self, (x, y): &(Var, Var), _: Compute) -> Result<Loss> {
        let hidden = ops::silu(&self.up.forward(x)?)?;
        let error = (&self.down.forward(&hidden)? - y)?;
        let total = ops::sum(&(&error * &error)?, &[0, 1])?;
        let weight = ops::full(x.value().device(), &[], DType::F32, ROWS as f64)?;
        Ok(Loss::new(total, weight))
    }
}

/// This rank's rows of a column.
fn column(device: &Device, value: impl Fn(f32) -> f32) -> Result<Var> {
    let values: Vec<f32> = (0..ROWS).map(|row| value(row as f32 * 0.1 - 3.2)).collect();
    let whole = Tensor::from_slice(device, &[ROWS, 1], &values)?.as_replicated()?;
    let rows = ["copies", "dp"].map(|axis| (axis, Placement::shard(0)));
    Ok(Var::constant(ops::redistribute(&whole, rows)?))
}

fn train(rank: &dyn Rank) -> std::result::Result<(), AnyError> {
    let (mesh, device) = (Mesh::new(&[2, 2], &["copies", "dp"])?, rank.device());
    let linear = |name, from, to| Linear::new(name, from, to).bias(true);
    let model = Sine {
        up: linear("up", 1, 32).init(Init::Normal { std: 1.0 }),
        down: linear("down", 32, 1),
    };
    Redistributor::new(rank).run_on(&mesh, || {
        DataParallel::new(rank, &mesh, Strategy::hsdp(["dp"], ["copies"])).apply(&model)?;
        model.materialize(device, 1)?;
        let mut config = Config::default();
        config.optimizer.learning_rate = 0.01;
        let mut trainer = Trainer::new(model, &config, device)?;
        for step in 1..=STEPS {
            let batch = (column(device, |x| x)?, column(device, f32::sin)?);
            let done = trainer.step(step, [Ok(batch)])?.wait(&trainer.model)?;
            if rank.rank() == 0 && (step == 1 || step == STEPS) {
                println!("step {step:>3}  loss {:.5}", done.loss);
            }
        }
        if let Some(new) = std::env::args().nth(1) {
            let mut ranks = checkpoint_ranks(rank)?;
            let saved = folder::save_sharded(&trainer.model, new.as_ref(), &mut ranks)?;
            println!("rank {} wrote {} bytes", rank.rank(), saved.written_bytes);
        }
        Ok(())
    })
}

fn main() -> std::result::Result<(), AnyError> {
    match Environment::read()? {
        Some(_) => train(&ProcessRank::from_env()?),
        None => Ok(Local::run(4, |rank| train(rank)).map(drop)?),
    }
}
