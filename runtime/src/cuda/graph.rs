//! Graphs of the driver: work that is recorded once and started as a whole.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};

use super::driver::call;
use super::stream::RawStream;
use super::{Context, CudaError};

/// Work that was recorded and can be started.
pub(crate) struct RawGraph {
    context: Arc<Context>,
    raw: CUgraphExec,
}

// SAFETY: a graph is a handle that threads may use in turns; `launch` wants it exclusively.
unsafe impl Send for RawGraph {}

/// A stream that records what is put into it, and does none of it.
pub(crate) struct Capture {
    stream: Arc<RawStream>,
}

impl Capture {
    /// Begins to record, in a stream of its own: what other threads do is not recorded.
    pub(crate) fn begin(context: &Arc<Context>) -> Result<Capture, CudaError> {
        let stream = Arc::new(RawStream::new(context)?);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the handle exists.
        unsafe { call!(&**context, cuStreamBeginCapture_v2(stream.raw(), mode)) }?;
        Ok(Capture { stream })
    }

    /// The stream that records.
    pub(crate) fn stream(&self) -> &Arc<RawStream> {
        &self.stream
    }

    /// What was recorded.
    pub(crate) fn end(self) -> Result<RawGraph, CudaError> {
        let context = self.stream.context();
        context.bind()?;
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: the handle exists; writes one handle.
        unsafe {
            call!(
                &**context,
                cuStreamEndCapture(self.stream.raw(), &mut graph)
            )
        }?;

        let mut raw: CUgraphExec = std::ptr::null_mut();
        // SAFETY: the graph was just made; writes one handle.
        let made = unsafe { call!(&**context, cuGraphInstantiateWithFlags(&mut raw, graph, 0)) };
        // SAFETY: made above, and nobody else has it; the executable graph does not need it.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        made?;
        Ok(RawGraph {
            context: context.clone(),
            raw,
        })
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
