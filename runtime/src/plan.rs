//! Plans: what an op asks of a GPU, as data, and the way from there to the launch.

use meshgrad_kernels::{Arguments, Dtype, Launch, Variant};

use crate::{DType, Device, Error, Result, stream};

#[cfg(test)]
mod ptxas;

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

    /// The op.
    pub(crate) fn op(&self) -> &'static str {
        self.op
    }

    /// How many multiprocessors there are to keep busy.
    pub(crate) fn multiprocessors(&self) -> u32 {
        let gpu = self.device.properties().gpu.as_ref();
        gpu.map_or(1, |gpu| gpu.multiprocessors)
    }

    /// An extent as a kernel takes it.
    pub(crate) fn u32(&self, what: &'static str, value: usize) -> Result<u32> {
        u32::try_from(value).map_err(|_| {
            self.refused(meshgrad_kernels::Error::Extent {
                kernel: self.op,
                what,
                value,
                least: 0,
                most: u32::MAX as usize,
            })
        })
    }

    /// A float as kernels know it.
    pub(crate) fn float(&self, dtype: DType) -> Result<Dtype> {
        match dtype {
            DType::F32 => Ok(Dtype::F32),
            DType::BF16 => Ok(Dtype::Bf16),
            other => Err(self.no_kernel_for(other)),
        }
    }

    /// Puts the plan's kernel into the current stream, with its arguments.
    pub(crate) fn launch<V: Variant>(&self, plan: &Plan<V>, arguments: &Arguments) -> Result<()> {
        let Some(launch) = &plan.launch else {
            return Ok(());
        };
        self.device.count_launch();
        #[cfg(test)]
        ptxas::note(self.op, &plan.variant);
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

/// Whether all addresses are multiples of 16, as the widest accesses want them.
pub(crate) fn aligned(addresses: &[u64]) -> bool {
    addresses.iter().all(|address| address % 16 == 0)
}
