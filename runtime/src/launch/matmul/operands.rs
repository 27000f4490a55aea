//! Where operands and results of products lie.

use std::ops::Range;

use meshgrad_kernels::gemm::{Order, Output};

use crate::launch::copies::contiguous_copy;
use crate::launch::{Launcher, Operand};
use crate::{DType, Result, Tensor, UninitTensor};

/// An operand: a matrix or a batch of them, \[.., rows, columns\].
pub(crate) struct Matrices {
    pub(in crate::launch) tensor: Tensor,
    pub(in crate::launch) lie: Lie,
}

impl Matrices {
    /// `x` \[.., rows, columns\]: as it lies where a kernel can read that, otherwise a copy.
    pub(crate) fn new(x: &Tensor) -> Result<Matrices> {
        if let Some(lie) = Lie::of(&Operand::of(x)) {
            let tensor = x.clone();
            return Ok(Matrices { tensor, lie });
        }
        Matrices::copied(x)
    }

    /// As [`Matrices::new`], but row by row: a copy of what lies column by column.
    pub(crate) fn row_major(x: &Tensor) -> Result<Matrices> {
        let matrices = Matrices::new(x)?;
        match matrices.lie.order {
            Order::RowMajor => Ok(matrices),
            Order::ColumnMajor => Matrices::copied(x),
        }
    }

    fn copied(x: &Tensor) -> Result<Matrices> {
        let tensor = contiguous_copy(x)?;
        let lie = Lie::of(&Operand::of(&tensor));
        let lie = lie.expect("a kernel can read matrices that lie row by row");
        Ok(Matrices { tensor, lie })
    }

    pub(super) fn part(&self, gpu: &Launcher<'_>) -> Result<Part> {
        Ok(Part {
            address: gpu.ptr(&self.tensor)?,
            lie: self.lie,
        })
    }
}

/// A matrix in memory, row by row, of which products take and give parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    pub(crate) address: u64,
    pub(crate) dtype: DType,
    pub(crate) columns: usize,
    /// From a row to the next, in elements.
    pub(crate) leading: usize,
    /// Whether it begins at a multiple of 16 bytes.
    pub(crate) aligned: bool,
}

impl Lines {
    /// A contiguous tensor that is read, as \[rows, its last dim\].
    pub(crate) fn of(gpu: &Launcher<'_>, x: &Tensor) -> Result<Lines> {
        Lines::at(gpu.ptr(x)?, x)
    }

    /// A contiguous tensor that is changed, as \[rows, its last dim\].
    pub(crate) fn changed(gpu: &Launcher<'_>, into: &Tensor) -> Result<Lines> {
        Lines::at(gpu.mut_ptr(into)?, into)
    }

    fn at(address: u64, x: &Tensor) -> Result<Lines> {
        let columns = x.extent(-1)?;
        Ok(Lines {
            address,
            dtype: x.dtype(),
            columns,
            leading: columns,
            aligned: Operand::of(x).is_aligned(),
        })
    }

    /// Some of its rows.
    pub(crate) fn part(&self, rows: &Range<usize>) -> Part {
        let (address, aligned) = self.row(rows.start);
        let leading = if rows.len() > 1 { self.leading } else { 0 };
        Part {
            address,
            lie: Lie {
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

    /// Its first few rows and columns.
    pub(crate) fn corner(&self, rows: usize, columns: usize) -> Part {
        Lines { columns, ..*self }.part(&(0..rows))
    }

    /// Where a row begins, and whether at a multiple of 16 bytes.
    fn row(&self, row: usize) -> (u64, bool) {
        let bytes = self.dtype.bytes(row * self.leading);
        let aligned = self.aligned && bytes.is_multiple_of(16);
        (self.address + bytes as u64, aligned)
    }
}

/// An operand of a product in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(super) address: u64,
    pub(super) lie: Lie,
}

impl Part {
    /// Rows as columns: the same memory.
    pub(crate) fn transposed(self) -> Part {
        let lie = self.lie;
        let order = match lie.order {
            Order::RowMajor => Order::ColumnMajor,
            Order::ColumnMajor => Order::RowMajor,
        };
        Part {
            lie: Lie {
                rows: lie.columns,
                columns: lie.rows,
                order,
                ..lie
            },
            ..self
        }
    }
}

/// How the matrices of an operand lie: all that a plan knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::launch) struct Lie {
    pub(in crate::launch) dtype: DType,
    pub(in crate::launch) rows: usize,
    pub(in crate::launch) columns: usize,
    /// How many matrices.
    pub(in crate::launch) count: usize,
    /// Row by row or column by column.
    pub(in crate::launch) order: Order,
    /// From a row to the next (from a column, if column by column).
    pub(in crate::launch) leading: u64,
    /// From a matrix to the next.
    pub(in crate::launch) batch: u64,
    pub(super) aligned: bool,
}

impl Lie {
    /// `None` where no kernel can read it so.
    pub(in crate::launch) fn of(x: &Operand) -> Option<Lie> {
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
        // A stride that is never taken need not be aligned.
        let leading = if lines > 1 { leading } else { 0 };
        Some(Lie {
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

/// How far the matrices of a batch lie apart, if equally far; 0 for one.
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

/// Where a product goes.
pub(crate) struct Product {
    pub(in crate::launch) address: u64,
    pub(in crate::launch) sums: Sums,
}

/// What becomes of the sums: all that a plan knows of where a product goes.
#[derive(Clone, Copy, Debug)]
pub(in crate::launch) struct Sums {
    pub(in crate::launch) dtype: DType,
    pub(in crate::launch) adds: bool,
    pub(in crate::launch) aligned: bool,
    /// From a row to the next, in elements; `None` where rows lie side by side.
    pub(in crate::launch) leading: Option<usize>,
}

impl Sums {
    /// Parts in a workspace.
    pub(super) const OF_PARTS: Sums = Sums {
        dtype: DType::F32,
        adds: false,
        aligned: true,
        leading: None,
    };

    pub(super) fn output(&self) -> Output {
        match (self.dtype, self.adds) {
            (DType::BF16, _) => Output::Bf16,
            (_, false) => Output::F32,
            (_, true) => Output::AddF32,
        }
    }
}

impl Product {
    /// The whole of a tensor in the making.
    pub(crate) fn uninit(gpu: &Launcher<'_>, c: &UninitTensor) -> Result<Product> {
        Ok(Product {
            address: gpu.uninit_ptr(c)?,
            sums: Sums {
                dtype: c.dtype(),
                adds: false,
                aligned: Operand::uninit(c).is_aligned(),
                leading: None,
            },
        })
    }

    /// Added to `into`, or in the place of what is there where that is `empty`.
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

    /// Row `row` of `into` and those below; added to what is there, if it `adds`.
    pub(crate) fn lines(into: &Lines, row: usize, adds: bool) -> Product {
        let (address, aligned) = into.row(row);
        Product {
            address,
            sums: Sums {
                dtype: into.dtype,
                adds,
                aligned,
                leading: Some(into.leading),
            },
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
    fn matrices_are_read_as_they_lie() {
        let x = operand(DType::F32, &[2, 3, 4, 5], 0);
        let straight = Lie::of(&x).unwrap();
        assert_eq!((straight.order, straight.leading), (Order::RowMajor, 5));
        assert_eq!((straight.count, straight.batch), (6, 20));

        let turned = x.layout.transpose(2, 3).unwrap();
        let turned = Lie::of(&Operand {
            layout: turned,
            ..x
        })
        .unwrap();
        assert_eq!((turned.order, turned.leading), (Order::ColumnMajor, 5));
        assert_eq!((turned.rows, turned.columns), (5, 4));

        // Heads between rows: the matrices of a batch lie unequally far apart.
        let heads = x.layout.transpose(0, 2).unwrap();
        assert_eq!(Lie::of(&Operand { layout: heads, ..x }), None);
    }

    /// Where a part begins decides, not where the whole does.
    #[test]
    fn parts_of_matrices() {
        let whole = Lines {
            address: 4096,
            dtype: DType::BF16,
            columns: 20,
            leading: 20,
            aligned: true,
        };
        let [even, odd] = [2..5, 1..5].map(|rows| whole.part(&rows));
        assert_eq!((even.address, odd.address), (4096 + 80, 4096 + 40));
        assert!(even.lie.aligned && !odd.lie.aligned);
        let turned = even.transposed();
        assert_eq!((turned.lie.rows, turned.lie.columns), (20, 3));
        assert_eq!(turned.lie.order, Order::ColumnMajor);
        assert_eq!(whole.corner(1, 4).lie.leading, 0);
    }
}
