//! Two layers, data parallel over dp, column and then row parallel over tp: one source for one rank
//! and for four. `scripts/prove/dtensor` trains the same with torch's DTensor.

use std::sync::Arc;

use meshgrad::comm::{Local, Redistributor};
use meshgrad::mesh::{Mesh, Placement, Sharding};
use meshgrad::prelude::*;
use meshgrad::runtime::{Result, ShardedTensorError, with_mesh, with_redistribution};

const WHOLE: Placement = Placement::Replicate;

/// Numbers that every rank has whole; on a mesh, this rank's part of them.
fn numbers<const N: usize>(
    (device, on): (&Device, Option<(&Mesh, usize)>),
    shape: [usize; N],
    placement: (&str, Placement),
) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..count)
        .map(|i| (0.7 * i as f32 + 1.0).sin() / 2.0)
        .collect();
    let x = Tensor::from_slice(device, &shape, &numbers)?;
    let Some((mesh, rank)) = on else { return Ok(x) };
    let whole = Sharding::replicated(mesh, &shape).map_err(ShardedTensorError::from)?;
    ops::redistribute(&x.with_sharding(&whole, rank)?, [placement])
}

/// The loss of each step.
fn train(device: &Device, on: Option<(&Mesh, usize)>) -> Result<Vec<f32>> {
    let shard = Placement::shard;
    let [w1, w2] = [("w1", [16, 6]), ("w2", [3, 16])]
        .map(|(name, shape)| Param::new(name, shape, Init::Zeros));
    w1.set(&numbers((device, on), [16, 6], ("tp", shard(0)))?)?;
    w2.set(&numbers((device, on), [3, 16], ("tp", shard(1)))?)?;
    let x = Var::constant(numbers((device, on), [8, 6], ("dp", shard(0)))?);
    let target = Var::constant(numbers((device, on), [8, 3], ("dp", shard(0)))?);

    let mut grads = Grads::new(&[w1.clone(), w2.clone()])?;
    let step = |_| {
        let (loss, tape) = Tape::record(|| {
            let inner = ops::silu(&ops::linear(&x, &w1.var()?)?)?;
            let y = ops::redistribute(&ops::linear(&inner, &w2.var()?)?, [("tp", WHOLE)])?;
            let loss = ops::mean(&ops::square(&(&y - &target)?)?, &[0, 1])?;
            ops::redistribute(&loss, [("dp", WHOLE)])
        })?;
        tape.backward(
            &[(&loss, ops::full(device, &[], DType::F32, 1.0)?)],
            &mut grads,
        )?;
        for (w, gradient) in grads.all()? {
            let gradient = ops::redistribute(&gradient, [("dp", WHOLE)])?;
            w.set(&ops::sub(&w.value()?, &ops::affine(&gradient, 0.5, 0.0)?)?)?;
        }
        grads.clear();
        loss.value().item::<f32>()
    };
    (0..5).map(step).collect()
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let one_rank = train(&Device::cpu(), None)?;
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"])?;
    let four_ranks = Local::run(4, |rank| -> Result<_> {
        with_redistribution(Arc::new(Redistributor::new(rank)), || {
            with_mesh(&mesh, rank.rank(), || {
                train(rank.device(), Some((&mesh, rank.rank())))
            })
        })
    })?;
    for (step, loss) in one_rank.iter().enumerate() {
        println!(
            "step {step}: loss {loss:.6} on one rank, {:.6} on four",
            four_ranks[0][step]
        );
    }
    Ok(())
}
