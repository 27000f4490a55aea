//! Sorting slots by expert: a stable counting sort with the same bits in every run.
//!
//! Legend: S slots (token * K + choice), G local experts, B blocks of slots, P ranks.
//!
//! ```text
//! histogram   counts[g, b]       = number of slots of block b that chose expert g
//! scan        starts[g, b]       = sum of counts[g, ..b],  totals[g] = sum of counts[g, ..]
//! offsets     offsets[g]         = sum of totals[..g], as i64
//! scatter     row_of_slot[slot]  = offsets[g] + starts[g, b] + rank of slot within (g, b)
//!             order[row]         = the inverse of row_of_slot
//! places      place[slot]        = rank * capacity + row_of_slot[slot] - first row of the rank
//!             slot[place]        = the inverse of place
//! ```
//!
//! The launch geometries depend only on S and G, because only the device knows how many slots each
//! expert gets. Indices are read twice; `order` and `row_of_slot` are written once. `counts` is
//! small: there are at most [`MAX_BLOCKS`] blocks.
//!
//! Within a block, each warp has consecutive slots, so a slot's rank is the number of equal indices
//! in earlier lanes (`match`), rounds and warps. Slots of experts that are not local get no row.
//! Indices outside of all experts are reported to the host.

mod histogram;
mod index;
mod offsets;
mod places;
mod scatter;

pub use histogram::{ExpertHistogram, ExpertHistogramArguments};
pub use index::IndexFormat;
pub use offsets::{
    ExpertCounts, ExpertCountsArguments, ExpertOffsets, ExpertOffsetsArguments, ExpertStarts,
    ExpertStartsArguments,
};
pub use places::{ExpertPlaces, ExpertPlacesArguments};
pub use scatter::{ExpertScatter, ExpertScatterArguments};

use crate::assembler::{Kernel, Launch, Pred, U32, U64};

/// Threads per CTA.
const THREADS: u32 = 256;

/// Warps per CTA.
const WARPS: u32 = THREADS / 32;

/// Slots per lane whose loads are in flight together.
const SLOTS_IN_FLIGHT: u32 = 8;

/// Slots that a CTA processes together.
const TILE: u32 = THREADS * SLOTS_IN_FLIGHT;

/// Maximum number of blocks, so that one CTA can sum them: about two per multiprocessor.
pub const MAX_BLOCKS: u32 = THREADS;

/// Maximum number of experts that a CTA counts. If there are more, each block has several CTAs.
const MAX_EXPERTS: u32 = 1024;

/// The row or place of a slot that has none, and the slot of a row or place without one.
const ABSENT: u32 = u32::MAX;

/// The division of slots into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    slots: u32,
    tiles: u32,
}

impl Blocks {
    /// The smallest blocks such that there are at most [`MAX_BLOCKS`].
    pub fn new(slots: u32) -> Blocks {
        Blocks::of_tiles(slots, slots.div_ceil(TILE).div_ceil(MAX_BLOCKS))
    }

    /// Blocks of `tiles` tiles, or of more tiles if there would be too many blocks.
    pub fn of_tiles(slots: u32, tiles: u32) -> Blocks {
        let least = slots.div_ceil(TILE).div_ceil(MAX_BLOCKS).max(1);
        Blocks { slots, tiles: tiles.max(least) }
    }

    /// The number of blocks: at least one, which may be empty.
    pub fn count(self) -> u32 {
        self.slots.div_ceil(TILE).div_ceil(self.tiles).max(1)
    }

    /// The number of slots.
    pub fn slots(self) -> u32 {
        self.slots
    }

    /// Slots per block; the last block may have fewer.
    pub fn each(self) -> u32 {
        self.tiles.saturating_mul(TILE)
    }

    /// A CTA for each block and each part of the experts.
    fn launch(self, parts: u32) -> Option<Launch> {
        Launch::new([self.count(), parts, 1], THREADS)
    }
}

/// The division of local experts into parts, which different CTAs count. `experts` is the capacity
/// of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Parts {
    experts: u32,
}

impl Parts {
    /// The capacity is a power of two, so that there are few variants.
    fn new(held: u32) -> Parts {
        Parts { experts: held.clamp(32, MAX_EXPERTS).next_power_of_two() }
    }

    fn count(self, held: u32) -> u32 {
        held.div_ceil(self.experts).max(1)
    }
}

/// The block of slots and the part of the experts that a CTA processes.
struct Share<'k> {
    k: &'k Kernel,
    block: U32<'k>,
    /// The slots of the block are `first..end`.
    first: U32<'k>,
    end: U32<'k>,
    /// The part's first expert, relative to the first local expert.
    first_expert: U32<'k>,
    /// The number of experts of the part.
    experts: U32<'k>,
}

impl<'k> Share<'k> {
    #[track_caller]
    fn new(k: &'k Kernel, parts: Parts, [slots, each, held]: [U32<'k>; 3]) -> Share<'k> {
        let block = k.cta();
        let first = block * each;
        let first_expert = k.cta_y() * parts.experts;
        Share {
            k,
            block,
            first,
            end: first + (slots - first).min(each),
            first_expert,
            experts: (held - first_expert).min(parts.experts),
        }
    }

    /// Converts `group`, an expert relative to the first local one, to an expert relative to the
    /// part. The result is `self.experts` if it is not in the part.
    #[track_caller]
    fn of_part(&self, group: U32<'k>) -> U32<'k> {
        (group - self.first_expert).min(self.experts)
    }

    /// Emits a loop over this thread's share of the part's experts.
    #[track_caller]
    fn for_experts(&self, body: impl FnOnce(U32<'k>)) {
        self.k.for_range(self.k.thread(), self.experts, THREADS, body);
    }

    /// The index in `counts` of this block and an expert of the part.
    #[track_caller]
    fn cell(&self, expert: U32<'k>) -> U64<'k> {
        (self.first_expert + expert).mul_wide(self.k.ctas()) + self.block.wide()
    }

    /// The slots of this thread in the tile that begins at slot `tile`, and whether they exist. The
    /// slots of a warp are consecutive.
    #[track_caller]
    fn slots(&self, tile: U32<'k>) -> Vec<(U32<'k>, Pred<'k>)> {
        let (warp, lane) = (self.k.warp(), self.k.lane());
        let first = tile + warp * (32 * SLOTS_IN_FLIGHT) + lane;
        let slots = (0..SLOTS_IN_FLIGHT).map(|i| first + 32 * i);
        slots.map(|slot| (slot, slot.lt(self.end))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every slot is in one block, and one CTA can sum all blocks.
    #[test]
    fn blocks_cover_the_slots() {
        for slots in [0, 1, 2047, 2048, 2049, 524_288, 524_289, i32::MAX as u32] {
            let blocks = Blocks::new(slots);
            assert!((1..=MAX_BLOCKS).contains(&blocks.count()), "{slots}");
            let all = u64::from(blocks.count()) * u64::from(blocks.each());
            assert!(all >= u64::from(slots), "{slots}");
            assert!(all - u64::from(slots) <= u64::from(blocks.each()));
        }
    }

    #[test]
    fn many_experts_are_counted_in_parts() {
        let parts = |held| (Parts::new(held).experts, Parts::new(held).count(held));
        assert_eq!(parts(0), (32, 1));
        assert_eq!(parts(128), (128, 1));
        assert_eq!(parts(130), (256, 1));
        assert_eq!(parts(3000), (1024, 3));
    }
}
