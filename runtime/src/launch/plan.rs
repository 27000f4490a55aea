//! Plans: what an op asks of a GPU, as data, and the way from there to the launch.
//!
//! A family's plan is a pure function of its operands' dtypes and layouts: which kernels, on how
//! many CTAs, with how much memory beside the operands. A device that computes nothing plans as the
//! GPU does that it stands for. FLOPs and bytes are not in it: the op's
//! [`Signature`](crate::Signature) tells them, on every device alike.

use meshgrad_kernels::{Dtype, Error as KernelError, Launch};

use crate::{DType, Layout, Result, Tensor, UninitTensor};

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
