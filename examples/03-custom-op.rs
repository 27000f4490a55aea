//! A custom op: its value, what it saves, its gradient, and a gradient check.
//!
//! `cargo run --example 03-custom-op`

use meshgrad::autograd::{Result, Tolerance, gradcheck};
use meshgrad::prelude::*;

/// softplus(x) = ln(1 + e^x), whose derivative is sigmoid(x).
///
/// User ops have the same form as built-in ones: compute the value, save what backward needs, and
/// add each gradient to its slot.
fn softplus(x: &Var) -> Result<Var> {
    let y = ops::ln(&ops::affine(&ops::exp(x.value())?, 1.0, 1.0)?)?;
    let kept_x = x.save();
    y.tracked([x], move |dy, [dx]| dx.add(|| ops::mul(dy, &ops::sigmoid(&kept_x.get()?)?)))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cpu();
    let x = Tensor::from_slice(&device, &[4], &[-2.0f64, -0.5, 0.0, 3.0])?;
    println!("softplus {:.4?}", softplus(&Var::constant(x.clone()))?.value().to_vec::<f64>()?);

    // Compares the gradient with central differences in f64, with x as an input and as a parameter.
    gradcheck(|x| Ok(vec![softplus(&x[0])?]), &[x], Tolerance::default())?;
    println!("its gradient agrees with finite differences");

    // An op without a backward is an error when a gradient would be lost.
    let floor = |x: &Var| ops::cast(x.value(), DType::I64)?.untracked("floor", &[x]);
    let error = Tape::record(|| floor(&Var::input(ops::full(&device, &[2], DType::F32, 1.5)?)));
    println!("{}", error.err().ok_or("an op without a backward must fail")?);
    Ok(())
}
