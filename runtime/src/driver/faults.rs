//! Reports of out-of-range indices. A kernel that finds one records it in the fault word of its
//! device, which the host reads and decodes.
//!
//! The word is in GPU memory, at one address for the life of the device, so that captured graphs
//! can set it too. The statistics of the allocator do not include it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;
use meshgrad_error::{Error, Kind, Result};
use meshgrad_kernels::faults::{Fault, FaultSite};

use super::Context;
use super::context::relaxed;
use super::library::call;
use super::stream::RawStream;

/// Bytes of the fault word.
pub(super) const WORD: usize = size_of::<u64>();

/// The fault word and the fault sites of one device.
pub(crate) struct Faults {
    context: Arc<Context>,
    /// The address of the word.
    word: u64,
    sites: Mutex<Sites>,
}

#[derive(Default)]
struct Sites {
    /// Sites by number; numbers start at 1.
    all: Vec<Site>,
    numbers: HashMap<Site, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Site {
    op: &'static str,
    extent: usize,
}

/// An index out of range. A GPU reports it after the op that launched the kernel has returned: when
/// the host next reads values or synchronizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexOutOfRange {
    /// The op.
    pub op: &'static str,
    /// The index. A GPU clamps its absolute value to 2^39 - 1, and reports the largest of several
    /// out-of-range indices, where negative ones count as larger than all others.
    pub index: i64,
    /// Its position among the indices, in row-major order; `None` on a GPU.
    pub position: Option<usize>,
    /// The number of rows.
    pub extent: usize,
    /// The GPU that reports it; `None` on a CPU.
    pub gpu: Option<String>,
}

impl fmt::Display for IndexOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IndexOutOfRange { op, index, position, extent, gpu } = self;
        write!(f, "{op}: index {index}")?;
        if let Some(position) = position {
            write!(f, " at position {position}")?;
        }
        write!(f, " is outside of 0..{extent}")?;
        match gpu {
            Some(gpu) => write!(
                f,
                ". {gpu} detected this after the op had returned; it read zeros for the index and \
                 wrote nothing. Correct the indices, or run the op on a CPU device, which also \
                 reports the position"
            ),
            None => Ok(()),
        }
    }
}

impl Faults {
    /// Allocates the word, and waits until it is cleared, so that ops need not wait for that.
    pub(super) fn new(context: &Arc<Context>, stream: &RawStream) -> Result<Faults> {
        context.bind()?;
        let mut word = 0;
        // SAFETY: the context is current; writes one address.
        unsafe { call!(&**context, cuMemAlloc_v2(&mut word, WORD)) }?;
        let faults = Faults { context: context.clone(), word, sites: Mutex::default() };
        faults.clear(stream)?;
        stream.synchronize()?;
        Ok(faults)
    }

    /// The site where kernels of `op` report indices outside of 0..extent.
    pub(super) fn site(&self, op: &'static str, extent: usize) -> FaultSite {
        FaultSite::new(self.word, self.lock().number(Site { op, extent }))
    }

    /// The address of the word, if any op has a fault site.
    pub(super) fn word(&self) -> Option<u64> {
        (!self.lock().all.is_empty()).then_some(self.word)
    }

    /// The error that a value of the word encodes, if any.
    pub(super) fn error(&self, word: u64) -> Option<Error> {
        let Fault { site, index } = Fault::from_word(word)?;
        let sites = self.lock();
        let site = sites.all.get((site as usize).checked_sub(1)?)?;
        let Site { op, extent } = *site;
        let gpu = Some(self.context.to_string());
        Some(Error::with_details(
            Kind::Invalid,
            IndexOutOfRange { op, index, position: None, extent, gpu },
        ))
    }

    /// Enqueues a write of 0 to the word on `stream`.
    pub(super) fn clear(&self, stream: &RawStream) -> Result<()> {
        stream.context().bind()?;
        // SAFETY: the word was allocated in `new` and lives as long as its device.
        unsafe { call!(&**stream.context(), cuMemsetD8Async(self.word, 0, WORD, stream.raw())) }
    }

    fn lock(&self) -> MutexGuard<'_, Sites> {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sites {
    /// The number of a site. A new site gets the next number; once all are used, it gets the last.
    fn number(&mut self, site: Site) -> u32 {
        if let Some(number) = self.numbers.get(&site) {
            return *number;
        }
        if self.all.len() == FaultSite::LAST as usize {
            return FaultSite::LAST;
        }
        self.all.push(site);
        let number = self.all.len() as u32;
        self.numbers.insert(site, number);
        number
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            let _ = relaxed(|| {
                // SAFETY: allocated in `new`; the streams and graphs of the device end with it.
                unsafe { sys::cuMemFree_v2(self.word) }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sites_share_a_number() {
        let mut sites = Sites::default();
        let site = |op, extent| Site { op, extent };
        assert_eq!(sites.number(site("gather", 3)), 1);
        assert_eq!(sites.number(site("gather", 4)), 2);
        assert_eq!(sites.number(site("embedding", 3)), 3);
        assert_eq!(sites.number(site("gather", 3)), 1);
    }
}
