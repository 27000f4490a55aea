//! Stream-ordered access to GPU storages: copies, fills, and addresses for kernels.

use std::sync::Arc;

use meshgrad_error::ensure;

use crate::Result;
use crate::core::gpu_slice::{GpuSlice, GpuSliceMut};
use crate::core::storage::{Kind, Storage, immutable};
use crate::core::stream;
use crate::core::stream_uses::Access;
use crate::driver::{self, Gpu, Part, Pinned, PinnedCopy};

impl GpuSliceMut<'_> {
    /// Enqueues a copy of `from` on the current stream of this device. `from` may be on any GPU; it
    /// must have the same dtype and number of elements. Does nothing on a meta device.
    ///
    /// # Errors
    /// For another number or dtype of elements, and outside of
    /// [`StreamWork::run`](crate::StreamWork::run); when the driver fails.
    pub fn copy_from(&self, from: &GpuSlice<'_>) -> Result<()> {
        let (op, to) = ("GpuSliceMut::copy_from", self.as_slice());
        ensure!(
            (to.elements(), to.dtype()) == (from.elements(), from.dtype()),
            Invalid,
            "{op}: copies {} x {} to {} x {}; both must be equal",
            from.dtype(),
            from.elements(),
            to.dtype(),
            to.elements()
        );
        let device = to.device();
        stream::keep(device, [to.storage(), from.storage()].into_iter(), op)?;
        let (Some(gpu), Some(peer)) = (device.gpu(), from.device().gpu()) else {
            return Ok(()); // a meta device
        };
        let (stream, bytes) = (stream::raw(device, gpu), to.bytes());
        let [to_offset, from_offset] = [to.offset(), from.offset()];
        from.storage().with_gpu_block(op, |from| {
            to.storage().with_gpu_block(op, |to| {
                let from = (peer.context(), Part::new(from, from_offset));
                let to = Part::new(to, to_offset);
                driver::copy_from_peer(&stream, from, to, bytes)
            })
        })
    }
}

impl Storage {
    /// Fills `to` with the bytes of GPU memory that start at `offset`, after all earlier work of
    /// the current stream. Waits for the copy.
    pub(crate) fn download(self: &Arc<Storage>, offset: usize, to: &mut [u8]) -> Result<()> {
        let gpu = self.gpu()?;
        stream::forbid_in_capture("read")?;
        stream::record_use(self, Access::Read, "read")?;
        let stream = stream::raw(self.device(), gpu);
        self.device().count_wait();
        self.with_gpu_block("read", |block| gpu.download(&stream, block, offset, to))
    }

    /// Enqueues a copy of `bytes` bytes of GPU memory, starting at `offset`, to pinned memory, on
    /// the current stream.
    pub(crate) fn download_async(
        self: &Arc<Storage>,
        offset: usize,
        bytes: usize,
    ) -> Result<PinnedCopy> {
        let (gpu, op) = (self.gpu()?, "read_async");
        stream::forbid_in_capture(op)?;
        stream::record_use(self, Access::Read, op)?;
        let stream = stream::raw(self.device(), gpu);
        self.with_gpu_block(op, |block| {
            gpu.download_async(&stream, Part::new(block, offset), bytes)
        })
    }

    /// Overwrites the first bytes of GPU memory, for the `op` that creates this storage.
    pub(crate) fn upload(&mut self, op: &'static str, from: &[u8]) -> Result<()> {
        let gpu = self.gpu()?;
        stream::forbid_in_capture(op)?;
        let stream = stream::raw(self.device(), gpu);
        if self.with_gpu_block(op, |block| gpu.upload(&stream, from, block))? {
            self.device().count_wait();
        }
        Ok(())
    }

    /// Enqueues a copy of the first `bytes` bytes of pinned memory to `offset`, on the current
    /// stream of a GPU, for an `op` that changes this storage. Counts as a new version.
    pub(crate) fn upload_pinned(
        self: &Arc<Storage>,
        op: &'static str,
        from: Pinned,
        bytes: usize,
        offset: usize,
    ) -> Result<PinnedCopy> {
        if self.kind() == Kind::Value {
            return Err(immutable(op));
        }
        let gpu = self.gpu()?;
        stream::forbid_in_capture(op)?;
        stream::record_use(self, Access::Write, op)?;
        let stream = stream::raw(self.device(), gpu);
        self.with_gpu_block(op, |block| {
            self.raise_version();
            let to = Part::new(block, offset);
            PinnedCopy::upload(&stream, from, bytes, to)
        })
    }

    /// Enqueues a copy of `bytes` bytes from `from_offset` of `from` to `offset` of this storage,
    /// on the current stream of a GPU. Does nothing on a meta device.
    pub(crate) fn copy_from(
        &self,
        offset: usize,
        (from, from_offset): (&Arc<Storage>, usize),
        bytes: usize,
    ) -> Result<()> {
        let op = "copy";
        from.with_gpu_block(op, |from_block| {
            self.with_gpu_block(op, |block| {
                stream::record_use(from, Access::Read, op)?;
                let Some(gpu) = self.device().gpu() else {
                    return Ok(());
                };
                let stream = stream::raw(self.device(), gpu);
                let (from, to) = (Part::new(from_block, from_offset), Part::new(block, offset));
                driver::copy(&stream, from, to, bytes)
            })
        })
    }

    /// Sets all bytes to zero, for the op that creates this storage. Does nothing on a meta device.
    pub(crate) fn fill_zero(&mut self) -> Result<()> {
        match self.device().gpu() {
            Some(gpu) => {
                let (stream, bytes) = (stream::raw(self.device(), gpu), self.bytes());
                self.with_gpu_block("fill_zero", |block| driver::fill_zero(&stream, block, bytes))
            }
            None if self.device().computes() => {
                self.as_mut_slice::<u8>()?.fill(0);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Its address on a GPU (on a meta device, the address that it would have on a GPU), for work
    /// that the caller enqueues next on the current stream. The storage lives until that work is
    /// done.
    pub(crate) fn address(self: &Arc<Storage>, op: &'static str) -> Result<u64> {
        stream::record_use(self, Access::Read, op)?;
        self.raw_address(op)
    }

    /// As [`Storage::address`], for an `op` that changes the storage. Counts as a new version.
    pub(crate) fn address_to_write(self: &Arc<Storage>, op: &'static str) -> Result<u64> {
        let address = self.address_to_claim(op)?;
        self.raise_version();
        Ok(address)
    }

    /// As [`Storage::address_to_write`], for an op that raises the version later, once it has
    /// checked all of its outputs.
    pub(crate) fn address_to_claim(self: &Arc<Storage>, op: &'static str) -> Result<u64> {
        if self.kind() == Kind::Value {
            return Err(immutable(op));
        }
        stream::record_use(self, Access::Write, op)?;
        self.raw_address(op)
    }

    fn gpu(&self) -> Result<&Gpu> {
        self.device().gpu().ok_or_else(|| self.no_values())
    }
}
