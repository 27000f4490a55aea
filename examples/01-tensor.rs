//! Tensors: values on a device, views for free, ops that check what they are given.
//!
//! `cargo run --example 01-tensor`

use meshgrad::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cpu();
    let x = Tensor::from_slice(&device, &[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    println!("x                {x:?}");

    // Views share the storage: nothing moves.
    let turned = x.transpose(0, 1)?;
    let column = x.slice(1, 1..2)?;
    println!("transposed       {:?}", turned.to_vec::<f32>()?);
    println!("second column    {:?}", column.to_vec::<f32>()?);

    // Ops are functions; shapes broadcast.
    let centred = values::sub(&x, &column)?;
    let total = values::sum(&values::square(&centred)?, &[0, 1])?;
    println!("sum of squares   {}", total.item::<f32>()?);

    // A mistake is an error that says what to do.
    let half = values::cast(&x, DType::BF16)?;
    let error = values::add(&x, &half).err().ok_or("this must not work")?;
    println!("a mistake        {error}");

    // A meta device computes nothing and counts everything: here the memory of a product too large
    // for this machine.
    let meta = Device::meta(device.properties());
    let large = values::full(&meta, &[1 << 20, 1 << 14], DType::BF16, 0.0)?;
    let weight = values::full(&meta, &[1 << 14, 1 << 14], DType::BF16, 0.0)?;
    values::linear(&large, &weight)?;
    println!(
        "on meta          {} GB, {} TFLOP",
        meta.memory_stats().peak >> 30,
        meta.work().flops / 1_000_000_000_000
    );
    Ok(())
}
