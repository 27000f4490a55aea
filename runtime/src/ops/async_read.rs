//! Asynchronous reads of values.
//!
//! [`Tensor::to_vec`] waits for all work of the stream, including work enqueued after the tensor.
//! An [`AsyncRead`] enqueues the copy to the host, and later waits for that copy only. It is for
//! values that are read a step late, such as a loss.

use crate::core::stream;
use crate::driver::PinnedCopy;
use crate::{Device, Element, Result, Tensor, ops};

/// A pending copy of a tensor's values to the host. Dropping it waits for the copy.
#[must_use = "`wait` returns the values"]
pub struct AsyncRead<T> {
    device: Device,
    state: State<T>,
}

enum State<T> {
    /// On a CPU, the values are read without delay.
    Ready(Vec<T>),
    Copying {
        copy: PinnedCopy,
        elements: usize,
    },
}

impl Tensor {
    /// Enqueues a copy of the elements, in row-major order, to the host, and returns without
    /// waiting for it. Later writes to the tensor do not change the values read.
    ///
    /// ```
    /// use meshgrad_runtime::{Device, Result, Tensor, ops};
    ///
    /// # fn main() -> Result<()> {
    /// let x = Tensor::from_slice(&Device::cpu(), &[2], &[1.0f32, 2.0])?;
    /// let squares = ops::square(&x)?.read_async::<f32>()?;
    /// let _more = ops::exp(&x)?; // `wait` does not wait for this
    /// assert_eq!(squares.wait()?, [1.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::to_vec`], except for failures of earlier work, which [`AsyncRead::wait`]
    /// returns; inside [`Device::capture`].
    pub fn read_async<T: Element>(&self) -> Result<AsyncRead<T>> {
        self.expect_whole("read_async")?;
        let device = self.device().clone();
        if device.gpu().is_none() {
            let state = State::Ready(self.to_vec()?);
            return Ok(AsyncRead { device, state });
        }
        self.expect_dtype(T::DTYPE)?;
        let state = State::Copying {
            copy: ops::contiguous(self)?.download_async()?,
            elements: self.elements(),
        };
        Ok(AsyncRead { device, state })
    }
}

impl<T: Element> AsyncRead<T> {
    /// Waits on the host for the copy, and returns the elements.
    ///
    /// # Errors
    /// With the failure of earlier work, including an index out of range.
    pub fn wait(self) -> Result<Vec<T>> {
        let (copy, elements) = match self.state {
            State::Ready(values) => return Ok(values),
            State::Copying { copy, elements } => (copy, elements),
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
