//! Pinned host memory that the caller fills and a GPU copies asynchronously.
//!
//! [`Tensor::from_slice`] takes pageable memory, so it copies twice: first to a pinned staging
//! buffer. Here the caller fills the pinned memory directly, for example from a file, and fills the
//! next buffer while the GPU copies this one.

use std::fmt;
use std::ops::Range;

use meshgrad_error::{bail, ensure};

use crate::core::storage::no_values;
use crate::core::stream;
use crate::driver::{Pinned, PinnedCopy};
use crate::{Device, Result, Tensor, for_any};

const OP: &str = "fill_from_pinned";

/// Host memory that its device copies from asynchronously. On a CPU device it is ordinary memory.
///
/// ```
/// use meshgrad_runtime::{DType, Device, Kind, PinnedBuffer, Result, Tensor};
///
/// # fn main() -> Result<()> {
/// let device = Device::cpu(); // or Device::cuda(0)?
/// let x = Tensor::zeros(&device, &[4], DType::F32, Kind::Parameter)?;
///
/// let mut buffer = PinnedBuffer::new(&device, 8)?;
/// buffer.as_mut()[..4].copy_from_slice(&2.5f32.to_le_bytes());
/// let upload = x.fill_from_pinned(4..8, buffer)?; // runs concurrently with what follows
/// let buffer = upload.synchronize()?; // done: the buffer can be reused
/// assert_eq!(buffer.len(), 8);
/// assert_eq!(x.to_vec::<f32>()?, [0.0, 2.5, 0.0, 0.0]);
/// # Ok(())
/// # }
/// ```
pub struct PinnedBuffer {
    device: Device,
    memory: Memory,
}

enum Memory {
    Pinned(Pinned),
    Ordinary(Vec<u8>),
}

impl PinnedBuffer {
    /// A buffer of `bytes` zeros. Pinning memory takes milliseconds, so reuse buffers.
    ///
    /// # Errors
    /// When the host has no memory left; for a meta device.
    pub fn new(device: &Device, bytes: usize) -> Result<PinnedBuffer> {
        let memory = match device.gpu() {
            Some(gpu) => Memory::Pinned(gpu.pin(bytes.max(1))?),
            None if device.computes() => Memory::Ordinary(vec![0; bytes]),
            None => return Err(no_values(device)),
        };
        Ok(PinnedBuffer { device: device.clone(), memory })
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    /// Whether its size is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device that it is pinned for.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl AsRef<[u8]> for PinnedBuffer {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            Memory::Pinned(pinned) => pinned.bytes(),
            Memory::Ordinary(bytes) => bytes,
        }
    }
}

impl AsMut<[u8]> for PinnedBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Pinned(pinned) => pinned.bytes_mut(),
            Memory::Ordinary(bytes) => bytes,
        }
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({} bytes for {})", self.len(), self.device)
    }
}

/// A copy from a [`PinnedBuffer`] that may still be running, and the buffer. Later work of the same
/// stream runs after the copy, so waiting is only needed to get the buffer back.
///
/// Dropping it waits for the copy.
#[must_use = "`synchronize` returns the buffer"]
pub struct PendingUpload {
    device: Device,
    state: State,
}

enum State {
    Copying(PinnedCopy),
    Copied(Vec<u8>),
}

impl PendingUpload {
    /// Waits on the host until the copy is done, and returns the buffer.
    ///
    /// # Errors
    /// With the failure of earlier work; the values of the tensor are then undefined. Inside
    /// [`Device::capture`].
    pub fn synchronize(self) -> Result<PinnedBuffer> {
        let memory = match self.state {
            State::Copying(upload) => {
                stream::forbid_in_capture("synchronize")?;
                self.device.count_wait();
                Memory::Pinned(upload.synchronize()?)
            }
            State::Copied(bytes) => Memory::Ordinary(bytes),
        };
        Ok(PinnedBuffer { device: self.device, memory })
    }
}

impl fmt::Debug for PendingUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingUpload(to {})", self.device)
    }
}

impl Tensor {
    /// Overwrites the range `bytes` of this tensor, counted from its first element, with the first
    /// bytes of `buffer`, on the current stream. On a GPU it enqueues the copy and returns
    /// immediately.
    ///
    /// # Errors
    /// For a range outside of the tensor, more bytes than the buffer has, or a tensor that is not
    /// contiguous; for a buffer of another device; for a [`Kind::Value`](crate::Kind::Value); while
    /// the storage is in use; inside a capture; when the driver fails. An error drops the buffer.
    pub fn fill_from_pinned(
        &self,
        bytes: Range<usize>,
        buffer: PinnedBuffer,
    ) -> Result<PendingUpload> {
        self.check_fill(&bytes, &buffer)?;
        let elements = self.contiguous_range(OP)?;
        let state = match buffer.memory {
            Memory::Pinned(pinned) => {
                State::Copying(self.upload_pinned(OP, pinned, bytes.len(), bytes.start)?)
            }
            Memory::Ordinary(from) => {
                for_any!(self.dtype(), T => {
                    let mut to = self.write::<T>(OP)?;
                    let to: &mut [u8] = bytemuck::cast_slice_mut(&mut to[elements]);
                    to[bytes.clone()].copy_from_slice(&from[..bytes.len()]);
                });
                State::Copied(from)
            }
        };
        Ok(PendingUpload { device: buffer.device, state })
    }

    fn check_fill(&self, bytes: &Range<usize>, buffer: &PinnedBuffer) -> Result<()> {
        ensure!(
            buffer.device() == self.device(),
            Invalid,
            "{OP}: operands are on different devices ({}, {}); copy them to one device first",
            self.device(),
            buffer.device()
        );
        let (has, given) = (self.dtype().bytes(self.elements()), buffer.len());
        let problem = if bytes.start > bytes.end || bytes.end > has {
            format!("bytes {bytes:?} are outside of the {has} bytes of {self}")
        } else if bytes.len() > given {
            format!("bytes {bytes:?} need a buffer of {} bytes, but it has {given}", bytes.len())
        } else {
            return Ok(());
        };
        bail!(Invalid, "{OP}: {problem}")
    }
}
