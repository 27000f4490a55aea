//! Indices out of range, found by kernels: the word of a device that they raise, and what its values
//! mean.
//!
//! The word is the GPU's memory, at one address as long as the device lives, so that graphs can
//! raise it too. It is beside what the allocator counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;
use meshgrad_kernels::faults::{Fault, FaultSite};

use super::driver::{call, check};
use super::memory::relaxed;
use super::stream::RawStream;
use super::{Context, CudaError};

/// Bytes of the word.
pub(super) const WORD: usize = size_of::<u64>();

/// The word and the sites of one device.
pub(crate) struct Faults {
    context: Arc<Context>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Where the word lies, once an op has asked for it.
    word: Option<u64>,
    /// Ops and extents by number, which is the index here and one.
    sites: Vec<Site>,
    numbers: HashMap<Site, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Site {
    op: &'static str,
    extent: usize,
}

impl Faults {
    pub(super) fn new(context: &Arc<Context>) -> Faults {
        Faults {
            context: context.clone(),
            state: Mutex::default(),
        }
    }

    /// Where kernels of `op` report indices that are not in 0..extent. `stream` records no graph.
    pub(super) fn site(
        &self,
        stream: &RawStream,
        op: &'static str,
        extent: usize,
    ) -> Result<FaultSite, CudaError> {
        let mut state = self.lock();
        let word = match state.word {
            Some(word) => word,
            None => *state.word.insert(self.take_word(stream)?),
        };
        Ok(FaultSite::new(word, state.number(Site { op, extent })))
    }

    /// The address of the word, where any op has asked for it.
    pub(super) fn word(&self) -> Option<u64> {
        self.lock().word
    }

    /// The error that a value of the word means, if it means one.
    pub(super) fn error(&self, word: u64) -> Option<CudaError> {
        let Fault { site, index } = Fault::from_word(word)?;
        let state = self.lock();
        let site = state.sites.get((site as usize).checked_sub(1)?)?;
        Some(CudaError::IndexOutOfRange {
            device: self.context.to_string(),
            op: site.op,
            index,
            extent: site.extent,
        })
    }

    /// Puts into `stream` that the word is zero again.
    pub(super) fn clear(&self, stream: &RawStream) -> Result<(), CudaError> {
        match self.word() {
            Some(word) => clear(stream, word),
            None => Ok(()),
        }
    }

    /// Memory for the word, and in it a zero.
    fn take_word(&self, stream: &RawStream) -> Result<u64, CudaError> {
        self.context.bind()?;
        let mut address = 0;
        // Also while this thread captures a graph: it is done here and now, not by the graph.
        relaxed(|| {
            // SAFETY: the context is current; writes one address.
            let code = unsafe { sys::cuMemAlloc_v2(&mut address, WORD) };
            check(&*self.context, "cuMemAlloc_v2", code)?;
            clear(stream, address)?;
            stream.synchronize()
        })?;
        Ok(address)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The number of a site: the next one for a new site, the last for all that are too many.
    fn number(&mut self, site: Site) -> u32 {
        if let Some(number) = self.numbers.get(&site) {
            return *number;
        }
        if self.sites.len() == FaultSite::LAST as usize {
            return FaultSite::LAST;
        }
        self.sites.push(site);
        let number = self.sites.len() as u32;
        self.numbers.insert(site, number);
        number
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        let Some(word) = self.lock().word.take() else {
            return;
        };
        if self.context.bind().is_ok() {
            let _ = relaxed(|| {
                // SAFETY: taken above; the streams of the device end with it, and so do graphs.
                unsafe { sys::cuMemFree_v2(word) }
            });
        }
    }
}

/// Puts into `stream` that the word at `address` is zero again.
fn clear(stream: &RawStream, address: u64) -> Result<(), CudaError> {
    stream.context().bind()?;
    // SAFETY: the address is that of a word taken above, which lives as long as its device.
    unsafe {
        call!(
            &**stream.context(),
            cuMemsetD8Async(address, 0, WORD, stream.raw())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_has_one_number() {
        let mut state = State::default();
        let site = |op, extent| Site { op, extent };
        assert_eq!(state.number(site("gather", 3)), 1);
        assert_eq!(state.number(site("gather", 4)), 2);
        assert_eq!(state.number(site("embedding", 3)), 3);
        assert_eq!(state.number(site("gather", 3)), 1);
    }
}
