//! Where the extremes of rows are, and their largest elements in order.
//!
//! All compares keys of 64 bits: above, the element's rank as a number, the same for 0 and -0, and a
//! NaN before all numbers; below, its index, inverted, so that the first of equals has the larger
//! key. No two keys of a row are equal, so whatever finds the largest finds the same, in any order.

//!
//! The largest elements of a row are found by sorting: tiles of it in registers, of which only as
//! many are kept as are wanted, and then what the tiles have kept, eight at a time, until one run is
//! left. Runs lie one behind the other, each in descending order.

mod best;
mod merge;
mod sort;

pub use best::{
    Best, BestArguments, BestOfChunks, BestOfChunksArguments, Direction, chunks_of_rows,
};
pub use merge::{MergeRuns, MergeRunsArguments, Runs};
pub use sort::{SortTiles, SortTilesArguments};

use crate::assembler::{F32, GlobalAddress, Kernel, Pred, U32, U64};
use crate::dtype::{Dtype, Loaded};

/// A key that is below all others: of no element.
const NONE: u64 = 0;

/// The key of an element, `NONE` where the predicate does not hold; descending by value.
#[track_caller]
fn key<'k>(value: F32<'k>, index: U32<'k>, exists: Pred<'k>) -> U64<'k> {
    let k = value.kernel();
    let zeros_alike = value + 0.0;
    let bits = zeros_alike.to_bits();

    // Larger floats have larger bits, but for the negative ones, where it is the other way round.
    let flipped = (bits.signed() >> 31).unsigned() | 0x8000_0000;
    let rank = bits ^ flipped;
    let rank = value.differs(value).select(u32::MAX, rank);
    let key = k.compute("mov.b64", &[&format_args!("{{{}, {rank}}}", !index)]);
    exists.select(key, NONE)
}

/// The index of the element with this key.
#[track_caller]
fn index_of(key: U64<'_>) -> U32<'_> {
    !key.low()
}

/// Where the largest elements of rows go, in order.
#[derive(Clone, Copy)]
struct Sorted<'k> {
    /// The dtype of x, where elements and places are written, not keys.
    elements: Option<Dtype>,
    /// \[R, lines, kept\].
    keys: GlobalAddress<'k>,
    /// \[R, D\].
    x: GlobalAddress<'k>,
    /// \[R, kept\].
    values: GlobalAddress<'k>,
    /// \[R, kept\].
    places: GlobalAddress<'k>,
    /// D.
    features: U32<'k>,
}

impl<'k> Sorted<'k> {
    /// Declares the parameters.
    #[track_caller]
    fn parameters(k: &'k Kernel, elements: Option<Dtype>) -> Sorted<'k> {
        Sorted {
            elements,
            keys: k.pointer("keys"),
            x: k.pointer("x"),
            values: k.pointer("values"),
            places: k.pointer("places"),
            features: k.u32_param("features"),
        }
    }

    /// Stores keys, or what they stand for in row `row`: all of that is read before the first store.
    #[track_caller]
    fn store(&self, row: U64<'k>, keys: &[Ranked<'k>]) {
        let Some(dtype) = self.elements else {
            for it in keys {
                let to = self.keys.element_wide::<u64>(it.to);
                to.store_if(it.exists, it.key);
            }
            return;
        };
        let (start, size) = (row * self.features.wide(), u64::from(dtype.size()));
        let load = |it: &Ranked<'k>| {
            let from = self.x.moved((start + index_of(it.key).wide()) * size);
            Loaded::new(dtype, 1, it.exists, from)
        };
        let values: Vec<Loaded<'k>> = keys.iter().map(load).collect();
        for (it, value) in keys.iter().zip(values) {
            value.store_if(it.exists, self.values.moved(it.to * size));
            let place = self.places.element_wide::<u64>(it.to);
            place.store_if(it.exists, index_of(it.key).wide());
        }
    }
}

/// A key whose rank is known.
struct Ranked<'k> {
    /// Whether there is such a key, and it is kept.
    exists: Pred<'k>,
    key: U64<'k>,
    /// Where it goes, counted from the first row.
    to: U64<'k>,
}
