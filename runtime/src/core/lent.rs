//! Tensors lent to work that outlives the call that starts it, such as a collective.
//!
//! A [`ReadGuard`](crate::ReadGuard) lives on the stack of an op. A loan owns its storage instead,
//! so it can be handed to another thread. The rule is the same: many readers or one writer.
//!
//! On a GPU, only a [`StreamWork`](crate::StreamWork) can borrow tensors. Other streams cannot use
//! a borrowed tensor until the work is waited for. So keep the loan until then, and do not pass its
//! slices to other work.

use std::ops::Range;

use meshgrad_error::ensure;

use crate::core::gpu_slice::{GpuSlice, GpuSliceMut};
use crate::core::storage::{OwnedRead, OwnedWrite, not_on_host};
use crate::core::stream;
use crate::core::stream_uses::Access;
use crate::{DType, Element, Result, Tensor, UninitTensor};

impl Tensor {
    /// Lends this contiguous tensor for reading by `op`, whose work outlives the call. The storage
    /// cannot be written until the loan is dropped.
    ///
    /// # Errors
    /// When it is not contiguous; on a meta device; on a GPU, except inside
    /// [`StreamWork::begin`](crate::StreamWork::begin) and
    /// [`StreamWork::run`](crate::StreamWork::run); while the storage is being written.
    pub fn lend(&self, op: &'static str) -> Result<Lent> {
        let range = self.contiguous_range(op)?;
        self.lend_to_stream(Access::Read, op)?;
        Ok(Lent { borrow: OwnedRead::new(self.storage().clone())?, dtype: self.dtype(), range })
    }

    /// Lends this contiguous tensor for writing by `op`, whose work outlives the call. The storage
    /// cannot be used until the loan is dropped or finished. Increments the version.
    ///
    /// # Errors
    /// As [`Tensor::lend`]; for a [`Kind::Value`](crate::Kind::Value); while the storage is in use.
    pub fn lend_mut(&self, op: &'static str) -> Result<LentMut> {
        let range = self.contiguous_range(op)?;
        self.lend_to_stream(Access::Write, op)?;
        Ok(LentMut {
            borrow: OwnedWrite::new(self.storage().clone(), op)?,
            tensor: self.clone(),
            range,
        })
    }

    /// Lends this contiguous tensor for writing, and `input` for reading, to one `op` whose work
    /// outlives the call. `input` has the storage and dtype of this tensor, and the two may
    /// overlap. Otherwise as [`Tensor::lend_mut`].
    ///
    /// # Errors
    /// As [`Tensor::lend_mut`]; when `input` has another storage or dtype.
    pub fn lend_in_place(&self, input: &Tensor, op: &'static str) -> Result<LentInPlace> {
        ensure!(
            (input.storage_id(), input.dtype()) == (self.storage_id(), self.dtype()),
            Invalid,
            "{op}: {input} is not a part of the storage of {self}; pass a view of it"
        );
        let (input, output) = (input.contiguous_range(op)?, self.contiguous_range(op)?);
        self.lend_to_stream(Access::Write, op)?;
        Ok(LentInPlace {
            borrow: OwnedWrite::new(self.storage().clone(), op)?,
            tensor: self.clone(),
            input,
            output,
        })
    }

    fn lend_to_stream(&self, access: Access, op: &'static str) -> Result<()> {
        match self.device().gpu() {
            Some(_) if stream::in_stream_work(self.device()) => {
                stream::record_use(self.storage(), access, op)
            }
            // Without a `StreamWork`, nothing would end the use.
            Some(_) => Err(not_on_host(self.device())),
            None => Ok(()),
        }
    }
}

impl UninitTensor {
    /// Lends this tensor to `op`, whose work writes it and outlives the call.
    ///
    /// # Errors
    /// On a GPU, except inside [`StreamWork::begin`](crate::StreamWork::begin) and
    /// [`StreamWork::run`](crate::StreamWork::run).
    pub fn lend_mut(self, op: &'static str) -> Result<LentMut> {
        let tensor = self.finish();
        tensor.lend_to_stream(Access::Write, op)?;
        Ok(LentMut {
            borrow: OwnedWrite::of_new(tensor.storage().clone()),
            range: 0..tensor.elements(),
            tensor,
        })
    }
}

fn gpu_slice(tensor: &Tensor, range: Range<usize>) -> GpuSlice<'_> {
    GpuSlice::new(tensor.storage(), tensor.dtype(), range)
}

/// A contiguous tensor lent for reading, by [`Tensor::lend`].
pub struct Lent {
    borrow: OwnedRead,
    dtype: DType,
    /// The range of the tensor's elements in its storage.
    range: Range<usize>,
}

impl Lent {
    /// The elements in row-major order.
    ///
    /// # Errors
    /// For another dtype; on a GPU.
    pub fn slice<T: Element>(&self) -> Result<&[T]> {
        expect_dtype(self.dtype, T::DTYPE)?;
        Ok(&self.borrow.slice()?[self.range.clone()])
    }

    /// The elements, for work on a GPU.
    pub fn gpu_slice(&self) -> GpuSlice<'_> {
        GpuSlice::new(self.borrow.storage(), self.dtype, self.range.clone())
    }
}

/// A contiguous tensor lent for writing, by [`Tensor::lend_mut`] or [`UninitTensor::lend_mut`].
pub struct LentMut {
    borrow: OwnedWrite,
    tensor: Tensor,
    range: Range<usize>,
}

impl LentMut {
    /// The elements in row-major order, for writing.
    ///
    /// # Errors
    /// For another dtype; on a GPU.
    pub fn slice<T: Element>(&mut self) -> Result<&mut [T]> {
        expect_dtype(self.tensor.dtype(), T::DTYPE)?;
        Ok(&mut self.borrow.slice()?[self.range.clone()])
    }

    /// The elements, for work on a GPU that writes them.
    pub fn gpu_slice(&mut self) -> GpuSliceMut<'_> {
        GpuSliceMut::new(gpu_slice(&self.tensor, self.range.clone()))
    }

    /// Ends the loan and returns the tensor.
    pub fn finish(self) -> Tensor {
        self.tensor
    }
}

/// Two contiguous parts of a storage, one lent for reading and one for writing, by
/// [`Tensor::lend_in_place`].
pub struct LentInPlace {
    borrow: OwnedWrite,
    tensor: Tensor,
    input: Range<usize>,
    output: Range<usize>,
}

impl LentInPlace {
    /// The elements of the storage, and the ranges of the input and of the output among them.
    ///
    /// # Errors
    /// For another dtype; on a GPU.
    pub fn slice<T: Element>(&mut self) -> Result<(&mut [T], Range<usize>, Range<usize>)> {
        expect_dtype(self.tensor.dtype(), T::DTYPE)?;
        let (input, output) = (self.input.clone(), self.output.clone());
        Ok((self.borrow.slice()?, input, output))
    }

    /// The input and the output, for work on a GPU that reads the one and writes the other.
    pub fn gpu_slices(&mut self) -> (GpuSlice<'_>, GpuSliceMut<'_>) {
        let [input, output] = [&self.input, &self.output];
        let [input, output] = [input, output].map(|it| gpu_slice(&self.tensor, it.clone()));
        (input, GpuSliceMut::new(output))
    }

    /// Ends the loan and returns the tensor that was lent for writing.
    pub fn finish(self) -> Tensor {
        self.tensor
    }
}

pub(super) fn expect_dtype(actual: DType, asked: DType) -> Result<()> {
    ensure!(
        actual == asked,
        Invalid,
        "tensor is {actual}, but was accessed as {asked}; cast it first"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::storage::immutable;
    use crate::{Device, Kind, assert_error, ops};

    /// A loan follows the rule of borrows until it ends, on any thread.
    #[test]
    fn a_loan_excludes_conflicting_uses_until_it_ends() {
        let device = Device::cpu();
        let cache = Tensor::zeros(&device, &[4], DType::F32, Kind::Cache).unwrap();

        let (first, second) = (cache.lend("test").unwrap(), cache.lend("test").unwrap());
        assert!(cache.to_vec::<f32>().is_ok());
        assert!(cache.lend_mut("test").is_err());
        assert_error(ops::fill_into(&cache, 1.0), "the storage is in use");
        drop((first, second));

        let mut loan = cache.slice(0, 1..3).unwrap().lend_mut("test").unwrap();
        assert_error(cache.lend("test"), "the storage is in use");
        assert_error(cache.to_vec::<f32>(), "the storage is in use");
        let returned = std::thread::spawn(move || {
            loan.slice::<f32>().unwrap().fill(2.0);
            loan.finish()
        });
        assert_eq!(returned.join().unwrap().to_vec::<f32>().unwrap(), [2.0; 2]);
        assert_eq!(cache.to_vec::<f32>().unwrap(), [0.0, 2.0, 2.0, 0.0]);
        assert_eq!(cache.version(), 1);
    }

    #[test]
    fn parts_of_a_storage_are_lent_together() {
        let device = Device::cpu();
        let buffer = Tensor::zeros(&device, &[6], DType::I32, Kind::Cache).unwrap();
        let (input, output) = (buffer.slice(0, 1..2), buffer.slice(0, 3..6));
        let (input, output) = (input.unwrap(), output.unwrap());
        ops::fill_into(&input, 7.0).unwrap();

        let mut loan = output.lend_in_place(&input, "test").unwrap();
        assert_error(buffer.to_vec::<i32>(), "the storage is in use");
        let (all, from, to) = loan.slice::<i32>().unwrap();
        assert_eq!((all.len(), from.clone(), to.clone()), (6, 1..2, 3..6));
        let value = all[from.start];
        all[to].fill(value);
        assert!(loan.slice::<f32>().is_err());
        drop(loan.finish());
        assert_eq!(buffer.to_vec::<i32>().unwrap(), [0, 7, 0, 7, 7, 7]);

        let other = Tensor::zeros(&device, &[6], DType::I32, Kind::Cache).unwrap();
        assert!(other.lend_in_place(&input, "test").is_err());
    }

    #[test]
    fn a_value_is_lent_for_reading_only() {
        let device = Device::cpu();
        let value = Tensor::from_slice(&device, &[2, 2], &[1i32, 2, 3, 4]).unwrap();
        let loan = value.lend("test").unwrap();
        assert_eq!(loan.slice::<i32>().unwrap(), [1, 2, 3, 4]);
        assert_error(loan.slice::<f32>(), "but was accessed as");
        assert_eq!(value.lend_mut("test").err(), Some(immutable("test")));
        assert!(value.transpose(0, 1).unwrap().lend("test").is_err());
        let meta = Device::meta(device.properties());
        let shapes = ops::full(&meta, &[2], DType::F32, 0.0).unwrap();
        assert_error(shapes.lend("test"), "have shapes but no values");
    }
}
