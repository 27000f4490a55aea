//! Indices that are out of range: how a kernel tells of one, and what the host reads.
//!
//! A kernel cannot return an error. Each device has one word of 64 bits for that, which is 0 while
//! all is well. A kernel that meets an index outside of its extent raises the word to a value that
//! names the place in the program (a *site*: an op and an extent, which the host counts) and the
//! index, and goes on with the index taken as none: it reads zeros there and writes nothing. The
//! word only rises, by an atomic maximum of integers, so what it holds in the end does not depend on
//! the order in which threads come to it.

use crate::assembler::{Arguments, GlobalAddress, Kernel, Pred, S64, U64};

/// Bits of an index in the word; the site has the others.
const INDEX_BITS: u32 = 40;

const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// Indices are told up to here; what is beyond is told as this or its negative.
const LAST_INDEX: i64 = (1 << (INDEX_BITS - 1)) - 1;

/// Where kernels of one op, over one extent, report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultSite {
    word: u64,
    site: u32,
}

impl FaultSite {
    /// The highest number of a site. The lowest is 1.
    pub const LAST: u32 = (1 << (64 - INDEX_BITS)) - 1;

    /// Site number `site` of the device whose word lies at the address `word`.
    ///
    /// # Panics
    /// If there is no such number: they are 1 to [`FaultSite::LAST`].
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

/// An index that was out of range, as the host reads it out of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The number of the site.
    pub site: u32,
    /// The index; of several the largest, where negative ones count as larger than all others.
    pub index: i64,
}

impl Fault {
    /// What the word tells; `None` where all is well.
    pub fn from_word(word: u64) -> Option<Fault> {
        let unused = 64 - INDEX_BITS;
        (word != 0).then_some(Fault {
            site: (word >> INDEX_BITS) as u32,
            index: ((word << unused) as i64) >> unused,
        })
    }
}

/// The word and the site, in a kernel.
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

    /// As [`Faults::parameters`], where a kernel has several sites.
    #[track_caller]
    pub fn named(k: &'k Kernel, name: &str) -> Faults<'k> {
        Faults {
            word: k.pointer(&format!("faults_{name}")),
            site: k.u64_param(&format!("site_{name}")),
        }
    }

    /// Tells of `index` where it is `outside`. The caller sees to it that such an index is not used.
    #[track_caller]
    pub fn report(self, outside: Pred<'k>, index: S64<'k>) {
        let told = index.max(-LAST_INDEX).min(LAST_INDEX).unsigned();
        self.word
            .atomic_max_if(outside, (told & INDEX_MASK) | self.site);
    }

    /// Whether `index` is in 0..extent; tells of it otherwise.
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
