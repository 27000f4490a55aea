//! The tape: record and backward, split backward, and activation checkpointing.
//!
//! `cargo run --example 02-autograd`

use meshgrad::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cpu();
    let w = Param::new("w", [3, 3], Init::Normal { std: 0.5 });
    w.materialize(&device, 1)?;
    let x = Tensor::from_slice(&device, &[2, 3], &[1.0f32, 0.5, -1.0, 2.0, 0.0, 1.0])?;
    let one = ops::full(&device, &[2, 3], DType::F32, 1.0)?;
    let layer = |x: &Var, w: &Param| ops::silu(&ops::linear(x, &w.var()?)?);

    // Ops are recorded only inside `Tape::record`.
    let (y, tape) = Tape::record(|| layer(&Var::constant(x.clone()), &w))?;
    println!("the tape holds {} ops and {} bytes for backward", tape.len(), tape.saved_bytes());
    let mut grads = Grads::new(std::slice::from_ref(&w))?;
    tape.backward_from(&[(&y, one.clone())], &mut grads)?;
    let full = grads.get(&w)?.to_vec::<f32>()?;
    println!("dw      {full:.3?}");

    // A pipeline stage sends the gradient of its input before it computes the gradients of its
    // weights.
    let ((x_in, y), tape) = Tape::record(|| {
        let x = Var::input(x.clone());
        let y = layer(&x, &w)?;
        Ok((x, y))
    })?;
    let (dx, weights) = tape.backward_inputs(&[(&y, one.clone())], &[&x_in])?;
    println!("dx      {:.3?}", dx[0].to_vec::<f32>()?);
    let mut split = Grads::new(std::slice::from_ref(&w))?;
    weights.run(&mut split)?;
    assert_eq!(split.get(&w)?.to_vec::<f32>()?, full, "split backward equals full backward");

    // `checkpoint` saves only the inputs of the block, and recomputes the rest in backward.
    let inner = w.clone();
    let ([y], tape) = Tape::record(|| {
        let x = Var::constant(x.clone());
        checkpoint([&x], move |[x]| Ok([ops::silu(&ops::linear(&x, &inner.var()?)?)?]))
    })?;
    let mut again = Grads::new(std::slice::from_ref(&w))?;
    tape.backward_from(&[(&y, one)], &mut again)?;
    assert_eq!(again.get(&w)?.to_vec::<f32>()?, full, "recomputed backward equals full backward");
    println!("split and recomputed gradients equal the full ones bit for bit");
    Ok(())
}
