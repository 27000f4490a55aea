//! Copies and fills.

use super::context::ContextHandle;
use super::error::{Code, Result};
use super::ffi::host::HostRange;
use super::work::{CopySide, Pattern, Rows, Work};
use super::{Driver, State};

/// One end of a copy, as the caller passed it.
#[derive(Clone, Copy)]
pub(crate) enum Endpoint {
    /// An address in the unified address space.
    Device(u64),
    /// A pointer that may be a host pointer or an address in the unified address space.
    Pointer(HostRange),
}

/// When a copy or fill runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyOrder {
    /// In the order of this stream.
    InStream(u64),
    /// In the order of the legacy default stream. If host memory is involved, a copy completes
    /// before the call returns.
    Now,
}

impl Driver {
    /// All of `cuMemcpy*`.
    pub(crate) fn copy(
        &self,
        order: CopyOrder,
        to: Endpoint,
        from: Endpoint,
        rows: Rows,
    ) -> Result<()> {
        let mut state = self.lock();
        let raw = state.stream_of(order)?;
        let (stream, context) = state.stream(raw)?;
        let (Some(to_bytes), Some(from_bytes)) =
            (rows.extent(rows.to_pitch), rows.extent(rows.from_pitch))
        else {
            let message = format!("the pitch is less than the row width of {} bytes", rows.width);
            return Err(Code::InvalidValue.because(message));
        };
        let is_captured = state.streams.get(stream)?.capture.is_some();
        let to = state.side(to, to_bytes)?;
        let from = state.side(from, from_bytes)?;
        let waits = !is_captured && order.waits_for(&state, &to, &from);
        let from = match from {
            // The driver reads pageable memory when the copy is submitted, not when it runs.
            CopySide::Host(range) if !is_captured => {
                let mut bytes = vec![0; from_bytes];
                range.read(0, &mut bytes);
                CopySide::Staged(bytes.into())
            }
            from => from,
        };

        let submitted = state.submit(stream, Work::Copy { to, from, rows })?;
        match submitted.filter(|_| waits) {
            Some(ticket) => {
                let state = self.wait(state, |state| state.schedule.is_done(ticket));
                state.check_context(context)
            }
            None => self.run_submitted(state, stream),
        }
    }

    /// `cuMemcpyPeerAsync` and `cuMemcpyPeer`.
    pub(crate) fn copy_peer(
        &self,
        order: CopyOrder,
        to: (u64, ContextHandle),
        from: (u64, ContextHandle),
        bytes: usize,
    ) -> Result<()> {
        self.with(|state| {
            state.contexts.get(to.1)?;
            state.contexts.get(from.1).map(drop)
        })?;
        self.copy(order, Endpoint::Device(to.0), Endpoint::Device(from.0), Rows::linear(bytes))
    }

    /// All of `cuMemset*`: `count` elements of 1, 2 or 4 bytes. Without a stream, a fill of pinned
    /// memory completes before the call returns.
    pub(crate) fn fill(&self, order: CopyOrder, to: u64, bytes: &[u8], count: usize) -> Result<()> {
        let mut state = self.lock();
        let raw = state.stream_of(order)?;
        let (stream, context) = state.stream(raw)?;
        let extent = count.checked_mul(bytes.len());
        let aligned = to.is_multiple_of(bytes.len() as u64);
        let Some(extent) = extent.filter(|_| aligned) else {
            let message = format!("invalid fill of {count} times {} bytes at {to:#x}", bytes.len());
            return Err(Code::InvalidValue.because(message));
        };
        state.check_range(to, extent)?;
        let pattern = Pattern::new(bytes);
        let waits = order == CopyOrder::Now && state.is_pinned_allocation(to);
        let submitted = state.submit(stream, Work::Fill { to, pattern, count })?;
        match submitted.filter(|_| waits) {
            Some(ticket) => {
                let state = self.wait(state, |state| state.schedule.is_done(ticket));
                state.check_context(context)
            }
            None => self.run_submitted(state, stream),
        }
    }
}

impl CopyOrder {
    fn waits_for(self, state: &State, to: &CopySide, from: &CopySide) -> bool {
        let is_host = |side: &CopySide| match side {
            CopySide::Host(_) | CopySide::Staged(_) => true,
            CopySide::Space(address) => state.is_pinned_allocation(*address),
        };
        match self {
            CopyOrder::Now => is_host(to) || is_host(from),
            // Pageable memory must be written when the call returns.
            CopyOrder::InStream(_) => matches!(to, CopySide::Host(_)),
        }
    }
}

impl State {
    fn stream_of(&mut self, order: CopyOrder) -> Result<u64> {
        match order {
            CopyOrder::InStream(raw) => Ok(raw),
            CopyOrder::Now => {
                let (legacy, _) = self.stream(0)?;
                self.reject_implicit_sync(legacy)?;
                self.reject_while_capturing("a synchronous copy or fill")?;
                Ok(0)
            }
        }
    }

    fn side(&self, end: Endpoint, bytes: usize) -> Result<CopySide> {
        match end {
            Endpoint::Device(address) => {
                self.check_range(address, bytes)?;
                Ok(CopySide::Space(address))
            }
            Endpoint::Pointer(range) => {
                let address = range.address();
                if self.space.find(address).is_some() || bytes > 0 && State::is_foreign(address) {
                    self.check_range(address, bytes)?;
                    return Ok(CopySide::Space(address));
                }
                Ok(CopySide::Host(range))
            }
        }
    }

    fn is_pinned_allocation(&self, address: u64) -> bool {
        let info = self.space.find(address);
        info.is_some_and(|it| it.kind == crate::memory::MemoryKind::Pinned)
    }
}
