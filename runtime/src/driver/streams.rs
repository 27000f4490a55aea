//! All streams of a device, to wait for them together.
//!
//! Not by way of the context: that is shared with the other devices of the same GPU, and must not
//! be waited for while any thread captures a graph in it (CUDA C++ Programming Guide, "Prohibited
//! and Unhandled Operations").

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::memory::relaxed;
use super::stream::RawStream;
use super::{Context, CudaError};

/// The streams of a device.
pub(crate) struct Streams {
    context: Arc<Context>,
    /// Where work goes outside of any scope, and graphs are launched.
    base: Arc<RawStream>,
    others: Mutex<Others>,
}

#[derive(Default)]
struct Others {
    /// Those that exist still. What a stream did that does not, one of these has waited for.
    streams: Vec<Weak<RawStream>>,
    /// How many graphs are being captured.
    captures: usize,
}

impl Streams {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Streams, CudaError> {
        Ok(Streams {
            context: context.clone(),
            base: Arc::new(RawStream::new(context)?),
            others: Mutex::default(),
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn base(&self) -> &Arc<RawStream> {
        &self.base
    }

    /// A stream beside the first.
    pub(crate) fn new_stream(&self) -> Result<Arc<RawStream>, CudaError> {
        let stream = Arc::new(RawStream::new(&self.context)?);
        let mut others = self.lock();
        others.streams.retain(|other| other.strong_count() > 0);
        others.streams.push(Arc::downgrade(&stream));
        Ok(stream)
    }

    /// Waits on the host until all streams are done.
    ///
    /// # Errors
    /// [`CudaError::Capture`] while any thread captures a graph of this device, for which some of
    /// the streams may record; what else fails.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        let others: Vec<Arc<RawStream>> = {
            let others = self.lock();
            if others.captures > 0 {
                return Err(CudaError::Capture {
                    op: "synchronize",
                    problem: "another thread captures a graph of this device: wait for one stream \
                              (Stream::synchronize), or until the capture has ended",
                });
            }
            others.streams.iter().filter_map(Weak::upgrade).collect()
        };
        relaxed(|| {
            self.base.synchronize()?;
            others.iter().try_for_each(|stream| stream.synchronize())
        })
    }

    /// Says that a capture begins.
    pub(crate) fn capture_begins(&self) {
        self.lock().captures += 1;
    }

    /// Says that one has ended.
    pub(crate) fn capture_ends(&self) {
        self.lock().captures -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
