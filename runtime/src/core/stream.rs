//! Streams: work that runs beside other work of the same device.
//!
//! The current stream is a scope of the thread: [`with_stream`] makes another stream the current
//! one while it runs, and returns a [`Pending`], which owns every tensor that the work touches
//! until someone waits. So no tensor carries an event, and no memory is reused too early:
//!
//! - a stream begins a scope by waiting for all that the stream around the scope was given so far;
//! - memory belongs to the stream that it was taken on, and comes back to it;
//! - what the work uses of other streams, its `Pending` keeps until it is joined: then the stream
//!   around waits for the work, and the memory may go;
//! - what the work made and others used afterwards comes back to its stream at once, but is given
//!   out again only in the next scope, which waits for those others.
//!
//! What may change (parameters, caches) is also held until then: nobody writes what the work reads
//! or uses what it writes, but work that comes after it in any case ([`super::stream_uses`]).
//!
//! On a device without streams the work runs in the scope, and waiting does nothing.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::core::storage::Storage;
use crate::core::stream_uses::{Access, Holder};
use crate::driver::{CudaError, Event, Gpu, Pool, RawStream};
use crate::{Device, Error, Kind, Result};

/// A queue of work of a device, done in order, beside its other streams. Cheap to clone.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    device: Device,
    /// Unique among the device's streams.
    id: u32,
    /// On a GPU.
    raw: Option<Arc<RawStream>>,
}

impl Device {
    /// A new stream of this device. On a device without streams work on it is done at once.
    ///
    /// # Errors
    /// [`Error::Cuda`] when the driver has none left.
    pub fn stream(&self) -> Result<Stream> {
        let raw = self.gpu().map(Gpu::new_stream).transpose()?;
        Ok(Stream(Arc::new(Inner {
            device: self.clone(),
            id: self.next_stream(),
            raw,
        })))
    }
}

impl Stream {
    /// Whose stream this is.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Waits on the host until all work that was put into this stream is done.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the failure of any work before; [`CudaError::Capture`] inside
    /// [`Device::capture`].
    pub fn synchronize(&self) -> Result<()> {
        match &self.0.raw {
            Some(raw) => {
                self.0.device.count_wait();
                forbid_in_capture("synchronize")?;
                match self.0.device.gpu() {
                    Some(gpu) => Ok(gpu.wait_for(raw)?),
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

/// Where the calling thread puts its work, and what that work touched of others.
struct Scope {
    /// No other scope of this process has it.
    id: u64,
    device: Device,
    pool: Pool,
    /// On a GPU.
    raw: Option<Arc<RawStream>>,
    touched: Touched,
}

impl Scope {
    fn new(device: &Device, pool: Pool, raw: Option<Arc<RawStream>>) -> Scope {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Scope {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            device: device.clone(),
            pool,
            raw,
            touched: SPARE.with_borrow_mut(Vec::pop).unwrap_or_default(),
        }
    }

    /// Who holds what its work uses.
    fn holder(&self) -> Holder {
        Holder {
            scope: self.id,
            stream: self.pool.stream,
        }
    }

    /// Keeps `storage` until the work was waited for, and holds it where it may change.
    fn keep(&mut self, storage: &Arc<Storage>, access: Access) {
        let own = storage.pool() == self.pool;
        let is_new = match storage.kind() {
            Kind::Value => !own && storage.is_new_to(self.id),
            // Made for a graph, used by that alone.
            _ if own && self.pool.stream == 0 => false,
            _ => storage.holds().add(self.holder(), access),
        };
        if !own {
            storage.mark_used_elsewhere();
        }
        match (is_new, own) {
            (false, _) => {}
            (true, false) => self.touched.kept.push(storage.clone()),
            (true, true) => self.touched.held.push(Arc::downgrade(storage)),
        }
    }
}

/// Storages that work of a scope used.
#[derive(Default)]
struct Touched {
    /// Of other pools than its own: they live until the work is done.
    kept: Vec<Arc<Storage>>,
    /// Of its own pool, and such as may change: their memory may be taken again by what comes after.
    held: Vec<Weak<Storage>>,
}

impl Touched {
    /// Those that exist still.
    fn all(&self) -> impl Iterator<Item = Arc<Storage>> {
        let held = self.held.iter().filter_map(Weak::upgrade);
        self.kept.iter().cloned().chain(held)
    }

    /// Whether it has memory that is worth keeping.
    fn has_room(&self) -> bool {
        self.kept.capacity() + self.held.capacity() > 0
    }

    fn clear(&mut self) {
        self.kept.clear();
        self.held.clear();
    }
}

/// How many lists a thread keeps: scopes seldom nest deeper.
const MOST_SPARE: usize = 16;

thread_local! {
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };

    /// Empty lists for the scopes to come, so that these touch no heap.
    static SPARE: RefCell<Vec<Touched>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with the innermost scope of `device` on this thread.
fn innermost<T>(device: &Device, f: impl FnOnce(Option<&mut Scope>) -> T) -> T {
    SCOPES.with_borrow_mut(|scopes| {
        f(scopes
            .iter_mut()
            .rev()
            .find(|scope| scope.device == *device))
    })
}

/// The pool that memory is taken of now.
pub(crate) fn pool(device: &Device) -> Pool {
    innermost(device, |scope| {
        scope.map_or_else(Pool::default, |scope| scope.pool)
    })
}

/// The stream of `gpu`, which is `device`'s, that work is put into now.
pub(crate) fn raw(device: &Device, gpu: &Gpu) -> Arc<RawStream> {
    let of_scope = innermost(device, |scope| scope.and_then(|scope| scope.raw.clone()));
    of_scope.unwrap_or_else(|| gpu.base().clone())
}

/// Says that work of the current stream, put there by `op`, uses `storage`.
///
/// # Errors
/// [`Error::Busy`] where work that this does not come after makes a difference.
pub(crate) fn touch(storage: &Arc<Storage>, access: Access, op: &'static str) -> Result<()> {
    SCOPES.with_borrow_mut(|scopes| {
        let of_device = |scope: &&mut Scope| scope.device == *storage.device();
        // A scope's stream has waited for those around it.
        let before = |stream| {
            let mut around = scopes
                .iter()
                .filter(|scope| scope.device == *storage.device());
            around.any(|scope| scope.pool.stream == stream)
        };
        if storage.kind() != Kind::Value && !storage.holds().allow(access, before) {
            return Err(Error::Busy { op });
        }
        match scopes.iter_mut().rev().find(of_device) {
            Some(scope) => scope.keep(storage, access),
            None if storage.pool() != Pool::default() => storage.mark_used_elsewhere(),
            None => {}
        }
        Ok(())
    })
}

/// Whether this thread captures a graph.
pub(crate) fn capturing() -> bool {
    SCOPES.with_borrow(|scopes| scopes.iter().any(|scope| scope.pool.graph != 0))
}

/// The error of `op`, which waits for the GPU, where a graph is captured.
pub(crate) fn forbid_in_capture(op: &'static str) -> Result<(), CudaError> {
    match capturing() {
        false => Ok(()),
        true => Err(CudaError::Capture {
            op,
            problem: "a graph cannot contain what waits for the GPU or copies from the host: do \
                      it before or after",
        }),
    }
}

/// A scope that was entered, until [`Entered::leave`]. Dropped instead, because the work panicked,
/// it lets the stream around wait for the work.
pub(crate) struct Entered(());

impl Entered {
    pub(crate) fn new(device: &Device, pool: Pool, raw: Option<Arc<RawStream>>) -> Entered {
        let scope = Scope::new(device, pool, raw);
        SCOPES.with_borrow_mut(|scopes| scopes.push(scope));
        Entered(())
    }

    /// Ends the scope. Failed or not: the GPU does what it was given, and uses what that touches.
    pub(crate) fn leave(self) -> Result<Join, CudaError> {
        std::mem::forget(self);
        Entered::end()
    }

    /// Scopes end in the reverse of the order in which they began.
    fn end() -> Result<Join, CudaError> {
        match SCOPES.with_borrow_mut(Vec::pop) {
            Some(scope) => Join::new(scope),
            None => unreachable!("a scope that was entered ends once"),
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        drop(Entered::end());
    }
}

/// Runs `work` with `stream` as the current stream of this thread. The stream first waits for all
/// work that the stream around was given so far; the work itself runs beside what comes after.
///
/// Until the [`Pending`] is waited for or dropped, what the work reads of parameters, caches and
/// their like cannot be written, and what it writes of them cannot be used, outside of this stream:
/// [`Error::Busy`].
///
/// # Errors
/// What `work` returns; [`Error::Cuda`] when the driver fails.
pub fn with_stream<T, E: From<Error>>(
    stream: &Stream,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<Pending<T>, E> {
    let device = stream.device();
    begin(stream).map_err(Error::from)?;
    let pool = Pool {
        stream: stream.0.id,
        ..pool(device)
    };
    let entered = Entered::new(device, pool, stream.0.raw.clone());
    let value = work();
    let join = entered.leave().map_err(Error::from)?;
    Ok(Pending {
        value: value?,
        join,
    })
}

/// Lets `stream` wait for all that the current stream was given so far.
fn begin(stream: &Stream) -> Result<(), CudaError> {
    let device = stream.device();
    let around = pool(device);
    if around.stream == 0 {
        // What comes back after this may be used by work that the stream does not wait for.
        if let Some(mut memory) = device.gpu_memory() {
            memory.flush(Pool {
                stream: stream.0.id,
                ..around
            });
        }
    }
    match (&stream.0.raw, device.gpu()) {
        (Some(to), Some(gpu)) => to.wait(&raw(device, gpu).record()?),
        _ => Ok(()),
    }
}

/// The result of work on another stream, which may not be done yet, and all that the work touches.
///
/// Dropped without [`Pending::wait`] it still keeps the memory until the work is done.
#[must_use = "the result is ready for the current stream after `wait`"]
pub struct Pending<T> {
    value: T,
    join: Join,
}

impl<T> Pending<T> {
    /// Lets the current stream wait for the work, and returns its result. The host does not wait.
    ///
    /// # Errors
    /// [`Error::Cuda`] when the driver fails.
    pub fn wait(mut self) -> Result<T> {
        self.join.join()?;
        Ok(self.value)
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending(on {})", self.join.device)
    }
}

/// The end of a scope's work, and what the work touched.
pub(crate) struct Join {
    scope: u64,
    device: Device,
    /// The graph that the work was recorded for, or 0.
    graph: u32,
    event: Option<Event>,
    touched: Touched,
}

impl Join {
    fn new(scope: Scope) -> Result<Join, CudaError> {
        let side = scope.raw.filter(|_| scope.pool.stream != 0);
        let event = side.map(|raw| raw.record()).transpose();
        let join = |event, touched| Join {
            scope: scope.id,
            device: scope.device.clone(),
            graph: scope.pool.graph,
            event,
            touched,
        };
        match event {
            Ok(event) => Ok(join(event, scope.touched)),
            Err(error) => {
                // Nobody knows when the work is done: better to lose the memory than to reuse it.
                std::mem::forget(scope.touched);
                Err(error)
            }
        }
    }

    /// Lets the current stream wait for the work. What the work touched may then go, unless the
    /// current stream is a scope too: then it is the scope's.
    fn join(&mut self) -> Result<(), CudaError> {
        // What was recorded and never became part of its graph is never done.
        let recorded_for_nothing = self.graph != 0 && pool(&self.device).graph != self.graph;
        if let (Some(event), Some(gpu)) = (&self.event, self.device.gpu())
            && !recorded_for_nothing
        {
            raw(&self.device, gpu).wait(event)?;
        }
        self.event = None;
        innermost(&self.device, |around| self.hand_over(around));
        give_back_list(std::mem::take(&mut self.touched));
        Ok(())
    }

    /// Ends the scope's holds, and lets the scope around have what the work touched.
    fn hand_over(&self, around: Option<&mut Scope>) {
        let mut around = around;
        for storage in self.touched.all() {
            let access = storage.holds().end(self.scope).unwrap_or(Access::Read);
            match &mut around {
                Some(scope) => scope.keep(&storage, access),
                None if storage.pool() != Pool::default() => storage.mark_used_elsewhere(),
                None => {}
            }
        }
    }

    /// What the work of a graph touched, and how: the graph's from now on.
    pub(crate) fn into_touched(mut self) -> Vec<(Arc<Storage>, Access)> {
        let touched = std::mem::take(&mut self.touched).kept.into_iter();
        let with_access = touched.map(|storage| {
            let access = storage.holds().end(self.scope).unwrap_or(Access::Read);
            if storage.pool() != Pool::default() {
                storage.mark_used_elsewhere();
            }
            (storage, access)
        });
        with_access.collect()
    }
}

impl Drop for Join {
    fn drop(&mut self) {
        if self.join().is_err() {
            // Nobody knows when the work is done: better to lose the memory than to reuse it.
            std::mem::forget(std::mem::take(&mut self.touched));
        }
    }
}

/// Empties a list and keeps it for another scope. Outside of any borrow, for what it owned may end
/// here.
fn give_back_list(mut touched: Touched) {
    touched.clear();
    SPARE.with_borrow_mut(|spare| {
        // The scopes may have been another thread's.
        if touched.has_room() && spare.len() < MOST_SPARE {
            spare.push(touched);
        }
    });
}

#[cfg(test)]
mod tests;
