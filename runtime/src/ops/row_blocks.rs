//! Tensors that are computed in blocks of rows, such as products of operands that arrive in chunks.

use std::ops::Range;

use meshgrad_error::{bail, ensure};

use super::matmul::{LINEAR, LINEAR_GRAD_INPUT, rows_product};
use crate::cpu::elementwise as cpu;
use crate::launch::copies::{self, CONTIGUOUS};
use crate::launch::elementwise::Target;
use crate::{DType, Device, Result, Shape, Tensor, UninitTensor, for_any};

/// A tensor without sharding whose rows are written block by block. A row is a slice along the last
/// dim; ranges of rows count all other dims. Every row must be written once before
/// [`RowBlocks::finish`].
///
/// On the CPU a row's bits do not depend on its block, so they equal those of the whole op.
///
/// ```
/// use meshgrad_runtime::{DType, Device, Result, RowBlocks, Tensor, ops};
///
/// # fn main() -> Result<()> {
/// let device = Device::cpu();
/// let x = ops::full(&device, &[4, 3], DType::F32, 0.5)?;
/// let w = ops::full(&device, &[2, 3], DType::F32, 2.0)?;
///
/// let mut y = RowBlocks::new(&device, &[4, 2], DType::F32)?;
/// for rows in [0..3, 3..4] {
///     y.linear(rows.clone(), &x.slice(0, rows)?, &w)?;
/// }
/// assert_eq!(y.finish()?.to_vec::<f32>()?, ops::linear(&x, &w)?.to_vec::<f32>()?);
/// # Ok(())
/// # }
/// ```
pub struct RowBlocks {
    /// [rows, columns].
    out: UninitTensor,
    shape: Shape,
}

impl RowBlocks {
    /// Allocates a tensor of `shape`, whose rows have stale values.
    ///
    /// # Errors
    /// For too many dims; for a scalar.
    pub fn new(device: &Device, shape: &[usize], dtype: DType) -> Result<RowBlocks> {
        let Some((columns, leading)) = shape.split_last() else {
            bail!(Invalid, "row blocks: a scalar has no rows; pass a shape of at least one dim");
        };
        let rows = leading.iter().product();
        Ok(RowBlocks {
            out: UninitTensor::new(device, Shape::new(&[rows, *columns])?, dtype)?,
            shape: Shape::new(shape)?,
        })
    }

    /// Copies `x` [.., columns] to these rows.
    ///
    /// # Errors
    /// For another number of rows or columns.
    pub fn copy(&mut self, rows: Range<usize>, x: &Tensor) -> Result<()> {
        let x = self.as_rows(&rows, &x.local())?;
        let (call, elements) = (CONTIGUOUS.call(&[&x])?, self.elements(&rows));
        let out = &mut self.out;
        if call.device().is_gpu() {
            return call.launch(|gpu| copies::copy(gpu, &x, &Target::part(gpu, out, 0, rows)?));
        }
        call.compute(|| for_any!(x.dtype(), T => cpu::copy::<T>(&x, &mut out.slice()?[elements])))
    }

    /// Writes `x` w^T to these rows: [`ops::linear`](crate::ops::linear) of `x` [.., I] and `w`
    /// [columns, I].
    ///
    /// # Errors
    /// As [`ops::linear`](crate::ops::linear); for another number of rows or columns.
    pub fn linear(&mut self, rows: Range<usize>, x: &Tensor, w: &Tensor) -> Result<()> {
        let (x, w) = (x.local(), w.local());
        let call = LINEAR.call(&[&x, &w])?;
        self.check(&rows, call.rows(), w.shape()[0])?;
        rows_product(&call, [&x, &w.transpose(0, 1)?], &mut self.out, rows.start)
    }

    /// Writes `dy` w to these rows: [`ops::linear_grad_input`](crate::ops::linear_grad_input) of
    /// `dy` [.., O] and `w` [O, columns].
    ///
    /// # Errors
    /// As [`RowBlocks::linear`].
    pub fn linear_grad_input(&mut self, rows: Range<usize>, dy: &Tensor, w: &Tensor) -> Result<()> {
        let (dy, w) = (dy.local(), w.local());
        let call = LINEAR_GRAD_INPUT.call(&[&dy, &w])?;
        self.check(&rows, call.rows(), w.shape()[1])?;
        rows_product(&call, [&dy, &w], &mut self.out, rows.start)
    }

    /// The finished tensor, without sharding.
    ///
    /// # Errors
    /// As [`ops::reshape`](crate::ops::reshape).
    pub fn finish(self) -> Result<Tensor> {
        super::reshape(&self.out.finish(), &self.shape)
    }

    /// `x` as [rows, columns].
    fn as_rows(&self, rows: &Range<usize>, x: &Tensor) -> Result<Tensor> {
        let columns = x.extent(-1)?;
        let own = x.shape()[..x.shape().len() - 1].iter().product();
        self.check(rows, own, columns)?;
        super::reshape(x, &[own, columns])
    }

    fn elements(&self, rows: &Range<usize>) -> Range<usize> {
        let columns = self.out.shape()[1];
        rows.start * columns..rows.end * columns
    }

    /// Checks a block of `count` rows of `width` columns for the range `rows`.
    fn check(&self, rows: &Range<usize>, count: usize, width: usize) -> Result<()> {
        let (all, columns) = (self.out.shape()[0], self.out.shape()[1]);
        let fits = rows.start <= rows.end && rows.end <= all;
        ensure!(
            fits && (count, width) == (rows.len(), columns),
            Invalid,
            "row blocks: a block of shape [{count}, {width}] cannot be rows {rows:?} of [{all}, \
             {columns}]"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops;

    /// Blocks of any sizes have the bits of the whole product.
    #[test]
    fn blocks_have_the_bits_of_the_whole() {
        let device = Device::cpu();
        for dtype in [DType::F32, DType::BF16] {
            let numbered = |shape: &[usize], step: f32| {
                let count: usize = shape.iter().product();
                let values: Vec<f32> = (0..count).map(|i| (i as f32 * step).sin()).collect();
                let x = Tensor::from_slice(&device, shape, &values).unwrap();
                ops::cast(&x, dtype).unwrap()
            };
            let (x, w, dy) = (
                numbered(&[1, 37, 50], 0.3),
                numbered(&[19, 50], 0.7),
                numbered(&[1, 37, 19], 0.9),
            );
            let bits = |x: &Tensor| ops::cast(x, DType::F32).unwrap().to_vec::<f32>().unwrap();
            for ends in [vec![37], vec![1, 37], vec![5, 6, 30, 37]] {
                let mut y = RowBlocks::new(&device, &[1, 37, 19], dtype).unwrap();
                let mut dx = RowBlocks::new(&device, &[1, 37, 50], dtype).unwrap();
                let mut copy = RowBlocks::new(&device, &[37, 50], dtype).unwrap();
                let mut start = 0;
                for end in ends {
                    let part = |x: &Tensor| x.slice(1, start..end).unwrap();
                    y.linear(start..end, &part(&x), &w).unwrap();
                    dx.linear_grad_input(start..end, &part(&dy), &w).unwrap();
                    copy.copy(start..end, &part(&x)).unwrap();
                    start = end;
                }
                let whole = ops::linear(&x, &w).unwrap();
                assert_eq!(bits(&y.finish().unwrap()), bits(&whole));
                let whole = ops::linear_grad_input(&dy, &w).unwrap();
                assert_eq!(bits(&dx.finish().unwrap()), bits(&whole));
                assert_eq!(bits(&copy.finish().unwrap()), bits(&x));
            }
        }
    }

    #[test]
    fn a_block_of_another_size_is_an_error() {
        let device = Device::cpu();
        let x = ops::full(&device, &[3, 4], DType::F32, 1.0).unwrap();
        let mut y = RowBlocks::new(&device, &[5, 4], DType::F32).unwrap();
        let error = y.copy(3..6, &x).unwrap_err().to_string();
        assert!(error.contains("[3, 4] cannot be rows 3..6 of [5, 4]"), "{error}");
        assert!(y.copy(0..2, &x).is_err());
        assert!(y.linear(0..3, &x, &x).is_err());
    }
}
