//! A bounded pool of pinned buffers. A buffer is filled by a thread, then belongs to the GPU until
//! its copy is complete, and is then reused.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use meshgrad_error::Result;
use meshgrad_runtime::{Device, PendingUpload, PinnedBuffer, Tensor};

use crate::memory::not_loaded;

/// Pinned buffers, whose sizes are powers of two. [`PinnedPool::take`] never deadlocks if all
/// buffers that are taken but not yet uploaded fit into the bound at their rounded sizes.
pub(crate) struct PinnedPool<'t> {
    device: &'t Device,
    bound: u64,
    state: Mutex<State<'t>>,
    changed: Condvar,
}

#[derive(Default)]
struct State<'t> {
    /// Bytes of all buffers.
    pinned: u64,
    idle: Vec<PinnedBuffer>,
    /// Pending copies, in the order in which they complete.
    uploads: VecDeque<NamedUpload<'t>>,
}

struct NamedUpload<'t> {
    tensor: &'t str,
    bytes: u64,
    upload: PendingUpload,
}

impl<'t> PinnedPool<'t> {
    pub(crate) fn new(device: &'t Device, bound: u64) -> PinnedPool<'t> {
        PinnedPool { device, bound, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Takes a buffer for `bytes` bytes of `tensor`, less than twice as large. If the bound is
    /// reached, waits until other buffers are free again.
    ///
    /// # Errors
    /// When memory runs out or a copy failed; it may name another tensor, whose copy failed.
    pub(crate) fn take(&self, tensor: &str, bytes: u64) -> Result<PinnedBuffer> {
        let size = bytes.next_power_of_two();
        let mut state = self.lock();
        loop {
            let fits = |idle: &PinnedBuffer| idle.len() as u64 == size;
            if let Some(at) = state.idle.iter().position(fits) {
                return Ok(state.idle.remove(at));
            }
            if state.pinned + size <= self.bound {
                state.pinned += size;
                drop(state);
                let buffer = PinnedBuffer::new(self.device, size as usize);
                return buffer.map_err(|source| {
                    self.uncount(size);
                    not_loaded(tensor, source)
                });
            }
            // Waiting for the GPU is faster than pinning memory of another size.
            if let Some(upload) = state.uploads.pop_front() {
                drop(state);
                let buffer = self.wait(upload)?;
                state = self.lock();
                state.idle.push(buffer);
                self.changed.notify_all();
            } else if !state.idle.is_empty() {
                let freed = state.idle.remove(0);
                state.pinned -= freed.len() as u64;
            } else {
                let woken = self.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Enqueues the copy of a filled buffer to these bytes of a tensor.
    ///
    /// # Errors
    /// When the copy cannot start.
    pub(crate) fn upload(
        &self,
        name: &'t str,
        tensor: &Tensor,
        bytes: Range<usize>,
        buffer: PinnedBuffer,
    ) -> Result<()> {
        let size = buffer.len() as u64;
        // The lock is held so that `uploads` has the order of the stream.
        let mut state = self.lock();
        match tensor.fill_from_pinned(bytes, buffer) {
            Ok(upload) => {
                state.uploads.push_back(NamedUpload { tensor: name, bytes: size, upload });
                self.changed.notify_all();
                Ok(())
            }
            Err(source) => {
                drop(state);
                self.uncount(size);
                Err(not_loaded(name, source))
            }
        }
    }

    /// Waits for all copies.
    ///
    /// # Errors
    /// When one failed.
    pub(crate) fn finish(&self) -> Result<()> {
        let uploads = std::mem::take(&mut self.lock().uploads);
        uploads.into_iter().try_for_each(|upload| self.wait(upload).map(drop))
    }

    fn wait(&self, upload: NamedUpload<'_>) -> Result<PinnedBuffer> {
        upload.upload.synchronize().map_err(|source| {
            self.uncount(upload.bytes);
            not_loaded(upload.tensor, source)
        })
    }

    /// Stops counting a buffer that was lost to an error.
    fn uncount(&self, bytes: u64) {
        self.lock().pinned -= bytes;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<'t>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use meshgrad_runtime::{DType, Kind};

    use super::*;

    /// Threads take buffers of all sizes whose rounded sizes never exceed the bound together. Every
    /// request is served, even if idle buffers of other sizes fill the bound.
    #[test]
    fn threads_within_the_bound_never_deadlock() {
        let device = Device::cpu();
        let pool = PinnedPool::new(&device, 1024);
        let work = |seed: u64| {
            let tensor = Tensor::zeros(&device, &[256], DType::U8, Kind::Cache).unwrap();
            for round in 0..300 {
                let bytes = 1 + (round * 97 + seed * 31) % 256;
                let mut buffer = pool.take("x", bytes).unwrap();
                assert!((bytes..2 * bytes).contains(&(buffer.len() as u64)));
                assert!(pool.lock().pinned <= 1024);
                let filled = vec![round as u8; bytes as usize];
                buffer.as_mut()[..filled.len()].copy_from_slice(&filled);
                let whole = 0..filled.len();
                pool.upload("x", &tensor, whole.clone(), buffer).unwrap();
                assert_eq!(tensor.to_vec::<u8>().unwrap()[whole], filled);
            }
        };
        std::thread::scope(|scope| {
            for seed in 0..4 {
                scope.spawn(move || work(seed));
            }
        });
        pool.finish().unwrap();
        assert!(pool.lock().uploads.is_empty());
    }

    /// A buffer lost to a failed copy no longer counts against the bound.
    #[test]
    fn failed_uploads_name_the_tensor_and_release_their_bytes() {
        let device = Device::cpu();
        let pool = PinnedPool::new(&device, 4);
        let value = Tensor::zeros(&device, &[4], DType::U8, Kind::Value).unwrap();
        for _ in 0..2 {
            let buffer = pool.take("x", 3).unwrap();
            let failed = pool.upload("x", &value, 0..3, buffer).unwrap_err();
            assert!(failed.to_string().starts_with("`x` was not loaded: "));
            assert_eq!(pool.lock().pinned, 0);
        }
    }
}
