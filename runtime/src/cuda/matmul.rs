//! Plans of matrix products.

use meshgrad_kernels::gemm::{GemmArguments, GemmBf16, GemmF32, Order, Output, Tile};

use crate::plan::{Launcher, Plan, aligned};
use crate::{DType, Fresh, Layout, Result, Tensor, ops};

/// An operand: a matrix or a batch of them, stored row by row or column by column.
pub(crate) struct Matrices {
    /// \[.., rows, columns\].
    tensor: Tensor,
    order: Order,
    /// From a row to the next (from a column, if column by column).
    leading: u64,
    /// From a matrix to the next.
    batch: u64,
}

impl Matrices {
    /// `x` \[.., rows, columns\]: as it lies where a kernel can read that, otherwise a copy.
    pub(crate) fn new(x: &Tensor) -> Result<Matrices> {
        match Matrices::of(x) {
            Some(matrices) => Ok(matrices),
            None => {
                let whole = ops::copy(x)?;
                let columns = whole.extent(-1)? as u64;
                Ok(Matrices {
                    batch: whole.extent(-2)? as u64 * columns,
                    tensor: whole,
                    order: Order::RowMajor,
                    leading: columns,
                })
            }
        }
    }

    fn of(x: &Tensor) -> Option<Matrices> {
        let (shape, strides) = (x.shape(), x.layout().strides());
        let [.., rows, columns] = shape[..] else {
            return None;
        };
        let [.., row_stride, column_stride] = *strides else {
            return None;
        };
        let (order, leading) = match (row_stride, column_stride) {
            (leading, 1) => (Order::RowMajor, leading),
            (1, leading) => (Order::ColumnMajor, leading),
            _ => return None,
        };
        // A stride that is never taken need not be aligned.
        let lines = if order == Order::RowMajor {
            rows
        } else {
            columns
        };
        let leading = if lines > 1 { leading } else { 0 };
        Some(Matrices {
            tensor: x.clone(),
            order,
            leading: u64::try_from(leading).ok()?,
            batch: u64::try_from(batch_stride(x.layout())?).ok()?,
        })
    }
}

/// How far the matrices of a batch lie apart, if equally far; 0 for one.
fn batch_stride(layout: &Layout) -> Option<isize> {
    let dims = layout.shape().len() - 2;
    let mut stride = None;
    let mut extents = 1;
    let batch = layout.shape()[..dims].iter().zip(layout.strides());
    for (&extent, &step) in batch.rev().filter(|(extent, _)| **extent != 1) {
        let first = *stride.get_or_insert(step);
        if step != first * extents {
            return None;
        }
        extents *= extent as isize;
    }
    Some(stride.unwrap_or(0))
}

/// Where a product goes: contiguous.
pub(crate) struct Product {
    address: u64,
    dtype: DType,
    adds: bool,
}

impl Product {
    /// The whole of a tensor in the making.
    pub(crate) fn fresh(c: &Fresh) -> Result<Product> {
        Ok(Product {
            address: c.address()?,
            dtype: c.dtype(),
            adds: false,
        })
    }

    /// Added to `into` by `op`, or in the place of what is there where that is `empty`.
    pub(crate) fn into(op: &'static str, into: &Tensor, empty: bool) -> Result<Product> {
        Ok(Product {
            address: into.address_to_write(op)?,
            dtype: into.dtype(),
            adds: !empty,
        })
    }
}

/// c = a b, for each matrix of the batch.
pub(crate) fn product(gpu: &Launcher<'_>, a: &Matrices, b: &Matrices, c: &Product) -> Result<()> {
    let [m, k] = [a.tensor.extent(-2)?, a.tensor.extent(-1)?];
    let n = b.tensor.extent(-1)?;
    let batch = a.tensor.shape()[..a.tensor.shape().len() - 2]
        .iter()
        .product();
    let arguments = GemmArguments {
        a: a.tensor.address()?,
        b: b.tensor.address()?,
        c: c.address,
        m: gpu.u32("m", m)?,
        n: gpu.u32("n", n)?,
        k: gpu.u32("k", k)?,
        lda: a.leading,
        ldb: b.leading,
        ldc: n as u64,
        batch_a: a.batch,
        batch_b: b.batch,
        batch_c: (m * n) as u64,
    };
    let batch = gpu.u32("batch", batch)?;
    match a.tensor.dtype() {
        DType::F32 => product_f32(gpu, [a.order, b.order], &arguments, batch, c),
        DType::BF16 => product_bf16(gpu, [a.order, b.order], &arguments, batch, c),
        other => Err(gpu.no_kernel_for(other)),
    }
}

fn product_f32(
    gpu: &Launcher<'_>,
    [a, b]: [Order; 2],
    arguments: &GemmArguments,
    batch: u32,
    c: &Product,
) -> Result<()> {
    let variant = GemmF32 {
        a,
        b,
        tile: tile(gpu, arguments, batch),
        accumulate: c.adds,
    };
    let plan = Plan {
        launch: variant.launch(arguments.m, arguments.n, batch),
        variant,
    };
    gpu.launch(&plan, &arguments.arguments())
}

fn product_bf16(
    gpu: &Launcher<'_>,
    [a, b]: [Order; 2],
    arguments: &GemmArguments,
    batch: u32,
    c: &Product,
) -> Result<()> {
    let GemmArguments { lda, ldb, ldc, .. } = *arguments;
    let GemmArguments {
        batch_a,
        batch_b,
        batch_c,
        ..
    } = *arguments;
    let steps = [lda, ldb, ldc, batch_a, batch_b, batch_c];
    let variant = GemmBf16 {
        a,
        b,
        tile: tile(gpu, arguments, batch),
        output: match (c.dtype, c.adds) {
            (DType::BF16, _) => Output::Bf16,
            (_, false) => Output::F32,
            (_, true) => Output::AddF32,
        },
        aligned: aligned(&[arguments.a, arguments.b, arguments.c])
            && steps.iter().all(|step| step % 8 == 0),
    };
    let plan = Plan {
        launch: variant.launch(arguments.m, arguments.n, batch),
        variant,
    };
    gpu.launch(&plan, &arguments.arguments())
}

fn tile(gpu: &Launcher<'_>, arguments: &GemmArguments, batch: u32) -> Tile {
    Tile::choose(arguments.m, arguments.n, batch, gpu.multiprocessors())
}
