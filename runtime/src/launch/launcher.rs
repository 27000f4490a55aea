//! The launcher of an op's kernels.

mod many;

use std::cell::RefCell;

use meshgrad_kernels::faults::FaultSite;
use meshgrad_kernels::{Arguments, Launch, Variant};

use super::plan::{Plan, Unplanned};
use crate::core::stream;
use crate::core::stream_uses::Access;
use crate::{Call, Device, Error, Kind, Result, Tensor, UninitTensor};

impl Call {
    /// Launches the op's kernels on a GPU, and counts the op. On a device that computes nothing what
    /// `kernels` launches is only counted. How one writes them: docs/kernels.md.
    ///
    /// # Errors
    /// What `kernels` returns.
    pub fn launch(&self, kernels: impl FnOnce(&Launcher<'_>) -> Result<()>) -> Result<()> {
        self.count();
        kernels(&Launcher::new(self.name(), self.device()))
    }
}

/// The way of an op's kernels to a GPU: addresses of its operands, and launches into the current
/// stream. On a device that computes nothing launches are counted. Given by
/// [`Call::launch`](crate::Call::launch).
pub struct Launcher<'a> {
    op: &'static str,
    device: &'a Device,
    used: RefCell<Used>,
}

/// The most tensors that may change among the operands of one op.
const MOST_USED: usize = 16;

/// The storages that may change which an op uses, and how. Held in place, without heap memory.
#[derive(Default)]
struct Used {
    storages: [Option<(usize, Access)>; MOST_USED],
}

impl Used {
    fn all(&self) -> impl Iterator<Item = (usize, Access)> {
        self.storages.iter().copied().flatten()
    }

    /// `None` when there is no room.
    fn add(&mut self, storage: usize, access: Access) -> Option<()> {
        let free = self.storages.iter_mut().find(|place| place.is_none())?;
        *free = Some((storage, access));
        Some(())
    }
}

impl<'a> Launcher<'a> {
    pub(crate) fn new(op: &'static str, device: &'a Device) -> Launcher<'a> {
        Launcher {
            op,
            device,
            used: RefCell::default(),
        }
    }

    /// The op's name.
    pub(crate) fn op(&self) -> &'static str {
        self.op
    }

    /// How many multiprocessors there are to keep busy.
    pub fn multiprocessors(&self) -> u32 {
        let gpu = self.device.properties().gpu.as_ref();
        gpu.map_or(1, |gpu| gpu.multiprocessors)
    }

    /// Where the first element of `x` lies, for a kernel that reads it.
    ///
    /// # Errors
    /// [`Error::Busy`] when this op changes its storage too, and while work on another stream
    /// does; [`Error::Argument`] for more parameters, caches and their like than a kernel takes.
    pub fn ptr(&self, x: &Tensor) -> Result<u64> {
        self.uses(x, Access::Read)?;
        x.address(self.op)
    }

    /// Where the first element of `into` lies, for a kernel that changes it. The version goes up by
    /// one.
    ///
    /// # Errors
    /// [`Error::Immutable`] for a [`Kind::Value`](crate::Kind::Value); [`Error::Busy`] when this op
    /// uses its storage otherwise, and while work on another stream does; [`Error::Argument`] as
    /// for [`Launcher::ptr`].
    pub fn mut_ptr(&self, into: &Tensor) -> Result<u64> {
        self.uses(into, Access::Write)?;
        into.address_to_write(self.op)
    }

    /// Where the first element of a tensor in the making lies, for the kernels that make it.
    ///
    /// # Errors
    /// None on a GPU.
    pub fn uninit_ptr(&self, y: &UninitTensor) -> Result<u64> {
        y.address()
    }

    /// Where a kernel of this op reports an index that is not in 0..extent
    /// ([`faults`](meshgrad_kernels::faults)): the host gets [`CudaError::IndexOutOfRange`] when it
    /// next copies values from this device or synchronises. Also part of graphs.
    ///
    /// [`CudaError::IndexOutOfRange`]: crate::CudaError::IndexOutOfRange
    pub fn fault_site(&self, extent: usize) -> FaultSite {
        match self.device.gpu() {
            Some(gpu) => gpu.fault_site(self.op, extent),
            None => FaultSite::new(0, 1),
        }
    }

    /// That `x` may be used so beside what the op uses already.
    fn uses(&self, x: &Tensor, access: Access) -> Result<()> {
        if x.kind() == Kind::Value {
            return Ok(()); // which nobody changes
        }
        let (mut used, storage) = (self.used.borrow_mut(), x.storage_id());
        let clashes =
            |(other, before): (usize, Access)| other == storage && before.conflicts_with(access);
        if used.all().any(clashes) {
            return Err(Error::Busy { op: self.op });
        }
        used.add(storage, access).ok_or_else(|| Error::Argument {
            op: self.op,
            problem: format!(
                "uses more than {MOST_USED} parameters, caches and their like at once; split it"
            ),
        })
    }

    /// Puts the kernel of `variant` into the current stream; loads it first where it is new. `None`
    /// launches nothing.
    ///
    /// # Safety
    /// The arguments must be those that the kernel declares, and with them it must access nothing
    /// but elements of tensors whose addresses [`Launcher::ptr`], [`Launcher::mut_ptr`] and
    /// [`Launcher::uninit_ptr`] gave to this call: it can reach all of the GPU's memory, and memory of
    /// the host that the GPU copies from. (The emulator ends a kernel that accesses what was never
    /// allocated.)
    ///
    /// # Errors
    /// [`Error::Cuda`]: [`CudaError::Compile`](crate::CudaError::Compile) with the compiler's log,
    /// [`CudaError::Launch`](crate::CudaError::Launch).
    pub unsafe fn launch<V: Variant>(
        &self,
        variant: &V,
        launch: Option<Launch>,
        arguments: &Arguments,
    ) -> Result<()> {
        let variant = variant.clone();
        self.run(&Plan { variant, launch }, arguments)
    }

    /// Puts the plan's kernel into the current stream, with its arguments.
    pub(crate) fn run<V: Variant>(&self, plan: &Plan<V>, arguments: &Arguments) -> Result<()> {
        let Some(launch) = &plan.launch else {
            return Ok(());
        };
        self.device.count_launch();
        #[cfg(test)]
        super::recorded::note(self.op, &plan.variant);
        match self.device.gpu() {
            Some(gpu) => {
                let stream = stream::raw(self.device, gpu);
                Ok(gpu.launch(&plan.variant, launch, arguments, &stream)?)
            }
            None => Ok(()),
        }
    }

    /// The plan, or the error that names the op and the device.
    pub(crate) fn planned<T>(&self, plan: Result<T, Unplanned>) -> Result<T> {
        plan.map_err(|unplanned| match unplanned {
            Unplanned::DType(dtype) => self.device.no_kernel_for(self.op, dtype),
            Unplanned::Refused(reason) => Error::KernelRefused {
                op: self.op,
                device: self.device.to_string(),
                reason,
            },
        })
    }
}
