//! Where an op adds its result to what others left.

use crate::{DType, Device, Kind, Result, Shape, Tensor, ops};

/// A buffer that sums meet in, and whether it is still empty.
///
/// An empty buffer holds stale values: the first op writes over them instead of adding, so that
/// nobody has to clear it.
#[derive(Clone, Debug)]
pub struct Accumulator {
    buffer: Tensor,
    empty: bool,
}

impl Accumulator {
    /// A buffer of its own, empty.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(device: &Device, shape: Shape, dtype: DType) -> Result<Accumulator> {
        let fresh = crate::UninitTensor::with_kind(device, shape, dtype, Kind::Gradient)?;
        Ok(Accumulator {
            buffer: fresh.finish(),
            empty: true,
        })
    }

    /// A buffer that somebody else owns, empty: a part of one flat buffer, say.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) when it is not contiguous;
    /// [`Error::Immutable`](crate::Error::Immutable) when it must not change.
    pub fn over(buffer: Tensor) -> Result<Accumulator> {
        buffer.contiguous_range("accumulator")?;
        if buffer.kind() == Kind::Value {
            return Err(crate::Error::Immutable { op: "accumulator" });
        }
        Ok(Accumulator {
            buffer,
            empty: true,
        })
    }

    /// The buffer; stale while [`Accumulator::is_empty`].
    pub fn buffer(&self) -> &Tensor {
        &self.buffer
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.empty
    }

    /// Forgets the sum.
    pub fn clear(&mut self) {
        self.empty = true;
    }

    /// Says that the buffer now holds a sum.
    pub fn filled(&mut self) {
        self.empty = false;
    }

    /// Lets `op` add to the buffer seen under another shape of as many elements.
    ///
    /// # Errors
    /// [`Error::Reshape`](crate::Error::Reshape) when the numbers of elements differ; what `op`
    /// returns.
    pub fn viewed<E: From<crate::Error>>(
        &mut self,
        shape: &Shape,
        op: impl FnOnce(&mut Accumulator) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.buffer.shape() == shape {
            return op(self);
        }
        // A contiguous buffer can be seen under any shape of as many elements.
        let view = self
            .buffer
            .view(shape)?
            .unwrap_or_else(|| self.buffer.clone());
        let mut viewed = Accumulator {
            buffer: view,
            empty: self.empty,
        };
        op(&mut viewed)?;
        self.empty = viewed.empty;
        Ok(())
    }

    /// The sum; zeros when nothing was added.
    ///
    /// # Errors
    /// [`Error::Busy`](crate::Error::Busy) while someone reads or writes the buffer.
    pub fn total(&mut self) -> Result<&Tensor> {
        if self.empty {
            ops::fill_into(&self.buffer, 0.0)?;
            self.empty = false;
        }
        Ok(&self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_writes_and_the_next_add() {
        let device = Device::cpu();
        let x = ops::full(&device, &[2], DType::F32, 3.0).unwrap();
        let mut sum = Accumulator::new(&device, Shape::new(&[2]).unwrap(), DType::F32).unwrap();
        for round in 1..3 {
            ops::add_into(&x, &mut sum).unwrap();
            assert_eq!(
                sum.total().unwrap().to_vec::<f32>().unwrap(),
                [3.0 * round as f32; 2]
            );
        }
        sum.clear();
        assert_eq!(sum.total().unwrap().to_vec::<f32>().unwrap(), [0.0; 2]);
    }

    #[test]
    fn values_and_views_with_gaps_are_refused() {
        let device = Device::cpu();
        assert!(Accumulator::over(ops::full(&device, &[2], DType::F32, 0.0).unwrap()).is_err());
        let flat = Tensor::zeros(&device, &[4, 4], DType::F32, Kind::Gradient).unwrap();
        assert!(Accumulator::over(flat.transpose(0, 1).unwrap()).is_err());
        assert!(Accumulator::over(flat.slice(0, 1..3).unwrap()).is_ok());
    }
}
