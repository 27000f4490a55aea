//! Plans: what an op asks of a GPU, as data, and the way from there to the launch.

use crate::cuda::kernel::{Arguments, Launch, Variant};
use crate::{Device, Result, stream};

/// One kernel that an op wants to run: pure, so that a meta device makes the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan<V> {
    /// Which kernel.
    pub(crate) variant: V,
    /// On how many blocks and threads; `None` when there is nothing to do.
    pub(crate) launch: Option<Launch>,
}

/// Launches plans on a GPU. On a device that computes nothing it counts them.
pub(crate) struct Launcher<'a> {
    device: &'a Device,
}

impl<'a> Launcher<'a> {
    pub(crate) fn new(device: &'a Device) -> Launcher<'a> {
        Launcher { device }
    }

    /// Puts the plan's kernel into the current stream, with the arguments that `arguments` makes:
    /// those of the kernel, in its order.
    pub(crate) fn launch<V: Variant>(
        &self,
        plan: &Plan<V>,
        arguments: impl FnOnce() -> Result<Arguments>,
    ) -> Result<()> {
        let Some(launch) = &plan.launch else {
            return Ok(());
        };
        self.device.count_launch();
        let Some(gpu) = self.device.gpu() else {
            return Ok(());
        };
        let (arguments, stream) = (arguments()?, stream::raw(self.device, gpu));
        Ok(gpu.launch(&plan.variant, launch, &arguments, &stream)?)
    }
}
