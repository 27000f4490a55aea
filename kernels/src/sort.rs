//! Stable radix sort of keys with their positions, eight bits per pass, lowest bits first.
//!
//! A pass is three kernels. In the first, each CTA counts the digits of its keys. The second
//! computes the prefix sums of each digit's counts over the CTAs. In the third, each CTA scatters
//! its keys after those with a smaller digit and after earlier ones with the same digit. All
//! arithmetic is on integers, so the result depends only on the keys. The launches depend only on
//! the number of keys.

use crate::assembler::{
    GlobalAddress, In, Kernel, Launch, Out, Pred, Ptx, SharedAddress, Target, U32, Variant,
    block_exclusive_scan,
};
use crate::params;

/// Bits per digit.
const BITS: u32 = 8;

/// The number of digits.
const DIGITS: u32 = 1 << BITS;

const THREADS: u32 = DIGITS;
const WARPS: u32 = THREADS / 32;

/// Keys per lane.
const ROUNDS: u32 = 8;

/// Keys per CTA. The keys of a warp are contiguous.
const TILE: u32 = THREADS * ROUNDS;

/// The workspace for sorting `count` keys, in u32 words.
pub fn workspace_words(count: u32) -> u64 {
    u64::from(DIGITS) * (u64::from(tiles(count)) + 1)
}

/// The number of passes for keys up to `largest`.
pub fn passes_for(largest: u32) -> u32 {
    (u32::BITS - largest.leading_zeros()).div_ceil(BITS).max(1)
}

fn tiles(count: u32) -> u32 {
    count.div_ceil(TILE)
}

/// The kernels of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RadixPass {
    /// Counts each digit in each tile.
    Count,
    /// Prefix sums of the counts over the tiles, and totals.
    Scan,
    /// Scatters every key to its destination.
    Scatter,
}

impl RadixPass {
    /// All kernels, in the order of their launches.
    pub const ALL: [RadixPass; 3] = [RadixPass::Count, RadixPass::Scan, RadixPass::Scatter];

    /// The launch over keys; `None` if there are none.
    pub fn launch(self, count: u32) -> Option<Launch> {
        let ctas = match self {
            RadixPass::Count | RadixPass::Scatter => tiles(count),
            RadixPass::Scan => DIGITS * count.min(1),
        };
        Launch::new([ctas, 1, 1], THREADS)
    }
}

impl<'k> Call<'k> {
    fn k(&self) -> &'k Kernel {
        self.count.kernel()
    }

    /// The count of a digit in a tile.
    #[track_caller]
    fn of_tile(&self, digit: U32<'k>, tile: U32<'k>) -> GlobalAddress<'k> {
        let line = digit.mul_wide(self.tiles);
        self.counts.element_wide::<u32>(line + tile.wide())
    }

    /// The total count of a digit.
    #[track_caller]
    fn total(&self, digit: U32<'k>) -> GlobalAddress<'k> {
        let lines = self.tiles.mul_wide(DIGITS);
        self.counts.element_wide::<u32>(lines + digit.wide())
    }

    /// The keys of this lane, by round.
    #[track_caller]
    fn keys(&self) -> Vec<Key<'k>> {
        let k = self.k();
        let first = k.cta() * TILE + k.warp() * (TILE / WARPS) + k.lane();
        let load = |round: u32| {
            let index = first + round * 32;
            let exists = index.lt(self.count);
            let key = self.from[0].element::<u32>(index).load_if::<u32>(exists);
            (index, exists, key)
        };
        let loaded: Vec<_> = (0..ROUNDS).map(load).collect();
        let ranked = |(index, exists, key): (U32<'k>, Pred<'k>, U32<'k>)| {
            let digit = (key >> self.shift) & (DIGITS - 1);
            Key { index, exists, key, digit }
        };
        loaded.into_iter().map(ranked).collect()
    }

    /// Allocates counters \[warps, digits\] in shared memory and sets them to 0.
    #[track_caller]
    fn zeros(&self) -> SharedAddress<'k> {
        let k = self.k();
        let table = k.shared::<u32>(WARPS * DIGITS);
        let own = table.element::<u32>(k.thread());
        for warp in 0..WARPS {
            own.offset(4 * warp * DIGITS).store(k.constant(0u32));
        }
        k.barrier();
        table
    }

    /// Gives each lane's key the next number of its digit, in lane order, and advances the warp's
    /// counters. All lanes must call it.
    #[track_caller]
    fn number(&self, table: SharedAddress<'k>, key: &Key<'k>) -> U32<'k> {
        let k = self.k();
        // Keys past the end get an extra digit.
        let digit = key.exists.select(key.digit, DIGITS);
        let same = digit.match_any();
        let before: U32<'k> = k.compute("mov.u32", &[&"%lanemask_lt"]);
        let (rank, all) = ((same & before).count_ones(), same.count_ones());

        let next = table.element::<u32>(k.warp().mad(DIGITS, key.digit));
        let first = next.load::<u32>();
        k.warp_barrier();
        k.if_(key.exists & rank.equals(0), || next.store(first + all));
        k.warp_barrier();
        first + rank
    }
}

struct Key<'k> {
    index: U32<'k>,
    exists: Pred<'k>,
    key: U32<'k>,
    digit: U32<'k>,
}

params! {
    /// Arguments of one pass over keys and positions, the same for its three kernels.
    pub struct RadixPassArguments => Call {
        /// The addresses of the keys and of their positions.
        from: [In; 2],
        /// The destinations of keys and positions, sorted by this pass's digit.
        to: [Out; 2],
        /// A workspace of [`workspace_words`] u32: \[digits, tiles\] counts, followed by \[digits\]
        /// totals.
        counts: Out,
        /// Number of keys.
        count: u32,
        /// Tiles of keys.
        tiles: u32,
        /// The first bit of the pass's digit.
        shift: u32,
    }
}

impl RadixPassArguments {
    /// Pass `pass`, counted from 0, over `count` keys.
    pub fn new(
        from: [In; 2],
        to: [Out; 2],
        counts: Out,
        count: u32,
        pass: u32,
    ) -> RadixPassArguments {
        RadixPassArguments { from, to, counts, count, tiles: tiles(count), shift: pass * BITS }
    }
}

impl Variant for RadixPass {
    type Arguments = RadixPassArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let call = self.parameters(k);
        match self {
            RadixPass::Count => count(&call),
            RadixPass::Scan => scan(&call),
            RadixPass::Scatter => place(&call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        let name = match self {
            RadixPass::Count => "count",
            RadixPass::Scan => "scan",
            RadixPass::Scatter => "scatter",
        };
        format!("radix_sort_{name}")
    }
}

#[track_caller]
fn count(call: &Call<'_>) {
    let k = call.k();
    let keys = call.keys();
    let table = call.zeros();
    for key in &keys {
        call.number(table, key);
    }
    k.barrier();
    let own = table.element::<u32>(k.thread());
    let sum = (0..WARPS)
        .fold(k.constant(0u32), |sum, warp| sum + own.offset(4 * warp * DIGITS).load::<u32>());
    call.of_tile(k.thread(), k.cta()).store(sum);
}

/// Prefix sums over the tiles, with one CTA per digit.
#[track_caller]
fn scan(call: &Call<'_>) {
    let k = call.k();
    let carried = k.var(0u32);
    k.for_range(0u32, call.tiles, THREADS, |first| {
        let tile = first + k.thread();
        let exists = tile.lt(call.tiles);
        let at = call.of_tile(k.cta(), tile);
        let [before, all] = block_exclusive_scan(k, at.load_if::<u32>(exists));
        at.store_if(exists, before + *carried);
        carried.add(all);
        k.barrier();
    });
    let first = k.thread().equals(0);
    call.total(k.cta()).store_if(first, carried.get());
}

#[track_caller]
fn place(call: &Call<'_>) {
    let k = call.k();
    let keys = call.keys();
    let positions: Vec<_> = keys
        .iter()
        .map(|key| call.from[1].element::<u32>(key.index).load_if::<u32>(key.exists))
        .collect();
    let table = call.zeros();
    for key in &keys {
        call.number(table, key);
    }

    // The counters of this thread's digit become the first destination of each warp's keys.
    let digit = k.thread();
    let [smaller, _] = block_exclusive_scan(k, call.total(digit).load());
    let own = table.element::<u32>(digit);
    let mut start = smaller + call.of_tile(digit, k.cta()).load::<u32>();
    for warp in 0..WARPS {
        let place = own.offset(4 * warp * DIGITS);
        let count = place.load::<u32>();
        place.store(start);
        start = start + count;
    }
    k.barrier();

    for (key, position) in keys.iter().zip(positions) {
        let to = call.number(table, key);
        call.to[0].element::<u32>(to).store_if(key.exists, key.key);
        call.to[1].element::<u32>(to).store_if(key.exists, position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_pass_per_digit() {
        assert_eq!([0, 255, 256, 151_936, u32::MAX].map(passes_for), [1, 1, 2, 3, 4]);
        assert_eq!(workspace_words(2048), 512);
        assert_eq!(workspace_words(2049), 768);
    }
}
