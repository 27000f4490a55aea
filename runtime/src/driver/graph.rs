//! Graphs of the driver: work that is recorded once and started as a whole.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode};

use super::library::{call, check};
use super::stream::RawStream;
use super::streams::Streams;
use super::{Context, CudaError};

/// Work that was recorded and can be started.
pub(crate) struct RawGraph {
    context: Arc<Context>,
    raw: CUgraphExec,
}

// SAFETY: a graph is a handle that threads may use in turns; `launch` wants it exclusively.
unsafe impl Send for RawGraph {}

/// A stream that records what is put into it, and does none of it. Dropped, it forgets what it
/// recorded.
pub(crate) struct Capture {
    of: Arc<Streams>,
    stream: Arc<RawStream>,
    /// Whether the driver records still.
    records: bool,
}

impl Capture {
    /// Begins to record, in a stream of its own: what other threads do is not recorded.
    pub(crate) fn begin(of: &Arc<Streams>) -> Result<Capture, CudaError> {
        let context = of.context();
        let stream = Arc::new(RawStream::new(context)?);
        of.capture_begins();
        let mut capture = Capture {
            of: of.clone(),
            stream,
            records: false,
        };
        let (raw, mode) = (
            capture.stream.raw(),
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        );
        // SAFETY: the handle exists.
        unsafe { call!(&**context, cuStreamBeginCapture_v2(raw, mode)) }?;
        capture.records = true;
        Ok(capture)
    }

    /// The stream that records.
    pub(crate) fn stream(&self) -> &Arc<RawStream> {
        &self.stream
    }

    /// What was recorded.
    ///
    /// # Errors
    /// [`CudaError::Capture`] when work on another stream was not waited for.
    pub(crate) fn end(mut self) -> Result<RawGraph, CudaError> {
        let graph = self.stop()?;
        let context = self.stream.context();
        let mut raw: CUgraphExec = std::ptr::null_mut();
        // SAFETY: the graph was just made; writes one handle.
        let made = unsafe { call!(&**context, cuGraphInstantiateWithFlags(&mut raw, graph, 0)) };
        // SAFETY: made by `stop`, and nobody else has it; the executable graph does not need it.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        made?;
        Ok(RawGraph {
            context: context.clone(),
            raw,
        })
    }

    /// Lets the driver record no more.
    fn stop(&mut self) -> Result<CUgraph, CudaError> {
        self.records = false;
        let context = self.stream.context();
        context.bind()?;
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: the handle exists; writes one handle.
        let code = unsafe { sys::cuStreamEndCapture(self.stream.raw(), &mut graph) };
        match code {
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED => Err(CudaError::Capture {
                op: "with_stream",
                problem: "the graph cannot end before the work on another stream: call \
                          Pending::wait, or drop the Pending, before the closure returns",
            }),
            code => check(&**context, "cuStreamEndCapture", code).map(|()| graph),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.records
            && let Ok(graph) = self.stop()
        {
            // SAFETY: made by `stop`, and nobody else has it.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
        self.of.capture_ends();
    }
}

impl RawGraph {
    /// Puts the recorded work into `stream`.
    pub(crate) fn launch(&mut self, stream: &RawStream) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both handles exist and are of the current context.
        unsafe { call!(&*self.context, cuGraphLaunch(self.raw, stream.raw())) }
    }
}

impl Drop for RawGraph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by `end`, and nobody else has it. The driver keeps it while it runs.
            let _ = unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}
