//! CUDA graphs: work that is captured once and launched as a whole.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode};
use meshgrad_error::{Result, error};

use super::Context;
use super::library::{call, check};
use super::stream::RawStream;
use super::streams::Streams;

/// An executable graph.
pub(crate) struct RawGraph {
    context: Arc<Context>,
    raw: CUgraphExec,
}

// SAFETY: a graph is a handle that threads may use one at a time; `launch` takes `&mut self`.
unsafe impl Send for RawGraph {}

/// A capturing stream: its work is recorded and does not run. Dropping it discards the capture.
pub(crate) struct Capture {
    of: Arc<Streams>,
    stream: Arc<RawStream>,
    /// Whether the driver is still capturing.
    capturing: bool,
}

impl Capture {
    /// Begins a capture on a new stream. Work of other threads is not captured.
    pub(crate) fn begin(of: &Arc<Streams>) -> Result<Capture> {
        let context = of.context();
        let stream = Arc::new(RawStream::new(context)?);
        of.capture_begins();
        let mut capture = Capture { of: of.clone(), stream, capturing: false };
        let (raw, mode) =
            (capture.stream.raw(), CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        // SAFETY: the handle exists.
        unsafe { call!(&**context, cuStreamBeginCapture_v2(raw, mode)) }?;
        capture.capturing = true;
        Ok(capture)
    }

    /// The capturing stream.
    pub(crate) fn stream(&self) -> &Arc<RawStream> {
        &self.stream
    }

    /// Ends the capture, and returns its graph.
    ///
    /// # Errors
    /// When work on another stream was not waited for.
    pub(crate) fn end(mut self) -> Result<RawGraph> {
        let graph = self.stop()?;
        let context = self.stream.context();
        let mut raw: CUgraphExec = std::ptr::null_mut();
        // SAFETY: the graph was just created; writes one handle.
        let instantiated =
            unsafe { call!(&**context, cuGraphInstantiateWithFlags(&mut raw, graph, 0)) };
        // SAFETY: created by `stop`, and the only handle; the executable graph does not use it.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        instantiated?;
        Ok(RawGraph { context: context.clone(), raw })
    }

    /// Ends the driver's capture.
    fn stop(&mut self) -> Result<CUgraph> {
        self.capturing = false;
        let context = self.stream.context();
        context.bind()?;
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: the handle exists; writes one handle.
        let code = unsafe { sys::cuStreamEndCapture(self.stream.raw(), &mut graph) };
        match code {
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED => Err(error!(
                Invalid,
                "with_stream during Device::capture: the capture ended before work on another \
                 stream was joined; call Pending::wait, or drop the Pending, before the closure \
                 returns"
            )),
            code => check(&**context, "cuStreamEndCapture", code).map(|()| graph),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.capturing
            && let Ok(graph) = self.stop()
        {
            // SAFETY: created by `stop`, and the only handle.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
        self.of.capture_ends();
    }
}

impl RawGraph {
    /// Enqueues the graph on `stream`.
    pub(crate) fn launch(&mut self, stream: &RawStream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both handles exist and are of the current context.
        unsafe { call!(&*self.context, cuGraphLaunch(self.raw, stream.raw())) }
    }
}

impl Drop for RawGraph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created by `end`, and the only handle. The driver keeps the graph while it
            // runs.
            let _ = unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}
