//! Indices out of range, found by kernels: the word of a device that they raise, and what its values
//! mean.
//!
//! The word is the GPU's memory, at one address as long as the device lives, so that graphs can
//! raise it too. It is beside what the allocator counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;
use meshgrad_kernels::faults::{Fault, FaultSite};

use super::library::call;
use super::memory::relaxed;
use super::stream::RawStream;
use super::{Context, CudaError};

/// Bytes of the word.
pub(super) const WORD: usize = size_of::<u64>();

/// The word and the sites of one device.
pub(crate) struct Faults {
    context: Arc<Context>,
    /// Where the word lies.
    word: u64,
    sites: Mutex<Sites>,
}

#[derive(Default)]
struct Sites {
    /// Ops and extents by number, which is the index here and one.
    all: Vec<Site>,
    numbers: HashMap<Site, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Site {
    op: &'static str,
    extent: usize,
}

impl Faults {
    /// Takes memory for the word, and waits until it is zero: no op has to, later.
    pub(super) fn new(context: &Arc<Context>, stream: &RawStream) -> Result<Faults, CudaError> {
        context.bind()?;
        let mut word = 0;
        // SAFETY: the context is current; writes one address.
        unsafe { call!(&**context, cuMemAlloc_v2(&mut word, WORD)) }?;
        let faults = Faults {
            context: context.clone(),
            word,
            sites: Mutex::default(),
        };
        faults.clear(stream)?;
        stream.synchronize()?;
        Ok(faults)
    }

    /// Where kernels of `op` report indices that are not in 0..extent.
    pub(super) fn site(&self, op: &'static str, extent: usize) -> FaultSite {
        FaultSite::new(self.word, self.lock().number(Site { op, extent }))
    }

    /// The address of the word, where any op may raise it.
    pub(super) fn word(&self) -> Option<u64> {
        (!self.lock().all.is_empty()).then_some(self.word)
    }

    /// The error that a value of the word means, if it means one.
    pub(super) fn error(&self, word: u64) -> Option<CudaError> {
        let Fault { site, index } = Fault::from_word(word)?;
        let sites = self.lock();
        let site = sites.all.get((site as usize).checked_sub(1)?)?;
        Some(CudaError::IndexOutOfRange {
            device: self.context.to_string(),
            op: site.op,
            index,
            extent: site.extent,
        })
    }

    /// Puts into `stream` that the word is zero again.
    pub(super) fn clear(&self, stream: &RawStream) -> Result<(), CudaError> {
        stream.context().bind()?;
        // SAFETY: the word was taken in `new` and lives as long as its device.
        unsafe {
            call!(
                &**stream.context(),
                cuMemsetD8Async(self.word, 0, WORD, stream.raw())
            )
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sites> {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sites {
    /// The number of a site: the next one for a new site, the last for all that are too many.
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
                // SAFETY: taken in `new`; the streams of the device end with it, and so do graphs.
                unsafe { sys::cuMemFree_v2(self.word) }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_has_one_number() {
        let mut sites = Sites::default();
        let site = |op, extent| Site { op, extent };
        assert_eq!(sites.number(site("gather", 3)), 1);
        assert_eq!(sites.number(site("gather", 4)), 2);
        assert_eq!(sites.number(site("embedding", 3)), 3);
        assert_eq!(sites.number(site("gather", 3)), 1);
    }
}
