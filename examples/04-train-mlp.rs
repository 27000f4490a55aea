//! A complete training loop on two spirals: model, gradients, AdamW.
//!
//! `cargo run --release --example 04-train-mlp`

use meshgrad::models::layers::Linear;
use meshgrad::prelude::*;
use meshgrad::train::config::OptimizerConfig;
use meshgrad::train::optimizer::Optimizer;

/// Maps two features to two scores, with two hidden layers.
#[derive(Module)]
struct Mlp {
    layers: [Linear; 3],
}

impl Mlp {
    fn new() -> Mlp {
        let init = Init::Normal { std: 0.3 };
        let layer = |name, from, to| Linear::new(name, from, to).bias(true).init(init);
        Mlp { layers: [layer("in", 2, 64), layer("middle", 64, 64), layer("out", 64, 2)] }
    }

    fn forward(&self, x: &Var) -> Result<Var> {
        let [first, middle, last] = &self.layers;
        let x = ops::silu(&first.forward(x)?)?;
        last.forward(&ops::silu(&middle.forward(&x)?)?)
    }
}

/// Returns `count` points on each of two spirals, and their one-hot classes.
fn spirals(device: &Device, count: usize) -> Result<(Tensor, Tensor)> {
    let (mut points, mut classes) = (Vec::new(), Vec::new());
    for at in 0..2 * count {
        let (turn, which) = (at as f32 / (2 * count) as f32 * 9.0, at % 2);
        let angle = turn + which as f32 * std::f32::consts::PI;
        points.extend([turn / 9.0 * angle.cos(), turn / 9.0 * angle.sin()]);
        classes.extend([1.0 - which as f32, which as f32]);
    }
    let tensor = |values: &[f32]| Tensor::from_slice(device, &[2 * count, 2], values);
    Ok((tensor(&points)?, tensor(&classes)?))
}

fn main() -> anyhow::Result<()> {
    let device = Device::cpu();
    let (points, classes) = spirals(&device, 200)?;
    let model = Mlp::new();
    model.materialize(&device, 1)?;
    let mut optimizer = Optimizer::new(&model, &device, &OptimizerConfig::default(), 1)?;

    let (one, count) = (Tensor::scalar(&device, 1.0f32)?, Tensor::scalar(&device, 400.0f32)?);
    for step in 1..=800 {
        // The loss is a sum; the optimizer divides the gradients once, by `count`.
        let (loss, tape) = Tape::record(|| {
            let scores = model.forward(&Var::constant(points.clone()))?;
            let chosen = ops::mul(&ops::log_softmax(&scores)?, &Var::constant(classes.clone()))?;
            ops::neg(&ops::sum(&chosen, &[0, 1])?)
        })?;
        tape.backward(&[(&loss, one.clone())], optimizer.grads())?;
        let norm = optimizer.step(&count, step, 1e-2)?;
        if step % 200 == 0 {
            let (loss, norm) = (loss.value().item::<f32>()? / 400.0, norm.item::<f32>()?);
            println!("step {step}  loss {loss:.4}  |g| {norm:.3}");
        }
    }
    Ok(())
}
