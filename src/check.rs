//! `meshgrad check`: what the device is, and whether the gradient of every op is right on it.
//!
//! On a CPU gradients are computed in f64 and held against finite differences. On a GPU, which has
//! no f64, they are computed in f32 and held against the CPU's f64.

use anyhow::bail;
use meshgrad::autograd::{self, Tolerance, cases, compare_gradients, gradcheck};
use meshgrad::runtime::{self, DType, Device};

/// How far an f32 gradient of a GPU may be from the CPU's f64: what a few roundings make.
const GPU_TOLERANCE: f64 = 1e-5;

pub(crate) fn check(device: &Device) -> anyhow::Result<()> {
    println!("meshgrad {}", env!("CARGO_PKG_VERSION"));
    match &device.properties().gpu {
        None => on_cpu(device),
        Some(_) => on_gpu(device),
    }
}

fn on_cpu(device: &Device) -> anyhow::Result<()> {
    let properties = device.properties();
    let bf16 = if properties.native_bf16 {
        "native"
    } else {
        "emulated"
    };
    println!(
        "device   {device}, {} threads, {}, bf16 {bf16}",
        properties.threads, properties.simd
    );
    println!();

    let outcomes = cases::all(device, DType::F64)?.into_iter().map(|case| {
        let outcome = gradcheck(&case.function, &case.inputs, Tolerance::default());
        (case.name, outcome)
    });
    report(outcomes, "finite differences")
}

fn on_gpu(device: &Device) -> anyhow::Result<()> {
    if let Some(gpu) = &device.properties().gpu {
        let (major, minor) = gpu.compute_capability;
        println!(
            "device   {device}, {}, compute capability {major}.{minor}, {} multiprocessors, {} GiB",
            gpu.model,
            gpu.multiprocessors,
            gpu.memory >> 30
        );
    }
    println!();

    let reference = cases::all(&Device::cpu(), DType::F64)?;
    let here = cases::all(device, DType::F32)?;
    let outcomes = here.into_iter().zip(reference).map(|(here, there)| {
        let outcome = compare_gradients(&here, &there, GPU_TOLERANCE);
        (here.name, outcome)
    });
    report(outcomes, "the CPU's in f64")
}

/// Prints an outcome a line; fails when one failed.
fn report(
    outcomes: impl Iterator<Item = (&'static str, autograd::Result<()>)>,
    with: &str,
) -> anyhow::Result<()> {
    let (mut right, mut missing, mut failed) = (0, 0, 0);
    for (name, outcome) in outcomes {
        match outcome {
            Ok(()) => {
                right += 1;
                println!("ok      {name}");
            }
            Err(autograd::Error::Runtime(runtime::Error::NoKernel { op, .. })) => {
                missing += 1;
                println!("--      {name}: no kernel of `{op}` on this device yet");
            }
            Err(error) => {
                failed += 1;
                println!("FAILED  {name}: {error}");
            }
        }
    }
    println!();
    if failed > 0 {
        bail!(
            "{failed} of {} gradients disagree with {with}",
            right + failed
        );
    }
    match missing {
        0 => println!("the gradients of all {right} ops agree with {with}"),
        _ => {
            println!("the gradients of {right} ops agree with {with}; {missing} have no kernel yet")
        }
    }
    Ok(())
}
