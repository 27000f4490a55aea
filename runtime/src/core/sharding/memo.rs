//! A cache of the shardings of results, one per thread: a model makes the same calls in every step.

use std::cell::RefCell;
use std::sync::Arc;

use meshgrad_mesh::DerivedSharding;

use super::tag::Tag;
use crate::{Result, Shape};

/// The number of calls that a thread remembers, each in one of two neighbouring slots.
const SLOTS: usize = 2048;

/// What determines the results' shardings.
pub(super) struct Key<'a> {
    /// Identifies the op.
    pub(super) op: usize,
    /// `None` for an operand that takes the sharding of its result.
    pub(super) operands: &'a [Option<&'a Tag>],
    /// The other arguments that the op's rule depends on.
    pub(super) arguments: &'a [usize],
}

/// The shardings of an op's results on a rank.
pub(crate) struct Results {
    pub(super) rank: usize,
    pub(super) results: Vec<ResultTag>,
}

/// The sharding of a result.
pub(super) enum ResultTag {
    Known(Tag),
    /// The operands do not determine all extents of its global shape.
    Open(Box<DerivedSharding>),
}

impl Results {
    /// The tag of result `at`, which has `shape`.
    pub(crate) fn tag(&self, op: &'static str, at: usize, shape: &Shape) -> Result<Tag> {
        let tag = self.of_shape(at, shape)?;
        tag.check(op, shape)?;
        Ok(tag)
    }

    /// The tag of result `at`. `shape` gives the extents that the operands do not determine.
    pub(crate) fn of_shape(&self, at: usize, shape: &[usize]) -> Result<Tag> {
        match &self.results[at] {
            ResultTag::Known(tag) => Ok(tag.clone()),
            ResultTag::Open(derived) => {
                let sharding = derived.sharding(shape)?;
                Tag::new(sharding, self.rank)
            }
        }
    }
}

/// A call and its results. It owns its operands' tags, so that their addresses are not reused.
struct Entry {
    op: usize,
    operands: Vec<Option<Tag>>,
    arguments: Vec<usize>,
    results: Arc<Results>,
}

impl Entry {
    fn is(&self, key: &Key<'_>) -> bool {
        let same = |(own, other): (&Option<Tag>, &Option<&Tag>)| own.as_ref() == *other;
        self.op == key.op
            && self.operands.len() == key.operands.len()
            && self.operands.iter().zip(key.operands).all(same)
            && self.arguments == key.arguments
    }
}

thread_local! {
    static ENTRIES: RefCell<Vec<Option<Entry>>> = const { RefCell::new(Vec::new()) };
}

impl Key<'_> {
    /// The results of the call: remembered from an equal call, or else computed by `derive`.
    pub(super) fn results(&self, derive: &dyn Fn() -> Result<Results>) -> Result<Arc<Results>> {
        let slot = self.slot();
        let kept = ENTRIES.with_borrow(|entries| {
            let both = [slot, slot ^ 1].map(|slot| entries.get(slot).and_then(Option::as_ref));
            let mut both = both.into_iter().flatten();
            both.find(|entry| entry.is(self)).map(|entry| entry.results.clone())
        });
        if let Some(results) = kept {
            return Ok(results);
        }
        let results = Arc::new(derive()?);
        let entry = Entry {
            op: self.op,
            operands: self.operands.iter().map(|tag| tag.cloned()).collect(),
            arguments: self.arguments.to_vec(),
            results: results.clone(),
        };
        let replaced = ENTRIES.with_borrow_mut(|entries| {
            entries.resize_with(SLOTS, || None);
            let slot = if entries[slot ^ 1].is_none() { slot ^ 1 } else { slot };
            entries[slot].replace(entry)
        });
        drop(replaced);
        Ok(results)
    }

    fn slot(&self) -> usize {
        let ids = self.operands.iter().map(|tag| tag.map_or(0, |tag| tag.id()));
        let words = ids.chain(self.arguments.iter().copied());
        let mix = |hash: u64, word: usize| {
            (hash.rotate_left(5) ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        (words.fold(self.op as u64, mix) >> 48) as usize % SLOTS
    }
}
