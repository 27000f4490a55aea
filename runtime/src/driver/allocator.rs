//! The caching allocator of GPU memory. It calls no driver function itself, so tests need no GPU,
//! and a meta device uses it too.
//!
//! Allocating from the driver is slow, and freeing waits for the GPU. So the allocator allocates
//! large *segments*, splits them into *blocks*, and caches freed blocks.
//!
//! - A block belongs to the [`Pool`] of the stream that allocated it. Work of one stream runs in
//!   order, so the same stream can reuse a freed block immediately, even while the GPU still uses
//!   it.
//! - Requests up to 1 MiB share segments of 2 MiB, larger ones share segments of 20 MiB, and a
//!   request of at least 10 MiB gets its own segment. The smallest free block that fits is split
//!   (the lowest address among equals); free neighbors are merged.
//! - A freed block that other streams used stays pending until its pool's stream waits for them
//!   ([`Allocator::flush`]).
//!
//! Equal sequences of calls return equal addresses. Reusing a cached block allocates no heap
//! memory.

mod blocks;

use std::collections::BTreeMap;

use super::stats::{AllocatorStats, LISTED_SIZES, MIB, OutOfMemoryReport};
pub(crate) use blocks::Pool;
use blocks::{FreeList, Node, Nodes, State};
use meshgrad_error::{Error, Result};

/// Alignment and granularity of block sizes, in bytes.
const GRAIN: usize = 512;
/// The largest request that small segments serve.
const SMALL: usize = MIB;
const SMALL_SEGMENT: usize = 2 * MIB;
const LARGE_SEGMENT: usize = 20 * MIB;
/// The smallest request with its own segment, whose size is a multiple of [`SMALL_SEGMENT`].
const OWN_SEGMENT: usize = 10 * MIB;

/// The source of segments: the driver, or address ranges without memory for a meta device.
pub(crate) trait Segments: Send {
    /// Allocates `bytes` bytes, aligned to 512; `None` when out of memory.
    ///
    /// # Errors
    /// Other failures of the driver, including those of earlier kernels.
    fn allocate(&mut self, bytes: usize) -> Result<Option<u64>>;

    /// Frees a segment. The allocator calls [`Segments::synchronize`] before.
    fn free(&mut self, address: u64, bytes: usize);

    /// Waits until no work uses any block. Returns false if waiting is not possible now.
    fn synchronize(&mut self) -> bool;
}

/// Why an allocation failed.
#[derive(Debug)]
pub(crate) enum NoBlock {
    /// Out of memory, even after all cached segments were freed.
    OutOfMemory(Box<OutOfMemoryReport>),
    /// The driver failed.
    Failed(Error),
}

/// An allocated block. It is freed by value, so that it cannot be freed twice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    address: u64,
    bytes: usize,
    node: u32,
    pool: Pool,
}

impl Block {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes, rounding included.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The allocator.
pub(crate) struct Allocator {
    segments: Box<dyn Segments>,
    /// Bytes of the GPU's memory.
    capacity: usize,
    nodes: Nodes,
    pools: BTreeMap<Pool, Cache>,
    stats: AllocatorStats,
}

/// The free blocks of a pool.
#[derive(Default)]
struct Cache {
    small: FreeList,
    large: FreeList,
    /// Freed blocks that other streams may still use.
    pending: Vec<u32>,
}

impl Cache {
    fn list(&mut self, small: bool) -> &mut FreeList {
        match small {
            true => &mut self.small,
            false => &mut self.large,
        }
    }
}

impl Allocator {
    /// An allocator for a GPU with `capacity` bytes of memory.
    pub(crate) fn new(segments: Box<dyn Segments>, capacity: usize) -> Allocator {
        Allocator {
            segments,
            capacity,
            nodes: Nodes::default(),
            pools: BTreeMap::new(),
            stats: AllocatorStats::default(),
        }
    }

    /// A block of at least `bytes` bytes, aligned to 512.
    ///
    /// # Errors
    /// [`NoBlock`].
    pub(crate) fn allocate(&mut self, pool: Pool, bytes: usize) -> Result<Block, NoBlock> {
        let bytes = rounded(bytes);
        let small = bytes <= SMALL;
        let cached = self.pools.entry(pool).or_default().list(small).best_fit(bytes);
        let id = match cached {
            Some(id) => id,
            None => self.grow(pool, bytes)?,
        };

        self.unlist(id);
        self.split(id, bytes);

        let node = self.nodes.get(id);
        node.state = State::Live;
        self.stats.live += node.bytes;
        self.stats.peak = self.stats.peak.max(self.stats.live);
        self.stats.largest = self.stats.largest.max(bytes);
        Ok(Block { address: node.address, bytes: node.bytes, node: id, pool })
    }

    /// Frees a block. If streams other than the pool's used it (`used_elsewhere`), it is reused
    /// only after the pool's next [`Allocator::flush`].
    pub(crate) fn free(&mut self, block: Block, used_elsewhere: bool) {
        let id = block.node;
        let node = self.nodes.get(id);
        self.stats.live -= node.bytes;

        if used_elsewhere {
            node.state = State::Pending;
            let pool = node.pool;
            self.pools.entry(pool).or_default().pending.push(id);
        } else {
            self.make_free(id);
        }
    }

    /// Frees the pending blocks of `pool`. The caller makes the pool's stream wait for the work
    /// enqueued so far that may use them.
    pub(crate) fn flush(&mut self, pool: Pool) {
        while let Some(id) = self.pools.get_mut(&pool).and_then(|pool| pool.pending.pop()) {
            self.make_free(id);
        }
    }

    /// Returns every segment without a block in use to the driver, except those of graphs, which
    /// use them again at each launch.
    pub(crate) fn empty_cache(&mut self) {
        if !self.segments.synchronize() {
            return;
        }
        let pools: Vec<Pool> = self.pools.keys().copied().filter(|pool| pool.graph == 0).collect();
        for pool in pools {
            self.flush(pool);
        }

        let free = |(_, node): &(u32, &Node)| {
            node.is_whole_segment() && node.state == State::Free && node.pool.graph == 0
        };
        let segments: Vec<u32> = self.nodes.iter().filter(free).map(|(id, _)| id).collect();
        for id in segments {
            let node = *self.nodes.get(id);
            self.unlist(id);
            self.nodes.remove(id);
            self.segments.free(node.address, node.bytes);
            self.stats.reserved -= node.bytes;
            self.stats.segments_freed += 1;
        }
    }

    /// Merges the pools of the dropped graph `graph` into the pools of its streams.
    pub(crate) fn end_graph(&mut self, graph: u32) {
        let of_graph: Vec<u32> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.pool.graph == graph)
            .map(|(id, _)| id)
            .collect();
        self.pools.retain(|pool, _| pool.graph != graph);
        for id in of_graph {
            let node = self.nodes.get(id);
            node.pool.graph = 0;
            // A side stream has not waited for the graph's last launch yet.
            if node.state == State::Free && node.pool.stream != 0 {
                node.state = State::Pending;
            }
            let node = *node;
            let pool = self.pools.entry(node.pool).or_default();
            match node.state {
                State::Free => pool.list(node.small).insert(node.key(id)),
                State::Pending => pool.pending.push(id),
                State::Live => {}
            }
        }
    }

    pub(crate) fn stats(&self) -> AllocatorStats {
        let mut stats = self.stats;
        let nodes = self.nodes.iter().map(|(_, node)| node);
        for cached in nodes.filter(|node| node.state != State::Live) {
            stats.largest_cached = stats.largest_cached.max(cached.bytes);
            if cached.pool.graph != 0 {
                stats.graph_pools += cached.bytes;
            }
        }
        stats
    }

    pub(crate) fn reset_peak(&mut self) {
        self.stats.peak = self.stats.live;
        self.stats.largest = 0;
    }

    /// Allocates a segment of at least `bytes`, and returns its free block. If the driver is out of
    /// memory, frees cached segments first.
    fn grow(&mut self, pool: Pool, bytes: usize) -> Result<u32, NoBlock> {
        let segment = segment_of(bytes);
        let mut found = self.allocate_segment(segment)?;
        if found.is_none() {
            self.empty_cache();
            found = self.allocate_segment(segment)?;
        }
        if found.is_none() {
            // Last resort: a segment of the exact size.
            found = self.allocate_segment(bytes)?;
        }
        let Some((address, segment)) = found else {
            return Err(NoBlock::OutOfMemory(Box::new(self.report(bytes))));
        };

        self.stats.reserved += segment;
        self.stats.segments_allocated += 1;
        let id = self.nodes.add(Node {
            address,
            bytes: segment,
            pool,
            small: bytes <= SMALL,
            state: State::Free,
            previous: None,
            next: None,
        });
        self.enlist(id);
        Ok(id)
    }

    /// The address and size of a new segment; `None` when out of memory.
    fn allocate_segment(&mut self, bytes: usize) -> Result<Option<(u64, usize)>, NoBlock> {
        let address = self.segments.allocate(bytes).map_err(NoBlock::Failed)?;
        Ok(address.map(|address| (address, bytes)))
    }

    /// Splits block `id` after `bytes` bytes, unless the rest is too small.
    fn split(&mut self, id: u32, bytes: usize) {
        let node = *self.nodes.get(id);
        let rest = node.bytes - bytes;
        // A small rest of a large block would serve no large request.
        if rest == 0 || (!node.small && rest <= SMALL) {
            return;
        }

        let rest_id = self.nodes.add(Node {
            address: node.address + bytes as u64,
            bytes: rest,
            state: State::Free,
            previous: Some(id),
            ..node
        });
        if let Some(next) = node.next {
            self.nodes.get(next).previous = Some(rest_id);
        }
        let node = self.nodes.get(id);
        (node.bytes, node.next) = (bytes, Some(rest_id));

        self.enlist(rest_id);
    }

    /// Makes block `id` free, and merges it with its free neighbors.
    fn make_free(&mut self, id: u32) {
        self.nodes.get(id).state = State::Free;
        let Node { previous, next, .. } = *self.nodes.get(id);
        if let Some(next) = next.filter(|next| self.nodes.get(*next).state == State::Free) {
            self.unlist(next);
            self.merge(id, next);
        }

        let mut id = id;
        if let Some(left) = previous.filter(|left| self.nodes.get(*left).state == State::Free) {
            self.unlist(left);
            self.merge(left, id);
            id = left;
        }
        self.enlist(id);
    }

    fn enlist(&mut self, id: u32) {
        let node = *self.nodes.get(id);
        self.pools.entry(node.pool).or_default().list(node.small).insert(node.key(id));
    }

    fn unlist(&mut self, id: u32) {
        let node = *self.nodes.get(id);
        self.pools.entry(node.pool).or_default().list(node.small).remove(node.key(id));
    }

    /// Merges `right` into its left neighbor.
    fn merge(&mut self, left: u32, right: u32) {
        let Node { bytes, next, .. } = *self.nodes.get(right);
        let node = self.nodes.get(left);
        node.bytes += bytes;
        node.next = next;
        if let Some(next) = next {
            self.nodes.get(next).previous = Some(left);
        }
        self.nodes.remove(right);
    }

    fn report(&self, requested: usize) -> OutOfMemoryReport {
        let mut sizes = BTreeMap::<usize, usize>::new();
        for (_, node) in self.nodes.iter().filter(|(_, node)| node.state == State::Live) {
            *sizes.entry(node.bytes).or_default() += 1;
        }
        let mut largest: Vec<(usize, usize)> = sizes.into_iter().collect();
        largest.sort_by_key(|(bytes, count)| std::cmp::Reverse((bytes * count, *bytes)));
        largest.truncate(LISTED_SIZES);
        OutOfMemoryReport { requested, stats: self.stats(), capacity: self.capacity, largest }
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        let graphs: Vec<u32> = self.pools.keys().map(|pool| pool.graph).collect();
        for graph in graphs.into_iter().filter(|graph| *graph != 0) {
            self.end_graph(graph);
        }
        self.empty_cache();
    }
}

fn rounded(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(GRAIN)
}

fn segment_of(bytes: usize) -> usize {
    match bytes {
        _ if bytes <= SMALL => SMALL_SEGMENT,
        _ if bytes < OWN_SEGMENT => LARGE_SEGMENT,
        _ => bytes.next_multiple_of(SMALL_SEGMENT),
    }
}

/// The segments of a meta device: address ranges without memory, up to a capacity.
pub(crate) struct MetaSegments {
    left: usize,
    next: u64,
}

impl MetaSegments {
    pub(crate) fn new(capacity: usize) -> MetaSegments {
        MetaSegments { left: capacity, next: SMALL_SEGMENT as u64 }
    }
}

impl Segments for MetaSegments {
    fn allocate(&mut self, bytes: usize) -> Result<Option<u64>> {
        let Some(left) = self.left.checked_sub(bytes) else {
            return Ok(None);
        };
        self.left = left;
        let address = self.next;
        self.next += bytes.next_multiple_of(SMALL_SEGMENT) as u64;
        Ok(Some(address))
    }

    fn free(&mut self, _address: u64, bytes: usize) {
        self.left += bytes;
    }

    fn synchronize(&mut self) -> bool {
        true
    }
}

#[cfg(test)]
#[path = "allocator/tests.rs"]
mod tests;
