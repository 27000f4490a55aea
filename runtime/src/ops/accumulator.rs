//! Accumulators: buffers that ops add their results to.

use meshgrad_error::{bail, error};

use crate::core::arguments::indexed::IndexRange;
use crate::core::storage::immutable;
use crate::{Call, DType, Device, Kind, Result, Shape, ShardedShape, Signature, Tensor, ops};

/// A buffer that ops add to, and whether it is empty.
///
/// An empty buffer holds stale values. The first op overwrites them instead of adding, so the
/// buffer need not be filled with zeros.
#[derive(Clone, Debug)]
pub struct Accumulator {
    buffer: Tensor,
    empty: bool,
    /// Whether the buffer had its sharding before anything was added.
    is_sharded: bool,
    /// The shape of what is added, if it is known before.
    shape: Option<ShardedShape>,
}

impl Accumulator {
    /// Allocates an empty buffer for sums of this shape, of this rank's part. The sums may be
    /// partial along axes that do not shard it.
    pub fn new(
        device: &Device,
        shape: impl Into<ShardedShape>,
        dtype: DType,
    ) -> Result<Accumulator> {
        let shape = shape.into();
        let local = *shape.local();
        let buffer = crate::UninitTensor::with_kind(device, local, dtype, Kind::Gradient)?;
        Ok(Accumulator {
            buffer: buffer.finish(),
            empty: true,
            is_sharded: false,
            shape: Some(shape),
        })
    }

    /// An empty accumulator over `buffer`, for example a slice of a flat buffer of all gradients.
    ///
    /// # Errors
    /// When `buffer` is not contiguous; when its kind is [`Kind::Value`].
    pub fn over(buffer: Tensor) -> Result<Accumulator> {
        buffer.contiguous_range("accumulator")?;
        if buffer.kind() == Kind::Value {
            return Err(immutable("accumulator"));
        }
        Ok(Accumulator {
            is_sharded: buffer.sharding().is_some(),
            buffer,
            empty: true,
            shape: None,
        })
    }

    /// The same accumulator, for sums of this shape. They may be partial along axes that do not
    /// shard it.
    ///
    /// # Errors
    /// When the buffer does not have the shape of this rank's part, or has other shards.
    pub fn with_shape(self, shape: ShardedShape) -> Result<Accumulator> {
        let fits = match self.buffer.sharding() {
            Some(_) => shape.fits(&self.buffer),
            None => shape.local() == self.buffer.shape(),
        };
        if !fits {
            let (buffer, own) = (&self.buffer, shape.local());
            let of = match shape.sharding() {
                Some(sharding) => format!("{} ({sharding})", &*shape),
                None => shape.to_string(),
            };
            bail!(
                Invalid,
                "accumulator: {buffer} cannot be a buffer for sums of shape {of}, of which this \
                 rank's part has shape {own}; pass a buffer of that shape, with this sharding or \
                 none"
            );
        }
        Ok(Accumulator { shape: Some(shape), ..self })
    }

    /// An empty accumulator of another dtype for the same sums.
    pub(crate) fn temporary(&self, dtype: DType) -> Result<Accumulator> {
        Accumulator::new(self.buffer.device(), self.shape(), dtype)
    }

    /// The indices of dim `dim` that this rank has.
    ///
    /// # Errors
    /// When a rank has several ranges of the dim.
    pub(crate) fn indices(&self, op: &'static str, dim: usize) -> Result<IndexRange> {
        self.shape().indices(op, dim)
    }

    fn shape(&self) -> ShardedShape {
        match (&self.shape, self.buffer.sharding()) {
            (Some(shape), None) => shape.clone(),
            _ => self.buffer.sharded_shape(),
        }
    }

    /// The buffer. Its values are stale while [`Accumulator::is_empty`].
    pub fn buffer(&self) -> &Tensor {
        &self.buffer
    }

    /// Whether nothing has been added yet.
    pub fn is_empty(&self) -> bool {
        self.empty
    }

    /// Makes the buffer empty. It loses a sharding that it took from what was added.
    pub fn clear(&mut self) {
        self.empty = true;
        if !self.is_sharded && self.buffer.sharding().is_some() {
            self.buffer = self.buffer.local();
        }
    }

    /// Marks the buffer as not empty. Ops call this after they have written it.
    pub fn filled(&mut self) {
        self.empty = false;
    }

    /// Calls `signature`, whose last operand is this accumulator. An empty accumulator takes the
    /// partial values of the first result written to it, and its shards if it has none of its own.
    /// Later results must have the same sharding.
    ///
    /// # Errors
    /// As [`Signature::call`].
    pub fn call(&self, signature: &'static Signature, operands: &[&Tensor]) -> Result<Call> {
        let is_open = self.empty && self.buffer.sharding().is_none();
        let shards = self.shape.as_ref().and_then(ShardedShape::tag);
        signature.call_into(operands, &self.buffer, is_open.then_some(shards))
    }

    /// As [`Accumulator::filled`], after `call` has written the buffer.
    ///
    /// # Errors
    /// When the shardings do not fit.
    pub fn filled_by(&mut self, call: &Call) -> Result<()> {
        if let Some(tag) = call.changed_tag(self.buffer.shape())? {
            self.buffer = self.buffer.with_tag(Some(tag));
        }
        self.empty = false;
        Ok(())
    }

    /// Calls `op` with the buffer, whose global shape is `own`, reshaped to `shape`.
    ///
    /// # Errors
    /// When the number of elements differs; when a sharding cannot be reshaped; the error of `op`.
    pub fn viewed<E: From<crate::Error>>(
        &mut self,
        own: &Shape,
        shape: &ShardedShape,
        op: impl FnOnce(&mut Accumulator) -> Result<(), E>,
    ) -> Result<(), E> {
        if own == &**shape {
            return op(self);
        }
        let view = match self.buffer.sharding() {
            Some(_) => reshaped(&self.buffer, shape)?,
            None => reshaped(&self.buffer, shape.local())?,
        };
        let mut viewed = Accumulator {
            buffer: view,
            empty: self.empty,
            is_sharded: self.is_sharded,
            shape: Some(shape.clone()),
        };
        op(&mut viewed)?;
        self.empty = viewed.empty;
        if self.buffer.sharding().is_none() && viewed.buffer.sharding().is_some() {
            self.buffer = reshaped(&viewed.buffer, own)?;
        }
        Ok(())
    }

    /// The sum; filled with zeros if the buffer is empty.
    ///
    /// # Errors
    /// While the buffer is in use.
    pub fn total(&mut self) -> Result<&Tensor> {
        if self.empty {
            // Zeros are correct under any sharding, even a partial one.
            ops::fill_into(&self.buffer.local(), 0.0)?;
            self.empty = false;
        }
        Ok(&self.buffer)
    }
}

/// A contiguous buffer with another global shape, without a copy.
fn reshaped(buffer: &Tensor, shape: &Shape) -> Result<Tensor> {
    let view = buffer.view(shape)?;
    view.ok_or_else(|| {
        error!(
            Invalid,
            "accumulator: {buffer} is not contiguous, so it cannot be viewed as {shape}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_op_writes_and_later_ops_add() {
        let device = Device::cpu();
        let x = ops::full(&device, &[2], DType::F32, 3.0).unwrap();
        let mut sum = Accumulator::new(&device, Shape::new(&[2]).unwrap(), DType::F32).unwrap();
        for round in 1..3 {
            ops::add_into(&x, &mut sum).unwrap();
            assert_eq!(sum.total().unwrap().to_vec::<f32>().unwrap(), [3.0 * round as f32; 2]);
        }
        sum.clear();
        assert_eq!(sum.total().unwrap().to_vec::<f32>().unwrap(), [0.0; 2]);
    }

    #[test]
    fn immutable_and_non_contiguous_buffers_are_rejected() {
        let device = Device::cpu();
        assert!(Accumulator::over(ops::full(&device, &[2], DType::F32, 0.0).unwrap()).is_err());
        let flat = Tensor::zeros(&device, &[4, 4], DType::F32, Kind::Gradient).unwrap();
        assert!(Accumulator::over(flat.transpose(0, 1).unwrap()).is_err());
        assert!(Accumulator::over(flat.slice(0, 1..3).unwrap()).is_ok());
    }
}
