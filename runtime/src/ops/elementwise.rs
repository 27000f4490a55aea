//! Elementwise functions on whichever device.

use crate::cpu::elementwise::{self as cpu, Function};
use crate::cuda::elementwise::{self as cuda, Target};
use crate::{Call, Fresh, Result, Tensor};

/// `y[i] = f(inputs[..][i])`, inputs of `y`'s dtype read in row-major order.
pub(super) fn map<const N: usize>(
    call: &Call,
    f: &impl Function<N>,
    inputs: [&Tensor; N],
    y: &mut Fresh,
) -> Result<()> {
    run(call, f, inputs, y, |y| cpu::map(f, inputs, y))
}

/// Whether `f(inputs[..][i])`, which is 0 or 1, is 1.
pub(super) fn test<const N: usize>(
    call: &Call,
    f: &impl Function<N>,
    inputs: [&Tensor; N],
    y: &mut Fresh,
) -> Result<()> {
    run(call, f, inputs, y, |y| cpu::test(f, inputs, y))
}

/// On a GPU a result's dtype says how it is written; on a CPU `on_cpu` knows.
fn run<const N: usize>(
    call: &Call,
    f: &impl Function<N>,
    inputs: [&Tensor; N],
    y: &mut Fresh,
    on_cpu: impl FnOnce(&mut Fresh) -> Result<()>,
) -> Result<()> {
    match call.device().is_gpu() {
        true => call.launch(|gpu| cuda::map(gpu, f, inputs, &Target::fresh(gpu, y)?)),
        false => call.compute(|| on_cpu(y)),
    }
}
