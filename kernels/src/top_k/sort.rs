//! Sorting of tiles of rows.

use super::{Ranked, SortedKeys};
use crate::assembler::{
    GlobalAddress, Kernel, Launch, Pred, Ptx, SharedAddress, Shuffle, Target, U32, U64, Variant,
};
use crate::dtype::{Dtype, Loaded};
use crate::params;
use crate::sort_key::key;

/// Keys per thread.
const PER_THREAD: u32 = 8;

/// Maximum threads per CTA.
const MAX_THREADS: u32 = 128;

/// Maximum tiles per row: the limit of the grid's second dimension.
const MAX_TILES: u64 = 65_535;

/// Sorts the keys of each tile of a row in descending order and keeps the first ones. If a row is
/// one tile, writes the elements and their indices instead of keys.
///
/// A bitonic sorting network (Batcher 1968). Key i belongs to thread i modulo the number of
/// threads. Distant partners are in the registers of one thread, and near ones are in one warp. The
/// others use shared memory, where consecutive threads access consecutive words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SortTiles {
    dtype: Dtype,
    threads: u32,
    /// Elements per access.
    width: u32,
    /// Whether a row is a single tile.
    last: bool,
}

impl SortTiles {
    /// Maximum elements per row.
    pub const MAX_FEATURES: u64 = MAX_TILES * (MAX_THREADS * PER_THREAD) as u64;

    /// The kernel for rows of `features` elements. `aligned`: whether x begins at a multiple of 16
    /// bytes.
    pub fn new(dtype: Dtype, features: u64, aligned: bool) -> SortTiles {
        let needed = features.div_ceil(PER_THREAD.into()).max(1);
        let threads = needed.min(MAX_THREADS.into()).next_power_of_two() as u32;
        let vectors = aligned && features.is_multiple_of(dtype.per_vector().into());
        let sort = SortTiles {
            dtype,
            threads: threads.max(32),
            width: if vectors { dtype.per_vector() } else { 1 },
            last: false,
        };
        SortTiles { last: sort.tiles(features) == 1, ..sort }
    }

    /// Elements per tile.
    pub fn tile(&self) -> u64 {
        (self.threads * PER_THREAD).into()
    }

    /// Tiles per row.
    pub fn tiles(&self, features: u64) -> u64 {
        features.div_ceil(self.tile()).max(1)
    }

    /// The launch; `None` if there are no rows.
    pub fn launch(&self, rows: u64, features: u64) -> Option<Launch> {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        Launch::new([rows, self.tiles(features) as u32, 1], self.threads)
    }

    /// Loads the keys of this thread. Their order does not matter, because the tile will be sorted.
    #[track_caller]
    fn load<'k>(&self, row: GlobalAddress<'k>, first: U32<'k>, features: U32<'k>) -> Vec<U64<'k>> {
        let thread = first.kernel().thread();
        let accesses = (0..PER_THREAD / self.width).map(|access| {
            let at = first + (thread + access * self.threads) * self.width;
            let from = row.byte_add(at.mul_wide(self.dtype.size()));
            let exists = at.lt(features);
            (at, exists, Loaded::new(self.dtype, self.width, exists, from))
        });
        let mut keys = Vec::new();
        for (at, exists, loaded) in accesses.collect::<Vec<_>>() {
            let values = (0..).zip(loaded.widen());
            keys.extend(values.map(|(i, value)| key(value, at + i, exists)));
        }
        keys
    }
}

params! {
    /// Arguments of [`SortTiles`].
    pub struct SortTilesArguments => Call {
        /// The elements, and the destinations of keys or values. For rows of one tile, values are
        /// stored instead of keys. D is at most [`SortTiles::MAX_FEATURES`].
        to: SortedKeys,
        /// Keys that each tile keeps, at most [`SortTiles::tile`].
        kept: u32,
        /// Tiles per row, from [`SortTiles::tiles`].
        tiles: u32,
    }
}

impl Variant for SortTiles {
    type Arguments = SortTilesArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, self.threads);
        let Call { to, kept, tiles } = self.parameters(k);

        let (row, tile) = (k.cta().wide(), k.cta_y());
        let start = row * to.features.wide() * u64::from(self.dtype.size());
        let first = tile * (self.threads * PER_THREAD);
        let keys = self.load(to.x.byte_add(start), first, to.features);
        let keys = Sorter::new(k, self.threads).sorted(keys);

        let line = (row * tiles.wide() + tile.wide()) * kept.wide();
        let kept = kept.min(to.features - first);
        let ranked = (0..).zip(keys).map(|(i, key)| {
            let at = k.thread() + i * self.threads;
            Ranked { exists: at.lt(kept), key, to: line + at.wide() }
        });
        to.store(self.last.then_some(self.dtype), row, &ranked.collect::<Vec<_>>());
        k.finish()
    }

    fn entry(&self) -> String {
        let SortTiles { dtype, threads, width, last } = *self;
        let to = if last { "elements" } else { "keys" };
        format!("sort_tiles_{}_w{width}_t{threads}_to_{to}", dtype.name())
    }
}

/// The sorting network.
struct Sorter<'k> {
    k: &'k Kernel,
    threads: u32,
    thread: U32<'k>,
    /// Space for all keys of the CTA.
    shared: SharedAddress<'k>,
}

impl<'k> Sorter<'k> {
    fn new(k: &'k Kernel, threads: u32) -> Sorter<'k> {
        Sorter { k, threads, thread: k.thread(), shared: k.shared::<u64>(threads * PER_THREAD) }
    }

    /// Sorts the keys of all threads in descending order; returns those at this thread's positions.
    #[track_caller]
    fn sorted(&self, keys: Vec<U64<'k>>) -> Vec<U64<'k>> {
        let count = self.threads * PER_THREAD;
        let mut keys = keys;
        for size in (1..=count.trailing_zeros()).map(|bit| 1 << bit) {
            let mut distance = size / 2;
            while distance > 0 {
                keys = self.step(keys, size, distance);
                distance /= 2;
            }
        }
        keys
    }

    /// Compares and swaps keys `distance` apart. Blocks of `size` are alternately descending and
    /// ascending.
    #[track_caller]
    fn step(&self, keys: Vec<U64<'k>>, size: u32, distance: u32) -> Vec<U64<'k>> {
        if distance >= self.threads {
            return self.in_a_thread(keys, size, distance);
        }
        let partners: Vec<U64<'k>> = match distance {
            ..32 => {
                let exchanged = keys.iter().map(|key| u64::shuffle_xor(self.k, *key, distance));
                exchanged.collect()
            }
            _ => self.through_shared_memory(&keys, distance),
        };
        let last = (self.thread & distance).differs(0);
        let pairs = (0..).zip(keys.into_iter().zip(partners));
        let chosen = pairs.map(|(i, (own, partner))| {
            let smaller = self.keeps_the_smaller(last, i, size);
            (partner.gt(own) ^ smaller).select(partner, own)
        });
        chosen.collect()
    }

    /// Whether this thread keeps the smaller key of a pair at its position `i`. `last`: whether it
    /// has the second key of the pair.
    #[track_caller]
    fn keeps_the_smaller(&self, last: Pred<'k>, i: u32, size: u32) -> Pred<'k> {
        if size < self.threads {
            return last ^ (self.thread & size).differs(0);
        }
        match (i * self.threads) & size {
            0 => last,
            _ => !last,
        }
    }

    #[track_caller]
    fn in_a_thread(&self, keys: Vec<U64<'k>>, size: u32, distance: u32) -> Vec<U64<'k>> {
        let apart = distance / self.threads;
        let mut sorted = keys;
        for low in (0..PER_THREAD).filter(|i| i & apart == 0) {
            let [a, b] = [low, low + apart].map(|i| i as usize);
            let (first, second) = (sorted[a], sorted[b]);
            let (larger, smaller) = (first.max(second), first.min(second));
            let descending = (low * self.threads) & size == 0;
            (sorted[a], sorted[b]) = match descending {
                true => (larger, smaller),
                false => (smaller, larger),
            };
        }
        sorted
    }

    #[track_caller]
    fn through_shared_memory(&self, keys: &[U64<'k>], distance: u32) -> Vec<U64<'k>> {
        let (own, line) = (self.shared.element::<u64>(self.thread), 8 * self.threads);
        for (i, key) in (0..).zip(keys) {
            own.offset(i * line).store(*key);
        }
        self.k.barrier();
        let partner = self.shared.element::<u64>(self.thread ^ distance);
        let loaded = (0..PER_THREAD).map(|i| partner.offset(i * line).load::<u64>());
        let loaded = loaded.collect();
        self.k.barrier(); // before the next step writes
        loaded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short rows use few threads; long rows are split into tiles.
    #[test]
    fn tile_size_depends_on_row_length() {
        let sort = |features| SortTiles::new(Dtype::Bf16, features, true);
        let tiles = |features| (sort(features).tile(), sort(features).tiles(features));
        assert_eq!(tiles(1), (256, 1));
        assert_eq!(tiles(257), (512, 1));
        assert_eq!(tiles(1024), (1024, 1));
        assert_eq!(tiles(151_936), (1024, 149));
        assert_eq!(sort(8).launch(3, 8).unwrap().grid, [3, 1, 1]);
        assert_eq!(sort(8).launch(0, 8), None);
    }
}
