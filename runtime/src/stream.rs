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
//! On a device without streams the work runs in the scope, and waiting does nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::cuda::{CudaError, Event, Gpu, Pool, RawStream};
use crate::storage::Storage;
use crate::{Device, Error, Result};

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
                forbid_in_capture("synchronize")?;
                Ok(raw.synchronize()?)
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
    device: Device,
    pool: Pool,
    /// On a GPU.
    raw: Option<Arc<RawStream>>,
    touched: Touched,
}

/// Storages that work used and that are of other pools than its own, by their own address.
pub(crate) type Touched = BTreeMap<usize, Arc<Storage>>;

thread_local! {
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
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

/// Says that work of the current stream uses `storage`.
pub(crate) fn touch(storage: &Arc<Storage>) {
    let home = storage.pool();
    innermost(storage.device(), |scope| match scope {
        Some(scope) if scope.pool != home => {
            storage.mark_used_elsewhere();
            let address = Arc::as_ptr(storage) as usize;
            scope
                .touched
                .entry(address)
                .or_insert_with(|| storage.clone());
        }
        None if home != Pool::default() => storage.mark_used_elsewhere(),
        _ => {}
    });
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

/// A scope that was entered and ends when this is dropped.
pub(crate) struct Entered {
    device: Device,
}

impl Entered {
    pub(crate) fn new(device: &Device, pool: Pool, raw: Option<Arc<RawStream>>) -> Entered {
        let scope = Scope {
            device: device.clone(),
            pool,
            raw,
            touched: Touched::new(),
        };
        SCOPES.with_borrow_mut(|scopes| scopes.push(scope));
        Entered {
            device: device.clone(),
        }
    }

    /// Ends the scope and returns what its work touched of others.
    pub(crate) fn leave(self) -> Touched {
        innermost(&self.device, |scope| {
            scope
                .map(|scope| std::mem::take(&mut scope.touched))
                .unwrap_or_default()
        })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Scopes end in the reverse of the order in which they began. The scope is dropped outside
        // of the borrow, for its tensors look at scopes.
        let scope = SCOPES.with_borrow_mut(Vec::pop);
        if std::thread::panicking() {
            // Nobody will wait for the work: better to lose the memory than to reuse it.
            std::mem::forget(scope);
        }
    }
}

/// Runs `work` with `stream` as the current stream of this thread. The stream first waits for all
/// work that the stream around was given so far; the work itself runs beside what comes after.
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

    // Failed or not: the GPU does what it was given, and uses what that touches.
    let mut join = Join {
        device: device.clone(),
        event: None,
        touched: entered.leave(),
    };
    if let Some(raw) = &stream.0.raw {
        join.event = Some(raw.record().map_err(Error::from)?);
    }
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

/// The end of work on another stream, and what the work touched.
struct Join {
    device: Device,
    event: Option<Event>,
    touched: Touched,
}

impl Join {
    /// Lets the current stream wait for the work. What the work touched may then go, unless the
    /// current stream is a scope too: then it is the scope's.
    fn join(&mut self) -> Result<(), CudaError> {
        if let (Some(event), Some(gpu)) = (&self.event, self.device.gpu()) {
            raw(&self.device, gpu).wait(event)?;
        }
        self.event = None;

        let touched = std::mem::take(&mut self.touched);
        for storage in touched.values() {
            touch(storage);
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GpuProperties, Properties, Tensor, ops};

    /// A GPU that only counts: scopes and memory behave there as they do on a real one.
    fn counted_gpu() -> Device {
        let gpu = GpuProperties {
            model: "counted".into(),
            compute_capability: (9, 0),
            multiprocessors: 132,
            memory: 1 << 30,
            l2_cache: 50 << 20,
            shared_memory: 232_448,
        };
        Device::meta(&Properties {
            gpu: Some(gpu),
            ..Device::cpu().properties().clone()
        })
    }

    fn tensor(device: &Device) -> Tensor {
        ops::full(device, &[1000], crate::DType::F32, 1.0).unwrap()
    }

    /// How much memory of one tensor there is.
    const ONE: usize = 4096;

    #[test]
    fn a_pending_keeps_what_its_work_reads() {
        let device = counted_gpu();
        let stream = device.stream().unwrap();
        let x = tensor(&device);
        let pending = with_stream(&stream, || ops::neg(&x)).unwrap();
        drop(x);
        assert_eq!(device.memory().live, 2 * ONE);

        let y = pending.wait().unwrap();
        assert_eq!(device.memory().live, ONE);
        drop(y);
        assert_eq!(device.memory().live, 0);
    }

    #[test]
    fn dropping_a_pending_lets_go() {
        let device = counted_gpu();
        let stream = device.stream().unwrap();
        let x = tensor(&device);
        drop(with_stream(&stream, || ops::neg(&x)).unwrap());
        drop(x);
        assert_eq!(device.memory().live, 0);
    }

    /// Memory that the first stream used is given out on its own stream only after that has waited.
    #[test]
    fn memory_comes_back_to_its_stream() {
        let device = counted_gpu();
        let stream = device.stream().unwrap();
        let x = tensor(&device);
        let make = || with_stream(&stream, || ops::neg(&x)).unwrap();

        let unused = make().wait().unwrap();
        let first = unused.address().unwrap();
        drop(unused);
        let used = make().wait().unwrap();
        assert_eq!(used.address().unwrap(), first, "nobody else used it");

        ops::neg(&used).unwrap();
        let inside = with_stream(&stream, || {
            drop(used);
            ops::neg(&x)
        });
        let inside = inside.unwrap().wait().unwrap();
        assert_ne!(
            inside.address().unwrap(),
            first,
            "this scope began before it came back"
        );
        assert_eq!(make().wait().unwrap().address().unwrap(), first);
    }

    /// A scope inside another: what the inner one reads of outside lives until the outer is joined.
    #[test]
    fn scopes_nest() {
        let device = counted_gpu();
        let (outer, inner) = (device.stream().unwrap(), device.stream().unwrap());
        let x = tensor(&device);
        let pending = with_stream(&outer, || with_stream(&inner, || ops::neg(&x))?.wait());
        let pending = pending.unwrap();
        drop(x);
        assert_eq!(device.memory().live, 2 * ONE);
        drop(pending.wait().unwrap());
        assert_eq!(device.memory().live, 0);
    }

    #[test]
    fn failed_work_leaves_no_scope() {
        let device = counted_gpu();
        let stream = device.stream().unwrap();
        let failed = with_stream(&stream, || Err::<(), Error>(Error::Busy { op: "test" }));
        assert!(matches!(failed, Err(Error::Busy { op: "test" })));
        assert_eq!(pool(&device), Pool::default());
    }

    #[test]
    fn devices_without_streams_do_the_work_at_once() {
        let device = Device::cpu();
        let stream = device.stream().unwrap();
        let x = tensor(&device);
        let y = with_stream(&stream, || ops::neg(&x))
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap()[..2], [-1.0; 2]);
    }

    /// What a graph works on is its own until it ends.
    #[test]
    fn graphs_own_their_memory() {
        let device = counted_gpu();
        let x = tensor(&device);
        let graph = device.capture(|| ops::neg(&ops::neg(&x)?)).unwrap();
        drop(x);
        assert_eq!(
            device.memory().live,
            2 * ONE,
            "x, which the graph reads, and its result"
        );
        drop(graph);
        assert_eq!(device.memory().live, 0);

        let cpu = Device::cpu();
        let refused = cpu.capture(|| Ok::<(), Error>(())).err();
        assert!(matches!(
            refused,
            Some(Error::Argument { op: "capture", .. })
        ));
    }
}
