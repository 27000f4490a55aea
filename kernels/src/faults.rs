//! Out-of-range indices: how a kernel reports one, and how the host reads it.
//!
//! A kernel cannot return an error. Each device has a 64-bit fault word, which is 0 if there was no
//! fault. A kernel that meets an out-of-range index raises the word to a value that encodes the
//! *site* (a number that the host assigns to an op and an extent) and the index. It then continues
//! without the index: it reads zeros and writes nothing. The word is raised by an atomic integer
//! maximum, so its final value does not depend on the order of threads.

use crate::assembler::{Out, Pred, S64, U64};
use crate::params;

/// Bits of an index in the word; the site has the others.
const INDEX_BITS: u32 = 40;

const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// Larger indices are clamped to this, smaller ones to its negative.
const LAST_INDEX: i64 = (1 << (INDEX_BITS - 1)) - 1;

params! {
    /// The fault word and the site number for one op and one extent.
    #[derive(PartialEq, Eq)]
    pub struct FaultSite => Faults {
        /// The device's fault word.
        word: Out,
        /// The number of the site, in the bits above the index.
        site: u64,
    }
}

impl FaultSite {
    /// The largest site number. The smallest is 1.
    pub const LAST: u32 = (1 << (64 - INDEX_BITS)) - 1;

    /// Site `site` of the device whose fault word is at address `word`.
    ///
    /// # Panics
    /// If `site` is not in 1 to [`FaultSite::LAST`].
    pub fn new(word: u64, site: u32) -> FaultSite {
        assert!(
            (1..=FaultSite::LAST).contains(&site),
            "site {site}: sites are 1 to {}",
            FaultSite::LAST
        );
        FaultSite { word: Out(word), site: u64::from(site) << INDEX_BITS }
    }
}

/// An out-of-range index, decoded from the fault word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The number of the site.
    pub site: u32,
    /// The index. If there were several, the largest; negative indices count as larger than all
    /// others.
    pub index: i64,
}

impl Fault {
    /// Decodes the word; `None` if there was no fault.
    pub fn from_word(word: u64) -> Option<Fault> {
        let unused = 64 - INDEX_BITS;
        (word != 0).then_some(Fault {
            site: (word >> INDEX_BITS) as u32,
            index: ((word << unused) as i64) >> unused,
        })
    }
}

impl<'k> Faults<'k> {
    /// Reports `index` if it is `outside`. The caller must not use such an index.
    #[track_caller]
    pub fn report(self, outside: Pred<'k>, index: S64<'k>) {
        let reported = index.max(-LAST_INDEX).min(LAST_INDEX).unsigned();
        self.word.atomic_max_if(outside, (reported & INDEX_MASK) | self.site);
    }

    /// Whether `index` is in 0..extent; reports it otherwise.
    #[track_caller]
    pub fn check(self, index: S64<'k>, extent: U64<'k>) -> Pred<'k> {
        let inside = index.unsigned().lt(extent);
        self.report(!inside, index);
        inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_site_and_index() {
        assert_eq!(Fault::from_word(0), None);
        for index in [0, 7, -1, LAST_INDEX, -LAST_INDEX] {
            for site in [1, FaultSite::LAST] {
                let word = u64::from(site) << INDEX_BITS | (index as u64 & INDEX_MASK);
                assert_eq!(Fault::from_word(word), Some(Fault { site, index }));
            }
        }
    }
}
