//! Pinned memory, of which there is never more than a bound: lent to be filled, then the GPU's
//! until it has copied, then lent again.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use meshgrad_runtime::{Device, PendingUpload, PinnedBuffer, Tensor};

use crate::{Error, Result};

/// Buffers of powers of two of bytes. What is lent at a time, each rounded up to one, must never be
/// more than the bound: then [`Pool::take`] ends.
pub(super) struct Pool<'t> {
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
    /// In the order in which they will be done.
    uploads: VecDeque<NamedUpload<'t>>,
}

struct NamedUpload<'t> {
    tensor: &'t str,
    bytes: u64,
    upload: PendingUpload,
}

impl<'t> Pool<'t> {
    pub(super) fn new(device: &'t Device, bound: u64) -> Pool<'t> {
        Pool {
            device,
            bound,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Memory for a part of `tensor`, of `bytes` bytes or up to twice as many. Waits for the GPU
    /// rather than taking more than there may be.
    ///
    /// # Errors
    /// [`Error::NotLoaded`], of another tensor if its copy has failed.
    pub(super) fn take(&self, tensor: &str, bytes: u64) -> Result<PinnedBuffer> {
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
                    self.forget(size);
                    Error::not_loaded(tensor, source)
                });
            }
            // To wait for the GPU takes less time than to pin memory of another size.
            if let Some(upload) = state.uploads.pop_front() {
                drop(state);
                let buffer = self.wait(upload)?;
                state = self.lock();
                state.idle.push(buffer);
                self.changed.notify_all();
            } else if !state.idle.is_empty() {
                let given_back = state.idle.remove(0);
                state.pinned -= given_back.len() as u64;
            } else {
                let woken = self.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Has the GPU copy a filled buffer over these bytes of a tensor.
    ///
    /// # Errors
    /// [`Error::NotLoaded`].
    pub(super) fn upload(
        &self,
        name: &'t str,
        tensor: &Tensor,
        bytes: Range<usize>,
        buffer: PinnedBuffer,
    ) -> Result<()> {
        let size = buffer.len() as u64;
        // Held meanwhile, so that the order here is that of the GPU.
        let mut state = self.lock();
        match tensor.fill_from_pinned(bytes, buffer) {
            Ok(upload) => {
                state.uploads.push_back(NamedUpload {
                    tensor: name,
                    bytes: size,
                    upload,
                });
                self.changed.notify_all();
                Ok(())
            }
            Err(source) => {
                drop(state);
                self.forget(size);
                Err(Error::not_loaded(name, source))
            }
        }
    }

    /// Waits until all copies are done.
    ///
    /// # Errors
    /// [`Error::NotLoaded`].
    pub(super) fn finish(&self) -> Result<()> {
        let uploads = std::mem::take(&mut self.lock().uploads);
        uploads
            .into_iter()
            .try_for_each(|upload| self.wait(upload).map(drop))
    }

    fn wait(&self, upload: NamedUpload<'_>) -> Result<PinnedBuffer> {
        upload.upload.synchronize().map_err(|source| {
            self.forget(upload.bytes);
            Error::not_loaded(upload.tensor, source)
        })
    }

    /// Counts a buffer no longer.
    fn forget(&self, bytes: u64) {
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

    /// Threads that want buffers of all sizes, together never more than the bound when rounded up:
    /// each gets them, though they do not all fit at a time, and no more is pinned.
    #[test]
    fn nobody_waits_forever() {
        let device = Device::cpu();
        let pool = Pool::new(&device, 1024);
        let work = |seed: u64| {
            let tensor = Tensor::zeros(&device, &[256], DType::U8, Kind::Cache).unwrap();
            for turn in 0..300 {
                let bytes = 1 + (turn * 97 + seed * 31) % 256;
                let mut buffer = pool.take("x", bytes).unwrap();
                assert!((bytes..2 * bytes).contains(&(buffer.len() as u64)));
                assert!(pool.lock().pinned <= 1024);
                let filled = vec![turn as u8; bytes as usize];
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

    /// A buffer that is lost makes room.
    #[test]
    fn what_fails_is_named_and_counts_no_longer() {
        let device = Device::cpu();
        let pool = Pool::new(&device, 4);
        let value = Tensor::zeros(&device, &[4], DType::U8, Kind::Value).unwrap();
        for _ in 0..2 {
            let buffer = pool.take("x", 3).unwrap();
            let failed = pool.upload("x", &value, 0..3, buffer).unwrap_err();
            assert!(failed.to_string().starts_with("`x` was not loaded: "));
            assert_eq!(pool.lock().pinned, 0);
        }
    }
}
