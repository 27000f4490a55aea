//! Data-parallel training of a model of your own, from the parts of `meshgrad train`: sharded over two ranks, with
//! copies on two more. With an argument, it saves the model to the new folder of that name.
//!
//! - as threads: `cargo run --example 14-data-parallel`
//! - as processes: `meshgrad launch -n 4 -- target/debug/examples/14-data-parallel`

use meshgrad::{checkpoint_ranks, models::folder, prelude::*};

/// Learns y = sin(x).
#[derive(Module)]
struct Sine(Linear, Linear);

impl Model for Sine {
    type Batch = (Var, Var);
    type Stream = ();

    /// The sum of squared errors. Sums add up over ranks; the trainer divides once by the weight.
    fn loss(&self, (x, y): &(Var, Var), _: Compute) -> Result<Loss> {
        let error = (&self.1.forward(&ops::silu(&self.0.forward(x)?)?)? - y)?;
        let weight = ops::full(x.value().device(), &[], DType::F32, 64.0)?;
        Ok(Loss::new(ops::sum(&ops::square(&error)?, &[0, 1])?, weight))
    }
}

/// This rank's rows of 64.
fn column(device: &Device, value: impl Fn(f32) -> f32) -> Result<Var> {
    let values: Vec<f32> = (0..64).map(|row| value(row as f32 * 0.1 - 3.2)).collect();
    let whole = Tensor::from_slice(device, &[64, 1], &values)?.as_replicated()?;
    let rows = ["copies", "dp"].map(|axis| (axis, Placement::shard(0)));
    Ok(Var::constant(ops::redistribute(&whole, rows)?))
}

fn train(rank: &dyn Rank) -> Result<()> {
    let (mesh, device) = (Mesh::new(&[2, 2], &["copies", "dp"])?, rank.device());
    let up = Linear::new("up", 1, 32).init(Init::Normal { std: 1.0 });
    let model = Sine(up.bias(true), Linear::new("down", 32, 1).bias(true));
    Redistributor::new(rank).run_on(&mesh, || {
        DataParallel::new(rank, &mesh, Strategy::hsdp(["dp"], ["copies"])).apply(&model)?;
        model.materialize(device, 1)?;
        let mut config = Config::default();
        config.optimizer.learning_rate = 0.01;
        let mut trainer = Trainer::new(model, &config, device)?;
        for step in 1..=200 {
            let batch = (column(device, |x| x)?, column(device, f32::sin)?);
            let done = trainer.step(step, [Ok(batch)])?.wait(&trainer.model)?;
            if rank.rank() == 0 && (step == 1 || step == 200) {
                println!("step {step:>3}  loss {:.5}", done.loss);
            }
        }
        if let Some(new) = std::env::args().nth(1) {
            folder::save_sharded(&trainer.model, new.as_ref(), &mut checkpoint_ranks(rank)?)?;
        }
        Ok(())
    })
}

fn main() -> Result<()> {
    ranks::run(4, train).map(drop)
}
