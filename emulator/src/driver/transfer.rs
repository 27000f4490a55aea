//! Copies and fills.

use super::context::ContextHandle;
use super::error::{Code, Result};
use super::ffi::host::HostRange;
use super::work::{Pattern, Rows, Side, Work};
use super::{Driver, State};

/// One end of a copy as the caller names it.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// An address of the unified address space.
    Device(u64),
    /// Some pointer: of the host, or of the unified address space after all.
    Pointer(HostRange),
}

/// When a copy or fill is done, as its function's name says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// In the order of this stream.
    InStream(u64),
    /// In the order of the legacy default stream, and before the call returns if the host's memory
    /// takes part.
    Now,
}

impl Driver {
    /// All of `cuMemcpy*`.
    pub(crate) fn copy(&self, moment: Moment, to: End, from: End, rows: Rows) -> Result<()> {
        let mut state = self.lock();
        let raw = state.stream_of(moment)?;
        let (stream, context) = state.stream(raw)?;
        let (Some(to_bytes), Some(from_bytes)) =
            (rows.extent(rows.to_pitch), rows.extent(rows.from_pitch))
        else {
            let words = format!("a pitch is less than the width of {} bytes", rows.width);
            return Err(Code::InvalidValue.because(words));
        };
        let is_captured = state.streams.get(stream)?.capture.is_some();
        let to = state.side(to, to_bytes)?;
        let from = state.side(from, from_bytes)?;
        let waits = !is_captured && moment.waits_for(&state, &to, &from);
        let from = match from {
            // The driver takes pageable memory when it is asked to, not when the copy runs.
            Side::Host(range) if !is_captured => {
                let mut bytes = vec![0; from_bytes];
                range.read(0, &mut bytes);
                Side::Staged(bytes.into())
            }
            from => from,
        };

        let submitted = state.submit(stream, Work::Copy { to, from, rows })?;
        match submitted.filter(|_| waits) {
            Some(ticket) => {
                let state = self.wait(state, |state| state.schedule.is_done(ticket));
                state.healthy(context)
            }
            None => self.settle(state, stream),
        }
    }

    /// `cuMemcpyPeerAsync` and `cuMemcpyPeer`.
    pub(crate) fn copy_peer(
        &self,
        moment: Moment,
        to: (u64, ContextHandle),
        from: (u64, ContextHandle),
        bytes: usize,
    ) -> Result<()> {
        self.with(|state| {
            state.contexts.get(to.1)?;
            state.contexts.get(from.1).map(drop)
        })?;
        self.copy(
            moment,
            End::Device(to.0),
            End::Device(from.0),
            Rows::linear(bytes),
        )
    }

    /// All of `cuMemset*`: `count` times one, two or four bytes.
    pub(crate) fn fill(&self, moment: Moment, to: u64, bytes: &[u8], count: usize) -> Result<()> {
        let mut state = self.lock();
        let raw = state.stream_of(moment)?;
        let (stream, _) = state.stream(raw)?;
        let extent = count.checked_mul(bytes.len());
        let aligned = to.is_multiple_of(bytes.len() as u64);
        let Some(extent) = extent.filter(|_| aligned) else {
            let words = format!("{count} times {} bytes at {to:#x}", bytes.len());
            return Err(Code::InvalidValue.because(words));
        };
        state.check_range(to, extent)?;
        let pattern = Pattern::new(bytes);
        state.submit(stream, Work::Fill { to, pattern, count })?;
        self.settle(state, stream)
    }
}

impl Moment {
    fn waits_for(self, state: &State, to: &Side, from: &Side) -> bool {
        let is_host = |side: &Side| match side {
            Side::Host(_) | Side::Staged(_) => true,
            Side::Space(address) => state.is_pinned_allocation(*address),
        };
        match self {
            Moment::Now => is_host(to) || is_host(from),
            // Pageable memory must be written when the call returns.
            Moment::InStream(_) => matches!(to, Side::Host(_)),
        }
    }
}

impl State {
    fn stream_of(&mut self, moment: Moment) -> Result<u64> {
        match moment {
            Moment::InStream(raw) => Ok(raw),
            Moment::Now => {
                let (legacy, _) = self.stream(0)?;
                self.refuse_implicit(legacy)?;
                self.refuse_while_capturing("a copy or fill without a stream")?;
                Ok(0)
            }
        }
    }

    fn side(&self, end: End, bytes: usize) -> Result<Side> {
        match end {
            End::Device(address) => {
                self.check_range(address, bytes)?;
                Ok(Side::Space(address))
            }
            End::Pointer(range) => {
                let address = range.address();
                if self.space.find(address).is_some() || bytes > 0 && State::is_foreign(address) {
                    self.check_range(address, bytes)?;
                    return Ok(Side::Space(address));
                }
                Ok(Side::Host(range))
            }
        }
    }

    fn is_pinned_allocation(&self, address: u64) -> bool {
        let info = self.space.find(address);
        info.is_some_and(|it| it.kind == crate::memory::MemoryKind::Pinned)
    }
}
