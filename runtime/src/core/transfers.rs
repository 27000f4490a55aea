//! Stream-ordered access to GPU storages: copies, fills, and addresses for kernels.

use std::sync::Arc;

use crate::core::gpu_slice::{GpuSlice, GpuSliceMut};
use crate::core::memory::Block;
use crate::core::storage::{Kind, Storage};
use crate::core::stream;
use crate::core::stream_uses::Access;
use crate::driver::{self, Gpu, Part, Pinned, PinnedCopy};
use crate::{Error, Result};

impl GpuSliceMut<'_> {
    /// Enqueues a copy of `from` on the current stream of this device. `from` may be on any GPU; it
    /// must have the same dtype and number of elements. Does nothing on a meta device.
    ///
    /// # Errors
    /// [`Error::Argument`] for another number or dtype of elements, and outside of
    /// [`StreamWork::run`](crate::StreamWork::run); [`Error::Cuda`] when the driver fails.
    pub fn copy_from(&self, from: &GpuSlice<'_>) -> Result<()> {
        let (op, to) = ("GpuSliceMut::copy_from", self.as_slice());
        if (to.elements(), to.dtype()) != (from.elements(), from.dtype()) {
            let problem = format!(
                "copies {} x {} to {} x {}; both must be equal",
                from.dtype(),
                from.elements(),
                to.dtype(),
                to.elements()
            );
            return Err(Error::Argument { op, problem });
        }
        let device = to.device();
        stream::keep(device, [to.storage(), from.storage()].into_iter(), op)?;
        let (Some((gpu, to_part)), Some((peer, from_part))) = (to.gpu_part(), from.gpu_part())
        else {
            return Ok(()); // a meta device
        };
        let (stream, from_part) = (stream::raw(device, gpu), (peer.context(), from_part));
        let bytes = to.bytes();
        Ok(driver::copy_from_peer(&stream, from_part, to_part, bytes)?)
    }
}

impl GpuSlice<'_> {
    fn gpu_part(&self) -> Option<(&Gpu, Part<'_>)> {
        match (self.device().gpu(), &self.storage().block) {
            (Some(gpu), Block::Gpu(block)) => Some((
                gpu,
                Part {
                    block,
                    offset: self.offset(),
                },
            )),
            _ => None,
        }
    }
}

impl Storage {
    /// Fills `to` with the bytes of GPU memory that start at `offset`, after all earlier work of
    /// the current stream. Waits for the copy.
    pub(crate) fn download(self: &Arc<Storage>, offset: usize, to: &mut [u8]) -> Result<()> {
        match (&self.block, self.device().gpu()) {
            (Block::Gpu(block), Some(gpu)) => {
                stream::forbid_in_capture("read")?;
                stream::record_use(self, Access::Read, "read")?;
                let stream = stream::raw(self.device(), gpu);
                self.device().count_wait();
                Ok(gpu.download(&stream, block, offset, to)?)
            }
            _ => Err(self.no_values()),
        }
    }

    /// Enqueues a copy of `bytes` bytes of GPU memory, starting at `offset`, to pinned memory, on
    /// the current stream.
    pub(crate) fn download_async(
        self: &Arc<Storage>,
        offset: usize,
        bytes: usize,
    ) -> Result<PinnedCopy> {
        match (&self.block, self.device().gpu()) {
            (Block::Gpu(block), Some(gpu)) => {
                stream::forbid_in_capture("read_async")?;
                stream::record_use(self, Access::Read, "read_async")?;
                let stream = stream::raw(self.device(), gpu);
                Ok(gpu.download_async(&stream, Part { block, offset }, bytes)?)
            }
            _ => Err(self.no_values()),
        }
    }

    /// Overwrites the first bytes of GPU memory, for the `op` that creates this storage.
    pub(crate) fn upload(&mut self, op: &'static str, from: &[u8]) -> Result<()> {
        match (&self.block, self.device().gpu()) {
            (Block::Gpu(block), Some(gpu)) => {
                stream::forbid_in_capture(op)?;
                let stream = stream::raw(self.device(), gpu);
                if gpu.upload(&stream, from, block)? {
                    self.device().count_wait();
                }
                Ok(())
            }
            _ => Err(self.no_values()),
        }
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
            return Err(Error::Immutable { op });
        }
        match (&self.block, self.device().gpu()) {
            (Block::Gpu(block), Some(gpu)) => {
                stream::forbid_in_capture(op)?;
                stream::record_use(self, Access::Write, op)?;
                self.raise_version();
                let stream = stream::raw(self.device(), gpu);
                Ok(PinnedCopy::upload(
                    &stream,
                    from,
                    bytes,
                    Part { block, offset },
                )?)
            }
            _ => Err(self.no_values()),
        }
    }

    /// Enqueues a copy of `bytes` bytes from `from_offset` of `from` to `offset` of this storage,
    /// on the current stream of a GPU. Does nothing on a meta device.
    pub(crate) fn copy_from(
        &self,
        offset: usize,
        (from, from_offset): (&Arc<Storage>, usize),
        bytes: usize,
    ) -> Result<()> {
        match (&from.block, &self.block) {
            (Block::Gpu(from_block), Block::Gpu(block)) => {
                stream::record_use(from, Access::Read, "copy")?;
                let Some(gpu) = self.device().gpu() else {
                    return Ok(());
                };
                let stream = stream::raw(self.device(), gpu);
                let from = Part {
                    block: from_block,
                    offset: from_offset,
                };
                Ok(driver::copy(&stream, from, Part { block, offset }, bytes)?)
            }
            _ => Err(self.no_values()),
        }
    }

    /// Sets all bytes to zero, for the op that creates this storage. Does nothing on a meta device.
    pub(crate) fn fill_zero(&mut self) -> Result<()> {
        match (&self.block, self.device().gpu()) {
            (Block::Gpu(block), Some(gpu)) => {
                let stream = stream::raw(self.device(), gpu);
                Ok(driver::fill_zero(&stream, block, self.bytes())?)
            }
            _ if self.device().computes() => {
                self.as_mut_slice::<u8>()?.fill(0);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Its address on a GPU (on a meta device, the address that it would have on a GPU), for work
    /// that the caller enqueues next on the current stream. The storage lives until that work is
    /// done.
    pub(crate) fn address(self: &Arc<Storage>, op: &'static str) -> Result<u64> {
        stream::record_use(self, Access::Read, op)?;
        self.uninit_address()
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
            return Err(Error::Immutable { op });
        }
        stream::record_use(self, Access::Write, op)?;
        self.uninit_address()
    }
}
