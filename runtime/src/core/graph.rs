//! CUDA graphs: GPU work that is captured once and then launched as a whole.

use std::cell::RefCell;
use std::sync::Arc;

use meshgrad_error::{ensure, error};

#[cfg(doc)]
use crate::Tensor;
use crate::core::storage::{Storage, busy};
use crate::core::stream::{self, ScopeGuard};
use crate::core::stream_uses::Access;
use crate::driver::{Capture, Gpu, Pool, RawGraph};
use crate::{Device, Error, Result, StreamEvent};

/// Work that [`Device::capture`] captured, and its results.
///
/// It owns every tensor that the work uses, and has its own memory for all tensors that the work
/// creates: each [`Graph::launch`] reads and writes the same addresses. Write its inputs to mutable
/// tensors ([`Kind::Cache`](crate::Kind::Cache)), and read its results before the next launch.
pub struct Graph<T> {
    results: T,
    recorded: Recorded,
}

/// The memory and the captured work of a graph, or of a capture that failed.
struct Recorded {
    device: Device,
    id: u32,
    raw: Option<RawGraph>,
    /// Storages that the work uses and did not create.
    used: Vec<Used>,
    /// What is called after each launch. Dropped last: libraries keep here what the work uses.
    launched: Vec<Launched>,
}

/// Called with the end of a launch.
type Launched = Box<dyn FnMut(&StreamEvent) + Send>;

thread_local! {
    /// For the graph that this thread is capturing.
    static LAUNCHED: RefCell<Vec<Launched>> = const { RefCell::new(Vec::new()) };
}

/// Calls `launched` after each launch of the graph that this thread is capturing, with the end of the launch. For
/// libraries that must know when their captured work runs. It is dropped after the captured work.
pub fn after_launches(launched: impl FnMut(&StreamEvent) + Send + 'static) {
    LAUNCHED.with_borrow_mut(|all| all.push(Box::new(launched)));
}

struct Used {
    storage: Arc<Storage>,
    access: Access,
    /// Where the captured work uses it.
    address: u64,
}

impl Used {
    fn check(&self) -> Result<()> {
        let op = "launch";
        if !self.storage.uses().allow(self.access, |_| false) {
            return Err(busy(op));
        }
        ensure!(
            self.storage.raw_address(op)? == self.address,
            Invalid,
            "{op}: a tensor that the graph uses has slept and is at another address now; capture \
             the graph again"
        );
        Ok(())
    }
}

impl Device {
    /// Captures the work that `work` enqueues on the streams of this GPU, without running it. The
    /// memory that the work allocates belongs to the graph.
    ///
    /// # Errors
    /// The error of `work`; for an operation that a graph cannot contain: reading values on the
    /// host, copying from the host, synchronizing; on a device without graphs and inside another
    /// capture or [`with_stream`](crate::with_stream).
    pub fn capture<T, E: From<Error>>(
        &self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<Graph<T>, E> {
        if !self.is_gpu() {
            let none = error!(
                Invalid,
                "capture: {self} has no graphs, only GPUs do; run the work directly"
            );
            return Err(none.into());
        }
        if stream::pool(self) != Pool::default() {
            let nested = error!(
                Invalid,
                "capture: it is inside another capture or `with_stream`; call it outside"
            );
            return Err(nested.into());
        }

        // The order matters: locals are dropped in reverse order, even if `work` panics.
        let id = self.next_graph();
        let launched = LAUNCHED.take(); // of a capture that ended in a panic
        drop(launched);
        let mut recorded = Recorded {
            device: self.clone(),
            id,
            raw: None,
            used: Vec::new(),
            launched: Vec::new(),
        };
        let capture = self.gpu().map(Gpu::capture).transpose();
        let capture = capture?;
        let pool = Pool { graph: id, ..Pool::default() };
        let stream = capture.as_ref().map(|capture| capture.stream().clone());
        let scope = ScopeGuard::new(self, pool, stream);

        let results = work();
        recorded.launched = LAUNCHED.take();
        let used = scope.leave()?.into_used();
        let results = results?;
        let used = used.into_iter().map(|(storage, access)| {
            let address = storage.raw_address("capture")?;
            Ok(Used { storage, access, address })
        });
        recorded.used = used.collect::<Result<_>>()?;
        let raw = capture.map(Capture::end).transpose();
        recorded.raw = raw?;
        Ok(Graph { results, recorded })
    }
}

impl<T> Graph<T> {
    /// Enqueues the captured work on the device's base stream.
    ///
    /// # Errors
    /// Inside a capture or [`with_stream`](crate::with_stream), and when a tensor that the graph
    /// uses has [slept](Tensor::sleep) since; while it sleeps; while a [`Pending`](crate::Pending)
    /// uses a mutable tensor that the graph writes, or writes one that the graph reads; when the
    /// driver fails, or the device [has failed](Device::fail).
    pub fn launch(&mut self) -> Result<()> {
        let Recorded { device, raw, used, launched, .. } = &mut self.recorded;
        ensure!(
            stream::pool(device) == Pool::default(),
            Invalid,
            "launch: a graph cannot be launched inside a capture or `with_stream`; launch it \
             outside"
        );
        used.iter().try_for_each(Used::check)?;
        let (Some(raw), Some(gpu)) = (raw, device.gpu()) else {
            return Ok(());
        };
        gpu.check()?;
        raw.launch(gpu.base())?;
        if !launched.is_empty() {
            let end = StreamEvent::new(Some(gpu.base().record()?));
            launched.iter_mut().for_each(|it| it(&end));
        }
        Ok(())
    }

    /// The results of the work. Their values change with every launch.
    pub fn results(&self) -> &T {
        &self.results
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let (Some(_), Some(gpu)) = (&self.raw, self.device.gpu()) {
            // The error is ignored: after a failed kernel no work runs any more.
            let _: Result<()> = gpu.wait_for_graphs();
        }
        self.raw = None;
        if let Some(mut memory) = self.device.gpu_memory() {
            memory.end_graph(self.id);
        }
    }
}
