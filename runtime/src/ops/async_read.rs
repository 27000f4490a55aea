//! AsyncRead values without waiting for what comes after them.
//!
//! [`Tensor::to_vec`] waits for all that the stream was given, also after the tensor was made. What
//! is read a step late, as a loss, is copied to the host by the GPU in its turn; whoever wants it
//! waits for that copy alone, while later work goes on.

use crate::core::stream;
use crate::driver::PinnedCopy;
use crate::{Device, Element, Result, Tensor, ops};

/// Values of a tensor on their way to the host. Dropped before they are there it waits for them too.
#[must_use = "the values are there after `wait`"]
pub struct AsyncRead<T> {
    device: Device,
    state: State<T>,
}

enum State<T> {
    /// On a CPU.
    Here(Vec<T>),
    Coming {
        copy: PinnedCopy,
        elements: usize,
    },
}

impl Tensor {
    /// Begins to copy the elements, in row-major order, to the host, and returns at once. What
    /// changes the tensor afterwards does not change what is read.
    ///
    /// ```
    /// use meshgrad_runtime::{Device, Result, Tensor, ops};
    ///
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_slice(&Device::cpu(), &[2], &[1.0f32, 2.0])?;
    /// let reading = ops::square(&x)?.read_async::<f32>()?;
    /// let _more = ops::exp(&x)?; // nobody waits for this
    /// assert_eq!(reading.wait()?, [1.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::to_vec`], but for what the work before may fail with;
    /// [`Error::Cuda`](crate::Error::Cuda) inside [`Device::capture`].
    pub fn read_async<T: Element>(&self) -> Result<AsyncRead<T>> {
        let device = self.device().clone();
        if device.gpu().is_none() {
            let state = State::Here(self.to_vec()?);
            return Ok(AsyncRead { device, state });
        }
        self.expect_dtype(T::DTYPE)?;
        let state = State::Coming {
            copy: ops::contiguous(self)?.download_async()?,
            elements: self.elements(),
        };
        Ok(AsyncRead { device, state })
    }
}

impl<T: Element> AsyncRead<T> {
    /// The elements. Waits on the host until they are there.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) with the failure of any work before, an index out of range
    /// included.
    pub fn wait(self) -> Result<Vec<T>> {
        let (copy, elements) = match self.state {
            State::Here(values) => return Ok(values),
            State::Coming { copy, elements } => (copy, elements),
        };
        self.device.count_wait();
        let mut values = vec![T::zeroed(); elements];
        if let Some(gpu) = self.device.gpu() {
            let stream = stream::raw(&self.device, gpu);
            gpu.finish_download(&stream, copy, bytemuck::cast_slice_mut(&mut values))?;
        }
        Ok(values)
    }
}
