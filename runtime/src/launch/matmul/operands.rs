//! The operands and results of matrix products.

use std::ops::Range;

use meshgrad_kernels::gemm::{Order, Output};
use meshgrad_kernels::{In, Out};

use crate::launch::copies::contiguous_copy;
use crate::launch::{Launcher, Operand};
use crate::{DType, Result, Tensor, UninitTensor};

/// An operand: a matrix or a batch of them, \[.., rows, columns\].
pub(crate) struct Matrices {
    pub(in crate::launch) tensor: Tensor,
    pub(in crate::launch) layout: MatrixLayout,
}

impl Matrices {
    /// `x` \[.., rows, columns\]; a copy if no kernel can read its layout.
    pub(crate) fn new(x: &Tensor) -> Result<Matrices> {
        if let Some(layout) = MatrixLayout::of(&Operand::of(x)) {
            let tensor = x.clone();
            return Ok(Matrices { tensor, layout });
        }
        Matrices::copied(x)
    }

    /// As [`Matrices::new`], but row-major: copies a column-major operand.
    pub(crate) fn row_major(x: &Tensor) -> Result<Matrices> {
        let matrices = Matrices::new(x)?;
        match matrices.layout.order {
            Order::RowMajor => Ok(matrices),
            Order::ColumnMajor => Matrices::copied(x),
        }
    }

    fn copied(x: &Tensor) -> Result<Matrices> {
        let tensor = contiguous_copy(x)?;
        let layout = MatrixLayout::of(&Operand::of(&tensor));
        let layout = layout.expect("kernels read row-major matrices");
        Ok(Matrices { tensor, layout })
    }

    pub(super) fn part(&self, gpu: &Launcher<'_>) -> Result<Part> {
        Ok(Part { address: gpu.ptr(&self.tensor)?, layout: self.layout })
    }
}

/// A row-major matrix in memory. Its rows, or some of them, are an operand or a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines<P> {
    pub(crate) address: P,
    pub(crate) dtype: DType,
    pub(crate) columns: usize,
    /// Elements between rows.
    pub(crate) leading: usize,
    /// Whether it is 16-byte aligned.
    pub(crate) aligned: bool,
}

impl Lines<In> {
    /// A contiguous input, viewed as \[rows, last dim\].
    pub(crate) fn of(gpu: &Launcher<'_>, x: &Tensor) -> Result<Lines<In>> {
        Lines::at(gpu.ptr(x)?, x)
    }

    /// The operand that consists of these rows.
    pub(crate) fn part(&self, rows: &Range<usize>) -> Part {
        let (bytes, aligned) = self.bytes_to(rows.start);
        let leading = if rows.len() > 1 { self.leading } else { 0 };
        Part {
            address: self.address.byte_add(bytes),
            layout: MatrixLayout {
                dtype: self.dtype,
                rows: rows.len(),
                columns: self.columns,
                count: 1,
                order: Order::RowMajor,
                leading: leading as u64,
                batch: 0,
                aligned,
            },
        }
    }
}

impl Lines<Out> {
    /// A contiguous tensor that the op changes, viewed as \[rows, last dim\].
    pub(crate) fn changed(gpu: &Launcher<'_>, into: &Tensor) -> Result<Lines<Out>> {
        Lines::at(gpu.mut_ptr(into)?, into)
    }

    /// The first `rows` rows and `columns` columns, as an operand of a later kernel.
    pub(crate) fn written(&self, rows: usize, columns: usize) -> Part {
        let written = Lines {
            address: self.address.written(),
            dtype: self.dtype,
            columns,
            leading: self.leading,
            aligned: self.aligned,
        };
        written.part(&(0..rows))
    }
}

impl<P> Lines<P> {
    fn at(address: P, x: &Tensor) -> Result<Lines<P>> {
        let columns = x.extent(-1)?;
        Ok(Lines {
            address,
            dtype: x.dtype(),
            columns,
            leading: columns,
            aligned: Operand::of(x).is_aligned(),
        })
    }

    /// The distance to a row in bytes, and whether the row is 16-byte aligned.
    fn bytes_to(&self, row: usize) -> (u64, bool) {
        let bytes = self.dtype.bytes(row * self.leading);
        let aligned = self.aligned && bytes.is_multiple_of(16);
        (bytes as u64, aligned)
    }
}

/// An operand of a product: its address and layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(super) address: In,
    pub(super) layout: MatrixLayout,
}

impl Part {
    /// The transpose, in the same memory.
    pub(crate) fn transposed(self) -> Part {
        let layout = self.layout;
        let order = match layout.order {
            Order::RowMajor => Order::ColumnMajor,
            Order::ColumnMajor => Order::RowMajor,
        };
        Part {
            layout: MatrixLayout { rows: layout.columns, columns: layout.rows, order, ..layout },
            ..self
        }
    }
}

/// The layout of the matrices of an operand. A plan depends on no other property of the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::launch) struct MatrixLayout {
    pub(in crate::launch) dtype: DType,
    pub(in crate::launch) rows: usize,
    pub(in crate::launch) columns: usize,
    /// The number of matrices.
    pub(in crate::launch) count: usize,
    /// Row-major or column-major.
    pub(in crate::launch) order: Order,
    /// Elements between rows (between columns, if column-major).
    pub(in crate::launch) leading: u64,
    /// Elements between matrices.
    pub(in crate::launch) batch: u64,
    pub(super) aligned: bool,
}

impl MatrixLayout {
    /// `None` if no kernel can read the layout.
    pub(in crate::launch) fn of(x: &Operand) -> Option<MatrixLayout> {
        let (shape, strides) = (x.layout.shape(), x.layout.strides());
        let ([batch @ .., rows, columns], [batch_strides @ .., row_stride, column_stride]) =
            (&shape[..], strides)
        else {
            return None;
        };
        let (order, leading, lines) = match (*row_stride, *column_stride) {
            (leading, 1) => (Order::RowMajor, leading, *rows),
            (1, leading) => (Order::ColumnMajor, leading, *columns),
            _ => return None,
        };
        // The stride of a single row (or column) is never used, so it need not be aligned.
        let leading = if lines > 1 { leading } else { 0 };
        Some(MatrixLayout {
            dtype: x.dtype,
            rows: *rows,
            columns: *columns,
            count: batch.iter().product(),
            order,
            leading: u64::try_from(leading).ok()?,
            batch: u64::try_from(batch_stride(batch, batch_strides)?).ok()?,
            aligned: x.is_aligned(),
        })
    }
}

/// The stride between the matrices of a batch, if it is constant; 0 for one matrix.
fn batch_stride(extents: &[usize], strides: &[isize]) -> Option<isize> {
    let mut stride = None;
    let mut inner = 1;
    let dims = extents.iter().zip(strides).rev();
    for (&extent, &step) in dims.filter(|(extent, _)| **extent != 1) {
        let first = *stride.get_or_insert(step);
        if step != first * inner {
            return None;
        }
        inner *= extent as isize;
    }
    Some(stride.unwrap_or(0))
}

/// The output of a product.
pub(crate) struct Product {
    pub(in crate::launch) address: Out,
    pub(in crate::launch) sums: Sums,
}

/// How a result is stored. A plan depends on no other property of the result.
#[derive(Clone, Copy, Debug)]
pub(in crate::launch) struct Sums {
    pub(in crate::launch) dtype: DType,
    pub(in crate::launch) adds: bool,
    pub(in crate::launch) aligned: bool,
    /// Elements between rows; `None` if rows are contiguous.
    pub(in crate::launch) leading: Option<usize>,
}

impl Sums {
    /// The split-k parts, in a workspace.
    pub(super) const OF_PARTS: Sums =
        Sums { dtype: DType::F32, adds: false, aligned: true, leading: None };

    pub(super) fn output(&self) -> Output {
        match (self.dtype, self.adds) {
            (DType::BF16, _) => Output::Bf16,
            (_, false) => Output::F32,
            (_, true) => Output::AddF32,
        }
    }
}

impl Product {
    /// A whole uninitialized tensor.
    pub(crate) fn uninit(gpu: &Launcher<'_>, c: &UninitTensor) -> Result<Product> {
        Product::rows(gpu, c, 0)
    }

    /// The rows of an uninitialized tensor [.., columns] from `row` on.
    pub(crate) fn rows(gpu: &Launcher<'_>, c: &UninitTensor, row: usize) -> Result<Product> {
        let columns = c.shape().last().copied().unwrap_or(1);
        let offset = c.dtype().bytes(row * columns);
        Ok(Product {
            address: gpu.uninit_ptr(c)?.byte_add(offset as u64),
            sums: Sums {
                dtype: c.dtype(),
                adds: false,
                aligned: Operand::uninit(c).is_aligned() && offset.is_multiple_of(16),
                leading: None,
            },
        })
    }

    /// The product is added to `into`, or overwrites it if `into` is `empty`.
    pub(crate) fn into(gpu: &Launcher<'_>, into: &Tensor, empty: bool) -> Result<Product> {
        Ok(Product {
            address: gpu.mut_ptr(into)?,
            sums: Sums {
                dtype: into.dtype(),
                adds: !empty,
                aligned: Operand::of(into).is_aligned(),
                leading: None,
            },
        })
    }

    /// The product is written to the rows of `into` from `row` on, or added to them if `adds`.
    pub(crate) fn lines(into: &Lines<Out>, row: usize, adds: bool) -> Product {
        let (bytes, aligned) = into.bytes_to(row);
        Product {
            address: into.address.byte_add(bytes),
            sums: Sums { dtype: into.dtype, adds, aligned, leading: Some(into.leading) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Shape};

    fn operand(dtype: DType, shape: &[usize], offset: usize) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), offset);
        Operand { dtype, layout }
    }

    #[test]
    fn strided_matrices_need_no_copy() {
        let x = operand(DType::F32, &[2, 3, 4, 5], 0);
        let straight = MatrixLayout::of(&x).unwrap();
        assert_eq!((straight.order, straight.leading), (Order::RowMajor, 5));
        assert_eq!((straight.count, straight.batch), (6, 20));

        let transposed = x.layout.transpose(2, 3).unwrap();
        let transposed = MatrixLayout::of(&Operand { layout: transposed, ..x }).unwrap();
        assert_eq!((transposed.order, transposed.leading), (Order::ColumnMajor, 5));
        assert_eq!((transposed.rows, transposed.columns), (5, 4));

        // Interleaved heads: the stride between the matrices of the batch is not constant.
        let heads = x.layout.transpose(0, 2).unwrap();
        assert_eq!(MatrixLayout::of(&Operand { layout: heads, ..x }), None);
    }

    #[test]
    fn the_alignment_of_a_part_depends_on_its_own_address() {
        fn whole<P>(address: P) -> Lines<P> {
            Lines { address, dtype: DType::BF16, columns: 20, leading: 20, aligned: true }
        }

        let [aligned, unaligned] = [2..5, 1..5].map(|rows| whole(In(4096)).part(&rows));
        assert_eq!(aligned.address, In(4096 + 80));
        assert_eq!(unaligned.address, In(4096 + 40));
        assert!(aligned.layout.aligned && !unaligned.layout.aligned);
        let transposed = aligned.transposed();
        assert_eq!((transposed.layout.rows, transposed.layout.columns), (20, 3));
        assert_eq!(transposed.layout.order, Order::ColumnMajor);
        assert_eq!(whole(Out(4096)).written(1, 4).layout.leading, 0);
    }
}
