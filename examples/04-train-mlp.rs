//! A complete training loop on two spirals: `cargo run --release --example 04-train-mlp`.

use meshgrad::prelude::*;

/// Maps two features to two scores, with two hidden layers.
#[derive(Module)]
struct Mlp([Linear; 3]);

impl Mlp {
    fn forward(&self, x: &Var) -> Result<Var> {
        let [first, middle, last] = &self.0;
        let x = ops::silu(&first.forward(x)?)?;
        last.forward(&ops::silu(&middle.forward(&x)?)?)
    }
}

/// 200 points on each of two spirals, and the spiral of each.
fn spirals(device: &Device) -> Result<(Var, Tensor)> {
    let (mut points, mut spirals) = (Vec::new(), Vec::new());
    for at in 0..400 {
        let (radius, spiral) = (at as f32 / 400.0, at % 2);
        let angle = 9.0 * radius + spiral as f32 * std::f32::consts::PI;
        points.extend([radius * angle.cos(), radius * angle.sin()]);
        spirals.push(spiral);
    }
    let points = Tensor::from_slice(device, &[400, 2], &points)?;
    Ok((Var::constant(points), Tensor::from_slice(device, &[400], &spirals)?))
}

fn main() -> Result<()> {
    let device = Device::cpu();
    let (points, spirals) = spirals(&device)?;
    let layer = |name, from, to| Linear::new(name, from, to).bias(true);
    let model = Mlp([layer("in", 2, 64), layer("middle", 64, 64), layer("out", 64, 2)]);
    model.materialize(&device, 1)?;
    let mut optimizer = Optimizer::new(&model, &device, &OptimizerConfig::default(), 1)?;
    for step in 1..=800 {
        // The loss is a sum; the optimizer divides the gradients once, by `count`.
        let ((loss, count), tape) =
            Tape::record(|| ops::cross_entropy(&model.forward(&points)?, &spirals, IGNORE_INDEX))?;
        tape.backward(&loss, optimizer.grads())?;
        let norm = optimizer.step(&count, step, 1e-2)?;
        if step % 200 == 0 {
            let (loss, norm) = (loss.value().item::<f32>()? / 400.0, norm.item::<f32>()?);
            println!("step {step}  loss {loss:.4}  |g| {norm:.3}");
        }
    }
    Ok(())
}
