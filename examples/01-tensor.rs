//! Tensors: values on a device, views without copies, ops that check their arguments.
//!
//! `cargo run --example 01-tensor`

use meshgrad::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cpu();
    let x = Tensor::from_slice(&device, &[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    println!("x                {x:?}");

    // Views share the storage.
    let transposed = x.transpose(0, 1)?;
    let column = x.slice(1, 1..2)?;
    println!("transposed       {:?}", transposed.to_vec::<f32>()?);
    println!("second column    {:?}", column.to_vec::<f32>()?);

    // Ops are functions; shapes broadcast.
    let centered = (&x - &column)?;
    let total = ops::sum(&ops::square(&centered)?, &[0, 1])?;
    println!("sum of squares   {}", total.item::<f32>()?);

    // An error states how to fix the mistake.
    let half = ops::cast(&x, DType::BF16)?;
    let error = ops::add(&x, &half).err().ok_or("adding bf16 to f32 must fail")?;
    println!("a mistake        {error}");

    // A meta device computes nothing but counts everything: here the memory and FLOPs of a GEMM
    // that is too large for most machines.
    let meta = Device::meta(device.properties());
    let large = ops::full(&meta, &[1 << 20, 1 << 14], DType::BF16, 0.0)?;
    let weight = ops::full(&meta, &[1 << 14, 1 << 14], DType::BF16, 0.0)?;
    ops::linear(&large, &weight)?;
    println!(
        "on meta          {} GB, {} TFLOP",
        meta.memory_stats().peak >> 30,
        meta.work().flops / 1_000_000_000_000
    );
    Ok(())
}
