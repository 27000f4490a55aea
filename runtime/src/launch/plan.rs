//! Plans: the kernels of an op, their launch dimensions, and their workspaces.
//!
//! A plan depends only on the dtypes and layouts of the operands and on the properties of the GPU,
//! so a meta device makes the same plans as the GPU that it models. FLOPs and bytes are not part of
//! a plan: they follow from the op's [`Signature`](crate::Signature), on every device.

use meshgrad_error::error;
use meshgrad_kernels::{Dtype, Launch};

use crate::{DType, Layout, Result, Tensor, UninitTensor};

/// One kernel launch of an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan<V> {
    /// The kernel.
    pub(crate) variant: V,
    /// Its grid and block; `None` when there is nothing to do.
    pub(crate) launch: Option<Launch>,
}

impl<V> Plan<V> {
    pub(crate) fn new(launch: Option<Launch>, variant: V) -> Plan<V> {
        Plan { variant, launch }
    }
}

/// One kernel launch over the rows of a matrix.
#[derive(Debug)]
pub(crate) struct Rows<V> {
    pub(crate) kernel: Plan<V>,
    pub(crate) rows: u64,
    /// Elements per row.
    pub(crate) features: u32,
}

/// Why an op cannot be planned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PlanError {
    /// The family has no kernel for this dtype.
    DType(DType),
    /// The kernels do not support these operands.
    Kernel(meshgrad_error::Error),
}

impl From<meshgrad_error::Error> for PlanError {
    fn from(reason: meshgrad_error::Error) -> PlanError {
        PlanError::Kernel(reason)
    }
}

/// The dtype and layout of an operand or result. A plan depends on no other property of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
}

impl Operand {
    pub(crate) fn of(x: &Tensor) -> Operand {
        Operand { dtype: x.dtype(), layout: *x.layout() }
    }

    pub(crate) fn uninit(y: &UninitTensor) -> Operand {
        Operand { dtype: y.dtype(), layout: Layout::contiguous(*y.shape(), 0) }
    }

    /// Whether its first element is 16-byte aligned, as the widest accesses require. Storages are
    /// aligned, so this depends on the offset only.
    pub(crate) fn is_aligned(&self) -> bool {
        self.dtype.bytes(self.layout.offset()).is_multiple_of(16)
    }
}

/// Whether all operands are aligned.
pub(crate) fn aligned(operands: &[&Operand]) -> bool {
    operands.iter().all(|operand| operand.is_aligned())
}

/// The kernels' dtype of a float.
pub(crate) fn float(dtype: DType) -> Result<Dtype, PlanError> {
    match dtype {
        DType::F32 => Ok(Dtype::F32),
        DType::BF16 => Ok(Dtype::Bf16),
        other => Err(PlanError::DType(other)),
    }
}

/// The maximum extent of kernels with 32-bit indices. It leaves room to add the step of a loop.
pub(crate) const MAX_EXTENT: u32 = i32::MAX as u32;

/// `value` as a 32-bit extent of a kernel.
///
/// # Errors
/// [`PlanError::Kernel`] when it is larger than `most`.
pub(crate) fn extent(
    kernel: &'static str,
    what: &'static str,
    value: usize,
    most: u32,
) -> Result<u32, PlanError> {
    let fits = u32::try_from(value).ok().filter(|value| *value <= most);
    fits.ok_or_else(|| {
        error!(Unsupported, "{kernel}: {what} = {value} is not in 0..={most}").into()
    })
}
