//! The launcher, through which an op launches its GPU kernels.

mod many;

use std::cell::RefCell;

use meshgrad_error::error;
use meshgrad_kernels::faults::FaultSite;
use meshgrad_kernels::gemm::Chip;
use meshgrad_kernels::{In, Launch, Out, Variant};

use super::plan::{Plan, PlanError};
use crate::core::storage::busy;
use crate::core::stream;
use crate::core::stream_uses::Access;
use crate::driver::{Gpu, RawStream};
use crate::{Call, Device, Kind, Result, Tensor, UninitTensor};

impl Call {
    /// Counts the op, and launches its kernels on a GPU. On a meta device launches are only
    /// counted. docs/kernels.md shows how to write a kernel.
    ///
    /// # Errors
    /// The error of `kernels`.
    pub fn launch(&self, kernels: impl FnOnce(&Launcher<'_>) -> Result<()>) -> Result<()> {
        self.count();
        kernels(&Launcher::new(self.name(), self.device()))
    }
}

/// Launches the kernels of an op on the current stream, and returns the addresses of their
/// operands. On a meta device, launches are only counted. [`Call::launch`] creates a launcher.
pub struct Launcher<'a> {
    op: &'static str,
    device: &'a Device,
    used: RefCell<Used>,
}

/// The maximum number of mutable tensors among the operands of one op.
const MAX_MUTABLE: usize = 16;

/// The mutable storages that an op uses, and the access to each. It allocates no heap memory.
#[derive(Default)]
struct Used {
    storages: [Option<(usize, Access)>; MAX_MUTABLE],
}

impl Used {
    fn all(&self) -> impl Iterator<Item = (usize, Access)> {
        self.storages.iter().copied().flatten()
    }

    /// `None` when it is full.
    fn add(&mut self, storage: usize, access: Access) -> Option<()> {
        let free = self.storages.iter_mut().find(|place| place.is_none())?;
        *free = Some((storage, access));
        Some(())
    }
}

impl<'a> Launcher<'a> {
    pub(crate) fn new(op: &'static str, device: &'a Device) -> Launcher<'a> {
        Launcher { op, device, used: RefCell::default() }
    }

    /// The op's name.
    pub(crate) fn op(&self) -> &'static str {
        self.op
    }

    /// The number of multiprocessors of the GPU.
    pub fn multiprocessors(&self) -> u32 {
        let gpu = self.device.properties().gpu.as_ref();
        gpu.map_or(1, |gpu| gpu.multiprocessors)
    }

    /// What the choice of a matrix product's kernel depends on.
    pub(crate) fn chip(&self) -> Chip {
        let gpu = self.device.properties().gpu.as_ref();
        Chip {
            multiprocessors: self.multiprocessors(),
            warpgroup_products: gpu.is_some_and(|gpu| gpu.has_warpgroup_products()),
        }
    }

    /// The address of the first element of `x`, for a kernel that reads it.
    ///
    /// # Errors
    /// When this op or work on another stream writes the storage of `x`; for more than 16 mutable
    /// tensors.
    pub fn ptr(&self, x: &Tensor) -> Result<In> {
        self.uses(x, Access::Read)?;
        Ok(In(x.address(self.op)?))
    }

    /// The address of the first element of `into`, for a kernel that changes it. Increments the
    /// version.
    ///
    /// # Errors
    /// For a [`Kind::Value`]; when this op or work on another stream already uses the storage; as
    /// for [`Launcher::ptr`].
    pub fn mut_ptr(&self, into: &Tensor) -> Result<Out> {
        self.uses(into, Access::Write)?;
        Ok(Out(into.address_to_write(self.op)?))
    }

    /// The address of the first element of `y`, for the kernels that write it.
    ///
    /// # Errors
    /// Never fails on a GPU.
    pub fn uninit_ptr(&self, y: &UninitTensor) -> Result<Out> {
        Ok(Out(y.address()?))
    }

    /// The site where a kernel of this op reports an index outside of 0..extent
    /// ([`faults`](meshgrad_kernels::faults)). The host gets the error when it next reads values from
    /// this device or synchronizes. This includes kernels in graphs.
    pub fn fault_site(&self, extent: usize) -> FaultSite {
        match self.device.gpu() {
            Some(gpu) => gpu.fault_site(self.op, extent),
            None => FaultSite::new(0, 1),
        }
    }

    /// Checks that the op may use `x` in this way, given the tensors that it already uses.
    fn uses(&self, x: &Tensor, access: Access) -> Result<()> {
        if x.kind() == Kind::Value {
            return Ok(()); // immutable
        }
        let (mut used, storage) = (self.used.borrow_mut(), x.storage_id());
        let clashes =
            |(other, before): (usize, Access)| other == storage && before.conflicts_with(access);
        if used.all().any(clashes) {
            return Err(busy(self.op));
        }
        used.add(storage, access).ok_or_else(|| {
            error!(
                Invalid,
                "{}: uses more than {MAX_MUTABLE} mutable tensors; split the op", self.op
            )
        })
    }

    /// Launches the kernel of `variant` on the current stream, and loads it at first use. If
    /// `launch` is `None`, nothing is launched.
    ///
    /// The arguments have the type that the kernel declares, with addresses from
    /// [`Launcher::ptr`], [`Launcher::mut_ptr`] and [`Launcher::uninit_ptr`]. What the kernel
    /// accesses from there is not checked, as in any GPU code: a kernel that is wrong can change
    /// all of the GPU's memory, and pinned host memory. Run it on the emulator first, which stops a
    /// kernel that accesses unallocated memory.
    ///
    /// # Errors
    /// When the driver's compiler rejects the kernel, with its log; when the launch fails.
    pub fn launch<V: Variant>(
        &self,
        variant: &V,
        launch: Option<Launch>,
        arguments: &V::Arguments,
    ) -> Result<()> {
        let variant = variant.clone();
        self.run(&Plan { variant, launch }, arguments)
    }

    /// Launches the plan's kernel on the current stream.
    pub(crate) fn run<V: Variant>(&self, plan: &Plan<V>, arguments: &V::Arguments) -> Result<()> {
        let Some(launch) = &plan.launch else {
            return Ok(());
        };
        #[cfg(test)]
        super::recorded::note(self.op, &plan.variant);
        self.counted(&|gpu, stream| gpu.launch(&plan.variant, launch, arguments, stream))
    }

    /// Counts a launch, and calls `launch` on a GPU.
    fn counted(&self, launch: &dyn Fn(&Gpu, &RawStream) -> Result<()>) -> Result<()> {
        self.device.count_launch();
        match self.device.gpu() {
            Some(gpu) => launch(gpu, &stream::raw(self.device, gpu)),
            None => Ok(()),
        }
    }

    /// The plan, or an error that names the op and the device.
    pub(crate) fn planned<T>(&self, plan: Result<T, PlanError>) -> Result<T> {
        plan.map_err(|error| match error {
            PlanError::DType(dtype) => self.device.no_kernel_for(self.op, dtype),
            PlanError::Kernel(reason) => error!(
                Invalid,
                "{}: {} has no kernel for these operands: {reason}; split the operands, or copy \
                 them to a CPU device (ops::to_device)",
                self.op,
                self.device
            ),
        })
    }
}
