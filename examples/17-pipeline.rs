//! A model of one's own in four stages on two ranks: what `Model` needs so that it can be cut, and a training loop.
//! The losses are those of one rank.
//!
//! `cargo run --example 17-pipeline`

use meshgrad::models::{Flow, Stage};
use meshgrad::pipeline::Named;
use meshgrad::prelude::*;
use meshgrad::runtime::{Key, ops::normal};
use meshgrad::train::pipeline::{Cut, Pipeline};

const LAYERS: usize = 4;
const ROWS: usize = 6;
const FEATURES: usize = 16;

/// Learns to reverse its inputs.
#[derive(Module)]
struct Toy {
    /// `None` where another rank has the layer.
    layers: Vec<Option<Linear>>,
}

impl Toy {
    fn new() -> Toy {
        let layer = |at| Linear::new(format!("layers.{at}"), FEATURES, FEATURES);
        Toy { layers: (0..LAYERS).map(|at| Some(layer(at))).collect() }
    }
}

impl Model for Toy {
    type Batch = (Tensor, Tensor);
    type Stream = Var;

    fn loss(&self, batch: &Self::Batch, compute: Compute) -> Result<Loss> {
        let Flow::Loss(loss) = self.forward(&Stage::whole(LAYERS), None, batch, compute)? else {
            unreachable!("the whole model has a loss");
        };
        Ok(*loss)
    }

    fn layers(&self) -> usize {
        LAYERS
    }

    fn part(&self, stages: &[Stage]) -> Result<Toy> {
        let is_own = |at| stages.iter().any(|stage| stage.layers.contains(&at));
        let kept = |at: usize| self.layers[at].clone().filter(|_| is_own(at));
        Ok(Toy { layers: (0..LAYERS).map(kept).collect() })
    }

    fn forward(
        &self,
        stage: &Stage,
        input: Option<Var>,
        (x, y): &Self::Batch,
        _: Compute,
    ) -> Result<Flow<Var>> {
        let mut x = input.unwrap_or_else(|| Var::constant(x.clone()));
        for layer in self.layers[stage.layers.clone()].iter().flatten() {
            x = (&x + &ops::silu(&layer.forward(&x)?)?)?;
        }
        if !stage.is_last {
            return Ok(Flow::Next { stream: x, statistics: Vec::new() });
        }
        let error = (&x - &Var::constant(y.clone()))?;
        let weight = ops::full(y.device(), &[], DType::F32, ROWS as f64)?;
        Ok(Flow::Loss(Box::new(Loss::new(ops::sum(&(&error * &error)?, &[0, 1])?, weight))))
    }
}

fn batch(device: &Device, number: usize) -> Result<(Tensor, Tensor)> {
    let key = Key::new(number as u64);
    let x = normal(device, &[ROWS, FEATURES], DType::F32, key, 0.0, 1.0)?;
    Ok((x.clone(), ops::affine(&x, -1.0, 0.0)?))
}

/// The loss of each step.
fn train(mut trainer: Trainer<Toy>, device: &Device) -> Result<Vec<f64>> {
    let mut step = |step| {
        let batches = (0..4).map(|at| batch(device, step as usize * 4 + at));
        Ok(trainer.step(step, batches)?.wait(&trainer.model)?.loss)
    };
    (1..=5).map(&mut step).collect()
}

fn train_on(rank: &dyn Rank) -> Result<Vec<f64>> {
    let mesh = Mesh::new(&[2], &["pp"])?;
    let cut = Cut::new(&mesh, "pp", rank.rank(), Named::Zbv, &[1; LAYERS])?;
    Redistributor::new(rank).run_on(&cut.stage_mesh()?, || {
        let (device, whole) = (rank.device(), Toy::new());
        let compute = Compute::new(DType::F32);
        let pipeline = Pipeline::learn(&cut, rank, &whole, compute, |meta| batch(meta, 0))?;
        let part = whole.part(&cut.own_stages())?;
        DataParallel::of_stage(rank, &mesh, "pp", Strategy::replicate([""; 0]))?.apply(&part)?;
        part.materialize(device, 1)?;
        train(Trainer::of(part).pipeline(pipeline).build(&Config::default(), device)?, device)
    })
}

fn main() -> Result<()> {
    let (device, toy) = (Device::cpu(), Toy::new());
    toy.materialize(&device, 1)?;
    let one = train(Trainer::new(toy, &Config::default(), &device)?, &device)?;
    println!("one rank: losses {one:.5?}");
    let ranks = ranks::run(2, train_on)?;
    println!("each of two ranks: losses {:.5?}", ranks[0]);
    assert!(
        ranks.iter().flat_map(|losses| losses.iter().zip(&one)).all(|(a, b)| (a - b).abs() < 1e-4)
    );
    Ok(())
}
