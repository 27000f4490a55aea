//! `meshgrad check`: reports the device and checks every op on it.
//!
//! On a CPU, gradients are computed in f64 and compared with finite differences. GPU ops do not
//! support f64: there, values and gradients are computed in f32 and bf16 and compared with the
//! CPU's f64 results for the same inputs.

use anyhow::{bail, ensure};
use meshgrad::autograd::{Tolerance, gradcheck};
use meshgrad::opcheck::{Closeness, cases, compare};
use meshgrad::runtime::{DType, Device, Error, ErrorKind};

/// The dtypes checked on a GPU and their tolerances: a few roundings per element in f32, a few
/// percent per tensor in bf16.
const GPU_FLOATS: [(DType, Closeness); 2] = [
    (DType::F32, Closeness::Elements(1e-5)),
    (DType::BF16, Closeness::Vectors { angle: 1e-3, norm: 1e-2 }),
];

pub(crate) fn check(device: &Device) -> anyhow::Result<()> {
    println!("meshgrad {}", env!("CARGO_PKG_VERSION"));
    match &device.properties().gpu {
        None => on_cpu(device),
        Some(_) => on_gpu(device),
    }
}

fn on_cpu(device: &Device) -> anyhow::Result<()> {
    let properties = device.properties();
    let bf16 = if properties.native_bf16 { "native" } else { "emulated" };
    println!("device   {device}, {} threads, {}, bf16 {bf16}", properties.threads, properties.simd);
    println!();

    let mut tally = Tally::default();
    for case in cases::all(device, DType::F64)? {
        let outcome = gradcheck(|x| case.run(x), &case.inputs, Tolerance::default());
        tally.print(case.name, &outcome);
    }
    tally.finish("gradients", "finite differences")
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

    let mut tally = Tally::default();
    for (dtype, closeness) in GPU_FLOATS {
        println!("\n{dtype}");
        let cases = cases::all(device, dtype)?;
        for (case, exact) in cases.iter().zip(&cases::exact(dtype)?) {
            tally.print(case.name, &compare(case, exact, closeness));
        }
    }
    tally.finish("values and gradients", "the CPU's in f64")
}

/// Counts of results.
#[derive(Default)]
struct Tally {
    passed: usize,
    missing: usize,
    failed: usize,
}

impl Tally {
    /// Counts a result and prints it.
    fn print(&mut self, name: &str, outcome: &Result<(), Error>) {
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("ok      {name}");
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.missing += 1;
                println!("--      {name}: {error}");
            }
            Err(error) => {
                self.failed += 1;
                println!("FAILED  {name}: {error}");
            }
        }
    }

    /// Fails if a case failed or none was checked.
    fn finish(&self, what: &str, with: &str) -> anyhow::Result<()> {
        let Tally { passed, missing, failed } = *self;
        println!();
        if failed > 0 {
            bail!("{what} of {failed} of {} cases disagree with {with}", passed + failed);
        }
        ensure!(
            passed > 0,
            "nothing was checked: this device has no kernel for any of {missing} cases"
        );
        match missing {
            0 => println!("{what} of all {passed} cases agree with {with}"),
            _ => {
                println!("{what} of {passed} cases agree with {with}; {missing} have no kernel yet")
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(passed: usize, missing: usize, failed: usize) -> anyhow::Result<()> {
        let tally = Tally { passed, missing, failed };
        tally.finish("values", "others")
    }

    /// The check needs at least one passed case and no failed one.
    #[test]
    fn some_cases_must_pass_and_none_fail() {
        assert!(tally(1, 0, 0).is_ok() && tally(1, 9, 0).is_ok());
        assert!(tally(0, 9, 0).is_err() && tally(0, 0, 0).is_err());
        assert!(tally(9, 0, 1).is_err() && tally(0, 9, 1).is_err());
    }
}
