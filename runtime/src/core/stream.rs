//! Streams: work that runs concurrently with other work of the same device.
//!
//! [`with_stream`] runs a closure with another stream as the current stream of the thread. This is
//! a *scope*. It returns a [`Pending`], which keeps the tensors that the work uses alive until it
//! is waited for or dropped. So no tensor carries an event, and no memory is reused too early:
//!
//! - At the start of a scope, its stream waits for all work enqueued so far on the enclosing
//!   stream.
//! - Memory belongs to the stream that allocated it, and returns to that stream when it is freed.
//! - A `Pending` keeps alive the tensors of other streams that its work uses. When it is waited for
//!   or dropped, the enclosing stream waits for the work, and the tensors may be freed.
//! - A tensor that the work allocated and other streams used is freed to its stream immediately.
//!   Its memory is reused only from that stream's next scope on, which waits for the other streams.
//!
//! While a `Pending` is outstanding, other work cannot write a mutable storage (a parameter, a
//! cache) that the pending work reads, nor use one that it writes. Work that is ordered after the
//! pending work may do both ([`super::stream_uses`]).
//!
//! On a device without streams the work runs synchronously, and waiting does nothing.
//!
//! A [`Pending`] can also be work that other host threads complete, such as a collective on the
//! CPU: [`Pending::by_host`].

mod pending;
mod scope;

use std::fmt;
use std::sync::Arc;

use crate::driver::{Event, Gpu, Pool, RawStream};
use crate::{Device, Error, Result};

pub use pending::Pending;
pub(crate) use scope::{
    Join, Scope, ScopeGuard, forbid_in_capture, in_stream_work, keep, pool, raw, record_use,
};
pub use scope::{captured_graph, is_capturing};

/// An in-order queue of work of a device, concurrent with its other streams. Cheap to clone.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    device: Device,
    /// Unique among the device's streams.
    id: u32,
    /// `Some` on a GPU.
    raw: Option<Arc<RawStream>>,
}

impl Device {
    /// Waits until all work of the device is done. Returns immediately on a CPU device.
    ///
    /// # Errors
    /// With the failure of earlier work; inside [`Device::capture`].
    pub fn synchronize(&self) -> Result<()> {
        match self.gpu() {
            Some(gpu) => {
                forbid_in_capture("synchronize")?;
                self.count_wait();
                gpu.synchronize()
            }
            None => Ok(()),
        }
    }

    /// A new stream of this device. On a device without streams, its work runs synchronously.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn stream(&self) -> Result<Stream> {
        let raw = self.gpu().map(Gpu::new_stream).transpose()?;
        Ok(Stream(Arc::new(Inner { device: self.clone(), id: self.next_stream(), raw })))
    }
}

impl Stream {
    /// The device of this stream.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Waits on the host until all work of this stream is done.
    ///
    /// # Errors
    /// With the failure of earlier work; inside [`Device::capture`].
    pub fn synchronize(&self) -> Result<()> {
        match &self.0.raw {
            Some(raw) => {
                forbid_in_capture("synchronize")?;
                self.0.device.count_wait();
                match self.0.device.gpu() {
                    Some(gpu) => gpu.wait_for(raw),
                    None => Ok(()),
                }
            }
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({}, {})", self.0.device, self.0.id)
    }
}

impl Stream {
    /// Makes this the current stream of the thread.
    pub(super) fn enter(&self) -> ScopeGuard {
        let pool = Pool { stream: self.0.id, ..pool(self.device()) };
        ScopeGuard::new(self.device(), pool, self.0.raw.clone())
    }

    /// The end of the work enqueued so far on the current stream of this device; `None` on a CPU.
    pub(super) fn enclosing_event(&self) -> Result<Option<Event>> {
        let gpu = self.device().gpu();
        gpu.map(|gpu| raw(self.device(), gpu).record()).transpose()
    }
}

/// Runs `work` with `stream` as the current stream of this thread. The stream first waits for all
/// work enqueued so far on the enclosing stream: the one that is current at the call. The work then
/// runs concurrently with later work of the enclosing stream.
///
/// Until the [`Pending`] is waited for or dropped, other streams cannot write mutable tensors
/// (parameters, caches) that the work reads, nor use those that it writes: such ops fail as
/// [busy](crate::ErrorKind::Busy).
///
/// # Errors
/// The error of `work`; when the driver fails.
pub fn with_stream<T, E: From<Error>>(
    stream: &Stream,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<Pending<T>, E> {
    begin(stream)?;
    let scope = stream.enter();
    let value = work();
    let join = scope.leave()?;
    Ok(Pending::on_stream(value?, join))
}

/// Makes `stream` wait for all work enqueued so far on the current stream.
fn begin(stream: &Stream) -> Result<()> {
    let device = stream.device();
    let around = pool(device);
    if around.stream == 0 {
        // Blocks that are freed later may be used by work that this stream does not wait for.
        if let Some(mut memory) = device.gpu_memory() {
            memory.flush(Pool { stream: stream.0.id, ..around });
        }
    }
    match (&stream.0.raw, device.gpu()) {
        (Some(to), Some(gpu)) => to.wait(&raw(device, gpu).record()?),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
