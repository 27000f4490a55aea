//! Out-of-range indices: how a kernel reports one, and how the host reads it.
//!
//! A kernel cannot return an error. Each device has a 64-bit fault word, which is 0 if there was no
//! fault. A kernel that meets an out-of-range index raises the word to a value that encodes the
//! *site* (a number that the host assigns to an op and an extent) and the index. It then continues
//! without the index: it reads zeros and writes nothing. The word is raised by an atomic integer
//! maximum, so its final value does not depend on the order of threads.

use crate::assembler::{Arguments, GlobalAddress, Kernel, Pred, S64, U64};

/// Bits of an index in the word; the site has the others.
const INDEX_BITS: u32 = 40;

const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// Larger indices are clamped to this, smaller ones to its negative.
const LAST_INDEX: i64 = (1 << (INDEX_BITS - 1)) - 1;

/// The fault word and the site number for one op and one extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultSite {
    word: u64,
    site: u32,
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
        FaultSite { word, site }
    }

    /// Adds the two arguments that [`Faults::parameters`] declares.
    pub fn push(self, arguments: &mut Arguments) {
        arguments
            .push_pointer(self.word)
            .push_u64(u64::from(self.site) << INDEX_BITS);
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

/// The fault word and the site, in a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Faults<'k> {
    word: GlobalAddress<'k>,
    site: U64<'k>,
}

impl<'k> Faults<'k> {
    /// Declares the two parameters that [`FaultSite::push`] fills.
    #[track_caller]
    pub fn parameters(k: &'k Kernel) -> Faults<'k> {
        Faults {
            word: k.pointer("faults"),
            site: k.u64_param("site"),
        }
    }

    /// Like [`Faults::parameters`], for a kernel with several sites.
    #[track_caller]
    pub fn named(k: &'k Kernel, name: &str) -> Faults<'k> {
        Faults {
            word: k.pointer(&format!("faults_{name}")),
            site: k.u64_param(&format!("site_{name}")),
        }
    }

    /// Reports `index` if it is `outside`. The caller must not use such an index.
    #[track_caller]
    pub fn report(self, outside: Pred<'k>, index: S64<'k>) {
        let reported = index.max(-LAST_INDEX).min(LAST_INDEX).unsigned();
        self.word
            .atomic_max_if(outside, (reported & INDEX_MASK) | self.site);
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
    use crate::assembler::Target;

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

    #[test]
    fn arguments_fill_the_parameters() {
        let k = &Kernel::new("faults", Target::Sm80, 32);
        let faults = Faults::parameters(k);
        faults.check(k.constant(3i64), k.constant(2u64));
        let mut arguments = Arguments::new();
        FaultSite::new(0x1000, 1).push(&mut arguments);
        let ptx = k.finish();
        assert_eq!(arguments.bytes().len(), ptx.parameter_bytes());
        assert!(ptx.text.contains("red.global.max.u64"), "{}", ptx.text);
    }
}
