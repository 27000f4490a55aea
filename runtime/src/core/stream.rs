//! Streams: work that runs concurrently with other work of the same device.
//!
//! [`with_stream`] runs a closure with another stream as the current stream of the thread. This is
//! a *scope*. It returns a [`Pending`], which keeps the tensors that the work uses alive until it
//! is waited for or dropped. So no tensor carries an event, and no memory is reused too early:
//!
//! - At the start of a scope, its stream waits for all work enqueued so far on the enclosing
//!   stream.
//! - Memory belongs to the stream that allocated it, and is freed to it.
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

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::core::storage::Storage;
use crate::core::stream_uses::{Access, ScopeId};
use crate::driver::{CudaError, Event, Gpu, Pool, RawStream};
use crate::{Device, Error, Kind, Result};

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
    /// [`Error::Cuda`] with the failure of earlier work; [`CudaError::Capture`] inside
    /// [`Device::capture`].
    pub fn synchronize(&self) -> Result<()> {
        match self.gpu() {
            Some(gpu) => {
                forbid_in_capture("synchronize")?;
                self.count_wait();
                Ok(gpu.synchronize()?)
            }
            None => Ok(()),
        }
    }

    /// A new stream of this device. On a device without streams, its work runs synchronously.
    ///
    /// # Errors
    /// [`Error::Cuda`] when the driver fails.
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
    /// The device of this stream.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Waits on the host until all work of this stream is done.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the failure of earlier work; [`CudaError::Capture`] inside
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

impl Stream {
    /// Makes this the current stream of the thread.
    pub(super) fn enter(&self) -> ScopeGuard {
        let pool = Pool {
            stream: self.0.id,
            ..pool(self.device())
        };
        ScopeGuard::new(self.device(), pool, self.0.raw.clone())
    }

    /// The end of the work enqueued so far on the current stream of this device; `None` on a CPU.
    pub(super) fn enclosing_event(&self) -> Result<Option<Event>, CudaError> {
        let gpu = self.device().gpu();
        gpu.map(|gpu| raw(self.device(), gpu).record()).transpose()
    }
}

/// The stream on which the calling thread enqueues its work, and the storages that the work uses.
pub(super) struct Scope {
    /// Unique in this process.
    id: u64,
    device: Device,
    pool: Pool,
    /// `Some` on a GPU.
    raw: Option<Arc<RawStream>>,
    used: UsedStorages,
}

impl Scope {
    fn new(device: &Device, pool: Pool, raw: Option<Arc<RawStream>>) -> Scope {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Scope {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            device: device.clone(),
            pool,
            raw,
            used: SPARE.with_borrow_mut(Vec::pop).unwrap_or_default(),
        }
    }

    pub(super) fn raw(&self) -> Option<&Arc<RawStream>> {
        self.raw.as_ref()
    }

    fn scope_id(&self) -> ScopeId {
        ScopeId {
            scope: self.id,
            stream: self.pool.stream,
        }
    }

    /// Keeps `storage` alive until the work is waited for, and records a use if it is mutable.
    fn keep(&mut self, storage: &Arc<Storage>, access: Access) {
        let own = storage.pool() == self.pool;
        let is_new = match storage.kind() {
            Kind::Value => !own && storage.is_new_to(self.id),
            // It was allocated for a graph, and only that graph uses it.
            _ if own && self.pool.stream == 0 => false,
            _ => storage.uses().add(self.scope_id(), access),
        };
        if !own {
            storage.mark_used_elsewhere();
        }
        match (is_new, own) {
            (false, _) => {}
            (true, false) => self.used.kept.push(storage.clone()),
            (true, true) => self.used.own.push(Arc::downgrade(storage)),
        }
    }
}

/// Storages that the work of a scope uses.
#[derive(Default)]
struct UsedStorages {
    /// Storages of other pools. They live until the work is done.
    kept: Vec<Arc<Storage>>,
    /// Mutable storages of the scope's own pool. They may be freed earlier, because only later work
    /// of the same stream reuses their memory.
    own: Vec<Weak<Storage>>,
    /// Storages of other devices, and results. They live until the work is waited for.
    foreign: Vec<Arc<Storage>>,
}

impl UsedStorages {
    /// The storages that still exist.
    fn all(&self) -> impl Iterator<Item = Arc<Storage>> {
        let own = self.own.iter().filter_map(Weak::upgrade);
        self.kept.iter().cloned().chain(own)
    }

    /// Whether its vectors have heap memory to reuse.
    fn has_capacity(&self) -> bool {
        self.kept.capacity() + self.own.capacity() + self.foreign.capacity() > 0
    }

    fn clear(&mut self) {
        self.kept.clear();
        self.own.clear();
        self.foreign.clear();
    }
}

/// The most empty lists that a thread keeps. Scopes seldom nest deeper.
const MAX_SPARE: usize = 16;

thread_local! {
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };

    /// Empty lists for later scopes, which then allocate no heap memory.
    static SPARE: RefCell<Vec<UsedStorages>> = const { RefCell::new(Vec::new()) };
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

/// The pool of the current scope, from which tensors are allocated.
pub(crate) fn pool(device: &Device) -> Pool {
    innermost(device, |scope| {
        scope.map_or_else(Pool::default, |scope| scope.pool)
    })
}

/// The current stream of `gpu`, which belongs to `device`.
pub(crate) fn raw(device: &Device, gpu: &Gpu) -> Arc<RawStream> {
    let of_scope = innermost(device, |scope| scope.and_then(|scope| scope.raw.clone()));
    of_scope.unwrap_or_else(|| gpu.base().clone())
}

/// Records that work which `op` enqueues on the current stream uses `storage`.
///
/// # Errors
/// [`Error::Busy`] when the use conflicts with work of a stream that this work is not ordered
/// after.
pub(crate) fn record_use(storage: &Arc<Storage>, access: Access, op: &'static str) -> Result<()> {
    SCOPES.with_borrow_mut(|scopes| {
        let of_device = |scope: &&mut Scope| scope.device == *storage.device();
        // A scope's stream has waited for the streams of the enclosing scopes.
        let before = |stream| {
            let mut around = scopes
                .iter()
                .filter(|scope| scope.device == *storage.device());
            around.any(|scope| scope.pool.stream == stream)
        };
        if storage.kind() != Kind::Value && !storage.uses().allow(access, before) {
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

/// Keeps storages of other devices and streams until the work of the current scope of `device` is
/// waited for.
///
/// # Errors
/// [`Error::Argument`] outside of any scope of the device.
pub(crate) fn keep<'a>(
    device: &Device,
    storages: impl Iterator<Item = &'a Arc<Storage>>,
    op: &'static str,
) -> Result<()> {
    innermost(device, |scope| {
        let Some(scope) = scope else {
            let problem = "is called outside of `StreamWork::run`".to_owned();
            return Err(Error::Argument { op, problem });
        };
        let pool = scope.pool;
        let others = storages.filter(|it| it.device() != device || it.pool() != pool);
        scope.used.foreign.extend(others.cloned());
        Ok(())
    })
}

/// Whether this thread is capturing a graph.
pub(crate) fn capturing() -> bool {
    SCOPES.with_borrow(|scopes| scopes.iter().any(|scope| scope.pool.graph != 0))
}

/// Fails if this thread is capturing a graph, for an `op` that waits for the GPU.
pub(crate) fn forbid_in_capture(op: &'static str) -> Result<(), CudaError> {
    match capturing() {
        false => Ok(()),
        true => Err(CudaError::Capture {
            op,
            problem: "a graph cannot wait for the GPU or copy from the host; do that before or \
                      after the capture",
        }),
    }
}

/// A scope that has been entered, until [`ScopeGuard::leave`]. If it is dropped instead, because
/// the work panicked, the enclosing stream waits for the work.
pub(crate) struct ScopeGuard(());

impl ScopeGuard {
    pub(crate) fn new(device: &Device, pool: Pool, raw: Option<Arc<RawStream>>) -> ScopeGuard {
        let scope = Scope::new(device, pool, raw);
        SCOPES.with_borrow_mut(|scopes| scopes.push(scope));
        ScopeGuard(())
    }

    /// Enters a scope again that [`ScopeGuard::suspend`] left, on any thread.
    pub(super) fn resume(scope: Scope) -> ScopeGuard {
        SCOPES.with_borrow_mut(|scopes| scopes.push(scope));
        ScopeGuard(())
    }

    /// Leaves the scope, and does not end it.
    pub(super) fn suspend(self) -> Scope {
        std::mem::forget(self);
        match SCOPES.with_borrow_mut(Vec::pop) {
            Some(scope) => scope,
            None => unreachable!("an entered scope is left once"),
        }
    }

    /// Ends the scope. Call it even if the work failed, because the GPU still runs what was
    /// enqueued.
    pub(crate) fn leave(self) -> Result<Join, CudaError> {
        std::mem::forget(self);
        ScopeGuard::end()
    }

    /// Scopes end in the reverse of the order in which they began.
    fn end() -> Result<Join, CudaError> {
        match SCOPES.with_borrow_mut(Vec::pop) {
            Some(scope) => Join::new(scope),
            None => unreachable!("an entered scope ends once"),
        }
    }
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        drop(ScopeGuard::end());
    }
}

/// Runs `work` with `stream` as the current stream of this thread. The stream first waits for all
/// work enqueued so far on the enclosing stream: the one that is current at the call. The work then
/// runs concurrently with later work of the enclosing stream.
///
/// Until the [`Pending`] is waited for or dropped, other streams cannot write mutable tensors
/// (parameters, caches) that the work reads, nor use those that it writes: such ops return
/// [`Error::Busy`].
///
/// # Errors
/// The error of `work`; [`Error::Cuda`] when the driver fails.
pub fn with_stream<T, E: From<Error>>(
    stream: &Stream,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<Pending<T>, E> {
    begin(stream).map_err(Error::from)?;
    let scope = stream.enter();
    let value = work();
    let join = scope.leave().map_err(Error::from)?;
    Ok(Pending(Work::Stream {
        value: value?,
        join,
    }))
}

/// Makes `stream` wait for all work enqueued so far on the current stream.
fn begin(stream: &Stream) -> Result<(), CudaError> {
    let device = stream.device();
    let around = pool(device);
    if around.stream == 0 {
        // Blocks that are freed after this may be used by work that the stream does not wait for.
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

/// The result of work that may still be running, and the tensors that the work uses. The work is
/// either enqueued on another stream ([`with_stream`]) or completed by other host threads
/// ([`Pending::by_host`]).
///
/// If it is dropped without [`Pending::wait`], the memory is still kept until the work is done.
#[must_use = "the result is ready for the current stream after `wait`"]
pub struct Pending<T>(Work<T>);

enum Work<T> {
    Stream { value: T, join: Join },
    Host(Box<dyn FnOnce() -> Result<T> + Send>),
}

impl<T> Pending<T> {
    /// Work that other host threads complete. `wait` blocks until it is complete, usually on a
    /// [`Completion`](crate::Completion), and returns the result. `wait` owns the tensors that
    /// [`Pending::wait`] returns; the threads that do the work own the ones that they use.
    pub fn by_host(wait: impl FnOnce() -> Result<T> + Send + 'static) -> Pending<T> {
        Pending(Work::Host(Box::new(wait)))
    }

    /// Waits for the work, and returns its result. For work on a stream, the current stream waits
    /// and the host does not. For work of host threads, the calling thread blocks.
    ///
    /// # Errors
    /// [`Error::Cuda`] when the driver fails; the error of host work.
    pub fn wait(self) -> Result<T> {
        match self.0 {
            Work::Stream { value, mut join } => {
                join.join()?;
                Ok(value)
            }
            Work::Host(wait) => wait(),
        }
    }

    /// The same work with another form of its result, such as one tensor of several. `f` must not
    /// read or compute: work on a stream may not have written the tensors yet.
    pub fn map<U>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Pending<U>
    where
        T: 'static,
    {
        match self.0 {
            Work::Stream { value, join } => Pending(Work::Stream {
                value: f(value),
                join,
            }),
            Work::Host(wait) => Pending::by_host(move || wait().map(f)),
        }
    }

    /// [`Pending::map`] with a function that can fail; [`Pending::wait`] returns its error.
    pub fn and_then<U>(self, f: impl FnOnce(T) -> Result<U> + Send + 'static) -> Pending<U>
    where
        T: 'static,
    {
        match self.0 {
            Work::Stream { value, mut join } => match f(value) {
                Ok(value) => Pending(Work::Stream { value, join }),
                Err(error) => Pending::by_host(move || {
                    join.join()?;
                    Err(error)
                }),
            },
            Work::Host(wait) => Pending::by_host(move || wait().and_then(f)),
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Work::Stream { join, .. } => write!(f, "Pending(on {})", join.device),
            Work::Host(_) => f.write_str("Pending(on the host)"),
        }
    }
}

/// The event at the end of a scope's work, and the storages that the work uses.
pub(crate) struct Join {
    scope: u64,
    device: Device,
    /// The graph that the work was recorded for, or 0.
    graph: u32,
    event: Option<Event>,
    used: UsedStorages,
}

impl Join {
    pub(super) fn new(scope: Scope) -> Result<Join, CudaError> {
        let side = scope.raw.filter(|_| scope.pool.stream != 0);
        let event = side.map(|raw| raw.record()).transpose();
        let join = |event, used| Join {
            scope: scope.id,
            device: scope.device.clone(),
            graph: scope.pool.graph,
            event,
            used,
        };
        match event {
            Ok(event) => Ok(join(event, scope.used)),
            Err(error) => {
                // The work may still run, so its memory is leaked rather than reused.
                std::mem::forget(scope.used);
                Err(error)
            }
        }
    }

    /// Makes the current stream wait for the work. The storages that the work used are then
    /// released, or handed over to the scope of the current stream.
    pub(super) fn join(&mut self) -> Result<(), CudaError> {
        // Work that was captured but is not part of a finished graph never runs.
        let abandoned = self.graph != 0 && pool(&self.device).graph != self.graph;
        if let (Some(event), Some(gpu)) = (&self.event, self.device.gpu())
            && !abandoned
        {
            raw(&self.device, gpu).wait(event)?;
        }
        self.event = None;
        innermost(&self.device, |around| self.hand_over(around));
        recycle(std::mem::take(&mut self.used));
        Ok(())
    }

    /// Waits on the host for the work, and releases the storages.
    pub(super) fn synchronize(mut self) {
        match self.event.take().map(|event| event.synchronize()) {
            // The work may still run, so its memory is leaked rather than reused.
            Some(Err(_)) => std::mem::forget(std::mem::take(&mut self.used)),
            _ => drop(self),
        }
    }

    /// Ends the scope's uses, and hands the storages over to the enclosing scope.
    fn hand_over(&self, around: Option<&mut Scope>) {
        let mut around = around;
        for storage in self.used.all() {
            let access = storage.uses().end(self.scope).unwrap_or(Access::Read);
            match &mut around {
                Some(scope) => scope.keep(&storage, access),
                None if storage.pool() != Pool::default() => storage.mark_used_elsewhere(),
                None => {}
            }
        }
    }

    /// The storages that the work of a graph uses, and the access to each. The graph keeps them
    /// alive from now on.
    pub(crate) fn into_used(mut self) -> Vec<(Arc<Storage>, Access)> {
        let used = std::mem::take(&mut self.used).kept.into_iter();
        let with_access = used.map(|storage| {
            let access = storage.uses().end(self.scope).unwrap_or(Access::Read);
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
            // The work may still run, so its memory is leaked rather than reused.
            std::mem::forget(std::mem::take(&mut self.used));
        }
    }
}

/// Clears a list and keeps it for another scope. Called outside of any borrow of the thread-locals,
/// because clearing may drop storages.
fn recycle(mut used: UsedStorages) {
    used.clear();
    SPARE.with_borrow_mut(|spare| {
        // A `Pending` may be dropped on another thread, where lists could otherwise accumulate.
        if used.has_capacity() && spare.len() < MAX_SPARE {
            spare.push(used);
        }
    });
}

#[cfg(test)]
mod tests;
