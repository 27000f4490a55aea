//! Graphs: a step's work on a GPU, recorded once and then started as a whole.

use std::sync::Arc;

use crate::core::storage::Storage;
use crate::core::stream::{self, Entered};
use crate::core::stream_uses::Access;
use crate::driver::{Capture, Gpu, Pool, RawGraph};
use crate::{CudaError, Device, Error, Result};

/// Work that [`Device::capture`] recorded, and its results.
///
/// It owns every tensor that the work touches, and memory of its own for all that the work makes:
/// each [`Graph::launch`] reads and writes the same places. Feed it through tensors that may change
/// ([`Kind::Cache`](crate::Kind::Cache)) and read its results before the next launch.
pub struct Graph<T> {
    results: T,
    recorded: Recorded,
}

/// A graph's memory and work, or those of one that did not come about.
struct Recorded {
    device: Device,
    id: u32,
    raw: Option<RawGraph>,
    /// What was there before and is used by the work.
    touched: Vec<(Arc<Storage>, Access)>,
}

impl Device {
    /// Records the work that `work` puts into the streams of this GPU, and does none of it. The
    /// memory that the work takes belongs to the graph.
    ///
    /// # Errors
    /// What `work` returns; [`CudaError::Capture`] for what a graph cannot contain: reading values
    /// on the host, copying from it, synchronising; [`Error::Argument`] on a device without graphs
    /// and inside another capture or [`with_stream`](crate::with_stream).
    pub fn capture<T, E: From<Error>>(
        &self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<Graph<T>, E> {
        if !self.is_gpu() {
            let problem = format!("{self} has no graphs: only GPUs do; run the work itself");
            return Err(refuse(problem).into());
        }
        if stream::pool(self) != Pool::default() {
            return Err(refuse("it is inside another capture or `with_stream`".into()).into());
        }

        // In this order, for what was begun ends in the reverse of it, also when the work panics.
        let id = self.next_graph();
        let mut recorded = Recorded {
            device: self.clone(),
            id,
            raw: None,
            touched: Vec::new(),
        };
        let capture = self.gpu().map(Gpu::capture).transpose();
        let capture = capture.map_err(Error::from)?;
        let pool = Pool {
            graph: id,
            ..Pool::default()
        };
        let stream = capture.as_ref().map(|capture| capture.stream().clone());
        let entered = Entered::new(self, pool, stream);

        let results = work();
        recorded.touched = entered.leave().map_err(Error::from)?.into_touched();
        let results = results?;
        let raw = capture.map(Capture::end).transpose();
        recorded.raw = raw.map_err(Error::from)?;
        Ok(Graph { results, recorded })
    }
}

fn refuse(problem: String) -> Error {
    Error::Argument {
        op: "capture",
        problem,
    }
}

impl<T> Graph<T> {
    /// Puts the recorded work into the device's first stream.
    ///
    /// # Errors
    /// [`Error::Argument`] inside a capture or [`with_stream`](crate::with_stream);
    /// [`Error::Busy`] while a [`Pending`](crate::Pending) uses a parameter, a cache or their like
    /// that the graph writes, or writes what it reads; [`Error::Cuda`] when the driver fails.
    pub fn launch(&mut self) -> Result<()> {
        let Recorded {
            device,
            raw,
            touched,
            ..
        } = &mut self.recorded;
        if stream::pool(device) != Pool::default() {
            return Err(refuse("a graph is launched outside of any scope".into()));
        }
        let free =
            |(storage, access): &(Arc<Storage>, Access)| storage.holds().allow(*access, |_| false);
        if !touched.iter().all(free) {
            return Err(Error::Busy { op: "launch" });
        }
        match (raw, device.gpu()) {
            (Some(raw), Some(gpu)) => Ok(raw.launch(gpu.base())?),
            _ => Ok(()),
        }
    }

    /// What the work returned. Its tensors change with every launch.
    pub fn results(&self) -> &T {
        &self.results
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let (Some(_), Some(gpu)) = (&self.raw, self.device.gpu()) {
            // After an error of a kernel nothing runs any more either.
            let _: Result<(), CudaError> = gpu.wait_for_graphs();
        }
        self.raw = None;
        if let Some(mut memory) = self.device.gpu_memory() {
            memory.end_graph(self.id);
        }
    }
}
