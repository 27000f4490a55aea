//! Plans: what an op asks of a GPU, as data, and the way from there to the launch.
//!
//! A family's plan is a pure function of its operands' dtypes and layouts: which kernels, on how
//! many CTAs, with how much memory beside the operands. A device that computes nothing plans as the
//! GPU does that it stands for. FLOPs and bytes are not in it: the op's
//! [`Signature`](crate::Signature) tells them, on every device alike.

#[cfg(test)]
mod launches;
mod many;

use std::cell::RefCell;

use meshgrad_kernels::faults::FaultSite;
use meshgrad_kernels::{Arguments, Dtype, Error as KernelError, Launch, Variant};

use crate::holds::Access;
use crate::{DType, Device, Error, Kind, Layout, Result, Tensor, UninitTensor, stream};

/// One kernel that an op wants to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan<V> {
    /// Which kernel.
    pub(crate) variant: V,
    /// On how many CTAs and threads; `None` when there is nothing to do.
    pub(crate) launch: Option<Launch>,
}

/// One kernel over the rows of a matrix.
#[derive(Debug)]
pub(crate) struct Rows<V> {
    pub(crate) kernel: Plan<V>,
    pub(crate) rows: u64,
    /// Elements of a row.
    pub(crate) features: u32,
}

/// Why there is no plan.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unplanned {
    /// The family has kernels, but none for this dtype.
    DType(DType),
    /// No kernel can be made for these operands.
    Refused(KernelError),
}

impl From<KernelError> for Unplanned {
    fn from(reason: KernelError) -> Unplanned {
        Unplanned::Refused(reason)
    }
}

/// An operand or result without its memory: all that a plan knows of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
}

impl Operand {
    pub(crate) fn of(x: &Tensor) -> Operand {
        Operand {
            dtype: x.dtype(),
            layout: *x.layout(),
        }
    }

    /// A tensor in the making.
    pub(crate) fn fresh(y: &UninitTensor) -> Operand {
        Operand {
            dtype: y.dtype(),
            layout: Layout::contiguous(*y.shape(), 0),
        }
    }

    /// Whether its first element lies at a multiple of 16, as the widest accesses want it: all
    /// memory begins at one.
    pub(crate) fn is_aligned(&self) -> bool {
        self.dtype.bytes(self.layout.offset()).is_multiple_of(16)
    }
}

/// Whether all are aligned.
pub(crate) fn aligned(operands: &[&Operand]) -> bool {
    operands.iter().all(|operand| operand.is_aligned())
}

/// A float as kernels know it.
pub(crate) fn float(dtype: DType) -> Result<Dtype, Unplanned> {
    match dtype {
        DType::F32 => Ok(Dtype::F32),
        DType::BF16 => Ok(Dtype::Bf16),
        other => Err(Unplanned::DType(other)),
    }
}

/// The most that an index of 32 bits, which goes on by what a CTA does at once, counts to.
pub(crate) const MOST: u32 = i32::MAX as u32;

/// An extent as the kernels of a family take it, `most` at most.
pub(crate) fn extent(
    kernel: &'static str,
    what: &'static str,
    value: usize,
    most: u32,
) -> Result<u32, Unplanned> {
    let fits = u32::try_from(value).ok().filter(|value| *value <= most);
    fits.ok_or(Unplanned::Refused(KernelError::Extent {
        kernel,
        what,
        value,
        least: 0,
        most: most as usize,
    }))
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
        launches::note(self.op, &plan.variant);
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
            Unplanned::DType(dtype) => Error::no_kernel_for(self.op, self.device, dtype),
            Unplanned::Refused(reason) => Error::KernelRefused {
                op: self.op,
                device: self.device.to_string(),
                reason,
            },
        })
    }
}
