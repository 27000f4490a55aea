//! Plans: what an op asks of a GPU, as data, and the way from there to the launch.

use meshgrad_kernels::{Arguments, Launch, Variant};

use crate::{DType, Device, Error, Result, stream};

/// One kernel that an op wants to run: pure, so that a meta device makes the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan<V> {
    /// Which kernel.
    pub(crate) variant: V,
    /// On how many CTAs and threads; `None` when there is nothing to do.
    pub(crate) launch: Option<Launch>,
}

/// Launches the kernels of one op on a GPU. On a device that computes nothing it counts them.
pub(crate) struct Launcher<'a> {
    op: &'static str,
    device: &'a Device,
}

impl<'a> Launcher<'a> {
    pub(crate) fn new(op: &'static str, device: &'a Device) -> Launcher<'a> {
        Launcher { op, device }
    }

    /// Puts the plan's kernel into the current stream, with its arguments.
    pub(crate) fn launch<V: Variant>(&self, plan: &Plan<V>, arguments: &Arguments) -> Result<()> {
        let Some(launch) = &plan.launch else {
            return Ok(());
        };
        self.device.count_launch();
        match self.device.gpu() {
            Some(gpu) => {
                let stream = stream::raw(self.device, gpu);
                Ok(gpu.launch(&plan.variant, launch, arguments, &stream)?)
            }
            None => Ok(()),
        }
    }

    /// The error of an op that has kernels, but none for `dtype`.
    pub(crate) fn no_kernel_for(&self, dtype: DType) -> Error {
        Error::NoKernel {
            op: self.op,
            device: self.device.to_string(),
            operands: format!(" for {dtype}"),
        }
    }

    /// The error of an op whose operands no kernel can be made for.
    pub(crate) fn refused(&self, reason: meshgrad_kernels::Error) -> Error {
        Error::KernelRefused {
            op: self.op,
            device: self.device.to_string(),
            reason,
        }
    }
}
