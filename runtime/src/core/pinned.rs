//! Memory of the host that a GPU copies out of by itself: filled by whoever reads a file, copied
//! while the next one is filled, given back when the copy is done.
//!
//! [`Tensor::from_slice`] takes any memory and so copies twice, once into pinned memory of its own.
//! Here the caller fills that memory.

use std::fmt;
use std::ops::Range;

use crate::core::stream;
use crate::driver::{Pinned, PinnedCopy};
use crate::{Device, Error, Result, Tensor, for_any};

const OP: &str = "fill_from_pinned";

/// Memory of the host that its device copies out of by itself, until the host needs it again. On a
/// CPU device ordinary memory.
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
/// let upload = x.fill_from_pinned(4..8, buffer)?; // goes on beside what comes next
/// let buffer = upload.synchronize()?; // done: the memory is ours again
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
    /// `bytes` zeros. To pin memory takes a driver milliseconds: keep what you have, and reuse it.
    ///
    /// # Errors
    /// [`CudaError::Pinned`](crate::CudaError::Pinned) when the host has none left;
    /// [`Error::NoValues`] for a meta device.
    pub fn new(device: &Device, bytes: usize) -> Result<PinnedBuffer> {
        let memory = match device.gpu() {
            Some(gpu) => Memory::Pinned(gpu.pin(bytes.max(1))?),
            None if device.computes() => Memory::Ordinary(vec![0; bytes]),
            None => {
                let device = device.to_string();
                return Err(Error::NoValues { device });
            }
        };
        Ok(PinnedBuffer {
            device: device.clone(),
            memory,
        })
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whose copies it is for.
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

/// A copy out of a [`PinnedBuffer`], which may not be done yet, and the buffer. Work that is put
/// into the same stream comes after the copy; only the buffer has to be waited for.
///
/// Dropped, it waits.
#[must_use = "the buffer comes back from `synchronize`"]
pub struct PendingUpload {
    device: Device,
    state: State,
}

enum State {
    Copying(PinnedCopy),
    Copied(Vec<u8>),
}

impl PendingUpload {
    /// Waits on the host until the copy is done, and gives the buffer back.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the failure of any work before: nobody knows then what the tensor
    /// holds. [`CudaError::Capture`](crate::CudaError::Capture) inside [`Device::capture`].
    pub fn synchronize(self) -> Result<PinnedBuffer> {
        let memory = match self.state {
            State::Copying(upload) => {
                stream::forbid_in_capture("synchronize")?;
                self.device.count_wait();
                Memory::Pinned(upload.synchronize()?)
            }
            State::Copied(bytes) => Memory::Ordinary(bytes),
        };
        Ok(PinnedBuffer {
            device: self.device,
            memory,
        })
    }
}

impl fmt::Debug for PendingUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PendingUpload(to {})", self.device)
    }
}

impl Tensor {
    /// Overwrites `bytes` of this tensor, counted from its first element, with the first bytes of
    /// `buffer`, in the order of the current stream: on a GPU without a copy by the host, which goes
    /// on at once.
    ///
    /// # Errors
    /// [`Error::Argument`] for a range outside of the tensor, more bytes than the buffer has, or a
    /// tensor that is not contiguous; [`Error::Devices`] for a buffer of another device;
    /// [`Error::Immutable`] for a [`Kind::Value`](crate::Kind::Value); [`Error::Busy`];
    /// [`Error::Cuda`], [`CudaError::Capture`](crate::CudaError::Capture) among them. The buffer is
    /// gone then.
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
        Ok(PendingUpload {
            device: buffer.device,
            state,
        })
    }

    fn check_fill(&self, bytes: &Range<usize>, buffer: &PinnedBuffer) -> Result<()> {
        if buffer.device() != self.device() {
            return Err(Error::Devices {
                op: OP,
                devices: format!("{}, {}", self.device(), buffer.device()),
            });
        }
        let (has, given) = (self.dtype().bytes(self.elements()), buffer.len());
        let problem = if bytes.start > bytes.end || bytes.end > has {
            format!("bytes {bytes:?} are not inside the {has} bytes of {self:?}")
        } else if bytes.len() > given {
            format!("bytes {bytes:?} are more than the {given} of the buffer")
        } else {
            return Ok(());
        };
        Err(Error::Argument { op: OP, problem })
    }
}
