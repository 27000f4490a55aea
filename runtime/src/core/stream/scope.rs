//! The scopes of a thread: the stream that is current, and the storages that its work uses.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use meshgrad_error::{bail, error};

use crate::core::storage::{Storage, busy};
use crate::core::stream_uses::{Access, ScopeId};
use crate::driver::{Event, Gpu, Pool, RawStream};
use crate::{Device, Kind, Result};

/// The stream on which the calling thread enqueues its work, and the storages that the work uses.
pub(crate) struct Scope {
    /// Unique in this process.
    id: u64,
    device: Device,
    pool: Pool,
    /// `Some` on a GPU.
    raw: Option<Arc<RawStream>>,
    /// Whether its work may use loans, and the memory of other devices.
    is_stream_work: bool,
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
            is_stream_work: false,
            used: SPARE.with_borrow_mut(Vec::pop).unwrap_or_default(),
        }
    }

    pub(crate) fn raw(&self) -> Option<&Arc<RawStream>> {
        self.raw.as_ref()
    }

    fn scope_id(&self) -> ScopeId {
        ScopeId { scope: self.id, stream: self.pool.stream }
    }

    /// Keeps storages of other devices and streams until the work is waited for.
    pub(crate) fn keep_others<'a>(&mut self, storages: impl Iterator<Item = &'a Arc<Storage>>) {
        let Scope { device, pool, used, .. } = self;
        let others = storages.filter(|it| it.device() != device || it.pool() != *pool);
        used.foreign.extend(others.cloned());
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
    SCOPES
        .with_borrow_mut(|scopes| f(scopes.iter_mut().rev().find(|scope| scope.device == *device)))
}

/// The pool of the current scope, from which tensors are allocated.
pub(crate) fn pool(device: &Device) -> Pool {
    innermost(device, |scope| scope.map_or_else(Pool::default, |scope| scope.pool))
}

/// The current stream of `gpu`, which belongs to `device`.
pub(crate) fn raw(device: &Device, gpu: &Gpu) -> Arc<RawStream> {
    let of_scope = innermost(device, |scope| scope.and_then(|scope| scope.raw.clone()));
    of_scope.unwrap_or_else(|| gpu.base().clone())
}

/// Records that work which `op` enqueues on the current stream uses `storage`.
///
/// # Errors
/// When the use conflicts with work of a stream that this work is not ordered after.
pub(crate) fn record_use(storage: &Arc<Storage>, access: Access, op: &'static str) -> Result<()> {
    SCOPES.with_borrow_mut(|scopes| {
        let of_device = |scope: &&mut Scope| scope.device == *storage.device();
        // A scope's stream has waited for the streams of the enclosing scopes.
        let before = |stream| {
            let mut around = scopes.iter().filter(|scope| scope.device == *storage.device());
            around.any(|scope| scope.pool.stream == stream)
        };
        if storage.kind() != Kind::Value && !storage.uses().allow(access, before) {
            return Err(busy(op));
        }
        match scopes.iter_mut().rev().find(of_device) {
            Some(scope) => scope.keep(storage, access),
            None if storage.pool() != Pool::default() => storage.mark_used_elsewhere(),
            None => {}
        }
        Ok(())
    })
}

/// Whether the current scope of `device` belongs to a [`StreamWork`](crate::StreamWork).
pub(crate) fn in_stream_work(device: &Device) -> bool {
    innermost(device, |scope| scope.is_some_and(|scope| scope.is_stream_work))
}

/// Keeps storages of other devices and streams until the work of the current scope of `device` is
/// waited for.
///
/// # Errors
/// Unless the scope belongs to a [`StreamWork`](crate::StreamWork). A graph and
/// [`with_stream`](super::with_stream) do not order their work after work of other devices.
pub(crate) fn keep<'a>(
    device: &Device,
    storages: impl Iterator<Item = &'a Arc<Storage>>,
    op: &'static str,
) -> Result<()> {
    innermost(device, |scope| {
        let Some(scope) = scope.filter(|scope| scope.is_stream_work) else {
            bail!(Invalid, "{op}: it is called outside of `StreamWork::run`; call it inside");
        };
        scope.keep_others(storages);
        Ok(())
    })
}

/// Whether this thread is [capturing](crate::Device::capture) a graph.
pub fn is_capturing() -> bool {
    captured_graph().is_some()
}

/// The graph that this thread is [capturing](crate::Device::capture), as a number that is unique on its device.
pub fn captured_graph() -> Option<u32> {
    SCOPES.with_borrow(|scopes| {
        let mut graphs = scopes.iter().map(|scope| scope.pool.graph);
        graphs.find(|graph| *graph != 0)
    })
}

/// Fails if this thread is capturing a graph, for an `op` that waits for the GPU.
pub(crate) fn forbid_in_capture(op: &'static str) -> Result<()> {
    match is_capturing() {
        false => Ok(()),
        true => Err(error!(
            Invalid,
            "{op} during Device::capture: a graph cannot wait for the GPU or copy from the host; \
             do that before or after the capture"
        )),
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

    /// Allows the scope's work to use loans, and the memory of other devices.
    pub(crate) fn of_stream_work(self) -> ScopeGuard {
        SCOPES.with_borrow_mut(|scopes| {
            if let Some(scope) = scopes.last_mut() {
                scope.is_stream_work = true;
            }
        });
        self
    }

    /// Enters a scope again that [`ScopeGuard::suspend`] left, on any thread.
    pub(crate) fn resume(scope: Scope) -> ScopeGuard {
        SCOPES.with_borrow_mut(|scopes| scopes.push(scope));
        ScopeGuard(())
    }

    /// Leaves the scope, and does not end it.
    pub(crate) fn suspend(self) -> Scope {
        std::mem::forget(self);
        match SCOPES.with_borrow_mut(Vec::pop) {
            Some(scope) => scope,
            None => unreachable!("an entered scope is left once"),
        }
    }

    /// Ends the scope. Call it even if the work failed, because the GPU still runs what was
    /// enqueued.
    pub(crate) fn leave(self) -> Result<Join> {
        std::mem::forget(self);
        ScopeGuard::end()
    }

    /// Scopes end in the reverse of the order in which they began.
    fn end() -> Result<Join> {
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
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn new(scope: Scope) -> Result<Join> {
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
    pub(crate) fn join(&mut self) -> Result<()> {
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
    pub(crate) fn synchronize(mut self) {
        let Some(event) = self.event.take() else {
            return;
        };
        self.device.count_wait();
        if event.synchronize().is_err() {
            // The work may still run, so its memory is leaked rather than reused.
            std::mem::forget(std::mem::take(&mut self.used));
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
