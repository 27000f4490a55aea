//! Sleeping tensors: their values move to host memory, and the GPU's memory becomes free for others.

use std::sync::{PoisonError, RwLock};

use meshgrad_error::{bail, ensure};

use crate::core::memory::{Block, Place};
use crate::core::storage::{Kind, Storage, busy, immutable};
use crate::core::stream;
use crate::core::stream_uses::Access;
use crate::driver::Pool;
use crate::{Result, Tensor};

impl Tensor {
    /// Moves the values of this tensor's whole storage from the GPU to pinned host memory, and frees
    /// its memory there. [`Device::empty_cache`](crate::Device::empty_cache) then returns the memory
    /// to the driver. Until [`Tensor::wake`], every use of the storage fails, by this tensor and by
    /// views of it. A storage that sleeps stays asleep.
    ///
    /// Values on a CPU stay where they are, but cannot be used either, so that a program behaves
    /// the same on all devices. On a meta device, only the memory is counted.
    ///
    /// No other thread may use the tensor meanwhile.
    ///
    /// ```
    /// use meshgrad_runtime::{DType, Device, Kind, Tensor};
    ///
    /// # fn main() -> meshgrad_runtime::Result<()> {
    /// let device = Device::cpu(); // or Device::cuda(0)?
    /// let weight = Tensor::zeros(&device, &[4], DType::F32, Kind::Parameter)?;
    /// weight.sleep()?;
    /// let error = weight.to_vec::<f32>().unwrap_err().to_string();
    /// assert_eq!(error, "read: the tensor is asleep; call `wake` first");
    /// weight.wake()?;
    /// assert_eq!(weight.to_vec::<f32>()?, [0.0; 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// For a [`Kind::Value`], which a program drops instead; while the storage is in use, also by
    /// work of a [`Pending`](crate::Pending); inside a capture or
    /// [`with_stream`](crate::with_stream), and for the memory of a graph; when the host has no
    /// memory left; with the failure of earlier work. The tensor is awake then.
    pub fn sleep(&self) -> Result<()> {
        self.storage().sleep(true)
    }

    /// As [`Tensor::sleep`], but forgets the values, for a buffer that the next use overwrites.
    /// After [`Tensor::wake`] they are undefined.
    ///
    /// # Errors
    /// As [`Tensor::sleep`].
    pub fn sleep_without_values(&self) -> Result<()> {
        self.storage().sleep(false)
    }

    /// Moves the values back to the GPU, possibly to another address. Does nothing if the storage is
    /// awake.
    ///
    /// # Errors
    /// When memory runs out, or with the failure of earlier work: the tensor stays asleep with its
    /// values. When the copy itself fails: the values are lost, and every later call fails. Inside
    /// a capture or [`with_stream`](crate::with_stream).
    pub fn wake(&self) -> Result<()> {
        self.storage().wake()
    }

    /// Whether its storage sleeps.
    pub fn is_asleep(&self) -> bool {
        self.storage().is_asleep()
    }
}

impl Storage {
    fn sleep(&self, keeps_values: bool) -> Result<()> {
        let op = "sleep";
        if self.kind() == Kind::Value {
            return Err(immutable(op));
        }
        self.expect_base_stream(op)?;
        ensure!(
            self.pool().graph == 0,
            Invalid,
            "{op}: the memory belongs to a graph; drop the graph instead"
        );
        if !self.uses().allow(Access::Write, |_| false) {
            return Err(busy(op));
        }
        if !self.begin_sleep(op)? {
            return Ok(());
        }
        let left = self.leave_gpu(keeps_values);
        if left.is_err() {
            self.end_sleep();
        }
        left
    }

    fn leave_gpu(&self, keeps_values: bool) -> Result<()> {
        let Block::Gpu(place) = &self.block else {
            return Ok(());
        };
        let mut place = place.write().unwrap_or_else(PoisonError::into_inner);
        let Place::Gpu(block) = &*place else {
            return Ok(());
        };
        let left = match self.device().gpu() {
            Some(gpu) if keeps_values => {
                self.device().count_wait();
                Place::Host(gpu.move_to_host(block, self.bytes())?)
            }
            _ => Place::Forgotten,
        };
        self.free(std::mem::replace(&mut *place, left));
        Ok(())
    }

    fn wake(&self) -> Result<()> {
        self.expect_base_stream("wake")?;
        if !self.is_asleep() {
            return Ok(());
        }
        if let Block::Gpu(place) = &self.block {
            let mut place = place.write().unwrap_or_else(PoisonError::into_inner);
            self.return_to_gpu(&mut place)?;
        }
        self.end_sleep();
        Ok(())
    }

    fn return_to_gpu(&self, place: &mut Place) -> Result<()> {
        match place {
            Place::Gpu(_) => return Ok(()),
            Place::Lost => {
                bail!(Invalid, "wake: the driver failed while its values returned to the GPU");
            }
            Place::Host(_) | Place::Forgotten => {}
        }
        // Other streams may still use the memory that is allocated. This also reports failures of
        // earlier work before the values move.
        self.device().synchronize()?;
        let Block::Gpu(new) = self.device().allocate(self.pool(), self.bytes())? else {
            return Ok(()); // a CPU
        };
        let new = new.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Place::Host(values) = std::mem::replace(place, Place::Lost)
            && let (Some(gpu), Place::Gpu(block)) = (self.device().gpu(), &new)
        {
            let copied = gpu.move_from_host(values, self.bytes(), block);
            if copied.is_err() {
                self.free(new);
                return copied;
            }
        }
        *place = new;
        Ok(())
    }

    fn free(&self, place: Place) {
        let (block, elsewhere) = (Block::Gpu(RwLock::new(place)), self.is_used_elsewhere());
        self.device().free(self.bytes(), block, elsewhere);
    }

    fn expect_base_stream(&self, op: &'static str) -> Result<()> {
        if stream::pool(self.device()) == Pool::default() {
            return Ok(());
        }
        bail!(Invalid, "{op}: it is inside a capture or `with_stream`; call it outside")
    }
}
