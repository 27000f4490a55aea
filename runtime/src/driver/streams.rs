//! The streams of a device, so that the host can wait for all of them.
//!
//! Synchronizing the context instead would also wait for other devices on the same GPU, and is not
//! allowed while any thread captures a graph in it (CUDA C++ Programming Guide, "Prohibited and
//! Unhandled Operations").

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use meshgrad_error::{Result, bail};

use super::Context;
use super::context::relaxed;
use super::stream::RawStream;

/// The streams of a device.
pub(crate) struct Streams {
    context: Arc<Context>,
    /// The stream of work outside of any scope, and of graph launches.
    base: Arc<RawStream>,
    others: Mutex<Others>,
}

#[derive(Default)]
struct Others {
    /// The streams that still exist. One of them has waited for the work of each dropped stream.
    streams: Vec<Weak<RawStream>>,
    /// The number of graphs being captured.
    captures: usize,
}

impl Streams {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Streams> {
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

    /// A new side stream.
    pub(crate) fn new_stream(&self) -> Result<Arc<RawStream>> {
        let stream = Arc::new(RawStream::new(&self.context)?);
        let mut others = self.lock();
        others.streams.retain(|other| other.strong_count() > 0);
        others.streams.push(Arc::downgrade(&stream));
        Ok(stream)
    }

    /// Waits on the host until all streams are done.
    ///
    /// # Errors
    /// While any thread captures a graph of this device, because its streams may be part of the
    /// capture; other failures of the driver.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let others: Vec<Arc<RawStream>> = {
            let others = self.lock();
            if others.captures > 0 {
                bail!(
                    Invalid,
                    "synchronize during Device::capture: another thread is capturing a graph of \
                     this device; synchronize one stream (Stream::synchronize), or wait until the \
                     capture has ended"
                );
            }
            others.streams.iter().filter_map(Weak::upgrade).collect()
        };
        relaxed(|| {
            self.base.synchronize()?;
            others.iter().try_for_each(|stream| stream.synchronize())
        })
    }

    /// Counts a capture that begins.
    pub(crate) fn capture_begins(&self) {
        self.lock().captures += 1;
    }

    /// Counts a capture that has ended.
    pub(crate) fn capture_ends(&self) {
        self.lock().captures -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
