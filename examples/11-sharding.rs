//! Two layers, data parallel over dp, column and then row parallel over tp: one source for one rank
//! and for four. `scripts/prove/dtensor` trains the same with torch's DTensor.

use meshgrad::prelude::*;

const WHOLE: Placement = Placement::Replicate;

/// Numbers that every rank computes whole; on a mesh, this rank's shard of them.
fn numbers(device: &Device, shape: &[usize], axis: &str, dim: usize) -> Result<Tensor> {
    let number = |i: usize| (0.7 * i as f32 + 1.0).sin() / 2.0;
    let numbers: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    let whole = Tensor::from_slice(device, shape, &numbers)?.as_replicated()?;
    ops::redistribute(&whole, [(axis, Placement::shard(dim))])
}

/// The loss of each step.
fn train(device: &Device) -> Result<Vec<f32>> {
    let w1 = Param::new("w1", [16, 6], Init::Zeros);
    let w2 = Param::new("w2", [3, 16], Init::Zeros);
    w1.set(&numbers(device, &[16, 6], "tp", 0)?)?;
    w2.set(&numbers(device, &[3, 16], "tp", 1)?)?;
    let x = Var::constant(numbers(device, &[8, 6], "dp", 0)?);
    let target = Var::constant(numbers(device, &[8, 3], "dp", 0)?);

    let mut grads = Grads::new(&[w1.clone(), w2.clone()])?;
    let step = |_| {
        let (loss, tape) = Tape::record(|| {
            let inner = ops::silu(&ops::linear(&x, &w1.var()?)?)?;
            let y = ops::redistribute(&ops::linear(&inner, &w2.var()?)?, [("tp", WHOLE)])?;
            let loss = ops::mean(&ops::square(&(&y - &target)?)?, &[0, 1])?;
            ops::redistribute(&loss, [("dp", WHOLE)])
        })?;
        tape.backward(&loss, &mut grads)?;
        for (w, gradient) in grads.all()? {
            let gradient = ops::redistribute(&gradient, [("dp", WHOLE)])?;
            w.set(&ops::sub(&w.value()?, &ops::affine(&gradient, 0.5, 0.0)?)?)?;
        }
        grads.clear();
        loss.value().item()
    };
    (0..5).map(step).collect()
}

fn main() -> Result<()> {
    let one_rank = train(&Device::cpu())?;
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"])?;
    let four_ranks =
        ranks::run(4, |rank| Redistributor::new(rank).run_on(&mesh, || train(rank.device())))?;
    for (step, (one, four)) in one_rank.iter().zip(&four_ranks[0]).enumerate() {
        println!("step {step}: loss {one:.6} on one rank, {four:.6} on four");
    }
    Ok(())
}
