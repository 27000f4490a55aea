//! When ops ran on a CPU device, for traces.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One op on a CPU device. Its times are those of the clock of
/// [`Device::trace_ops`](crate::Device::trace_ops).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpSpan {
    /// The op.
    pub name: &'static str,
    /// When its kernel started.
    pub start: Duration,
    /// When its kernel returned.
    pub end: Duration,
}

/// Records the ops of a device until [`OpTrace::finish`] or until it is dropped.
#[must_use = "dropping it ends the recording"]
pub struct OpTrace(Option<Arc<OpRecorder>>);

/// What a device keeps of its ops.
#[derive(Default)]
pub(crate) struct OpRecorder {
    /// Whether there is a recording, so that ops outside of one take no lock.
    is_recording: AtomicBool,
    recording: Mutex<Option<Recording>>,
}

/// What reads the clock.
type Now = dyn Fn() -> Duration + Send + Sync;

struct Recording {
    now: Arc<Now>,
    ops: Vec<OpSpan>,
}

impl OpTrace {
    /// Ends the recording. Returns the ops in the order in which they ended.
    pub fn finish(mut self) -> Vec<OpSpan> {
        self.end()
    }

    fn end(&mut self) -> Vec<OpSpan> {
        let Some(recorder) = self.0.take() else {
            return Vec::new();
        };
        recorder.is_recording.store(false, Ordering::Release);
        let recording = mem::take(&mut *recorder.lock());
        recording.map_or_else(Vec::new, |recording| recording.ops)
    }
}

impl Drop for OpTrace {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for OpTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpTrace")
    }
}

impl OpRecorder {
    /// Starts a recording; `None` if there is one already.
    pub(crate) fn start(self: &Arc<Self>, now: Arc<Now>) -> Option<OpTrace> {
        let mut recording = self.lock();
        if recording.is_some() {
            return None;
        }
        *recording = Some(Recording { now, ops: Vec::new() });
        self.is_recording.store(true, Ordering::Release);
        Some(OpTrace(Some(self.clone())))
    }

    /// Runs the kernel of an op, and records it if there is a recording.
    pub(crate) fn run<T>(&self, name: &'static str, kernel: impl FnOnce() -> T) -> T {
        let start = self.clock().map(|now| (now(), now));
        let value = kernel();
        if let Some((start, now)) = start {
            self.record(OpSpan { name, start, end: now() });
        }
        value
    }

    fn record(&self, span: OpSpan) {
        if let Some(recording) = &mut *self.lock() {
            recording.ops.push(span);
        }
    }

    /// The clock of the recording, if there is one.
    fn clock(&self) -> Option<Arc<Now>> {
        if !self.is_recording.load(Ordering::Acquire) {
            return None;
        }
        self.lock().as_ref().map(|recording| recording.now.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
