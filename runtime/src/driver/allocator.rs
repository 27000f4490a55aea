//! The caching allocator of GPU memory: pure, so that it is tested without a GPU and counts for a
//! meta device.
//!
//! Asking the driver for memory takes a long time and giving it back waits for the GPU. So memory
//! is taken in large *segments*, cut into *blocks*, and kept when a block comes back.
//!
//! - A block belongs to a [`Pool`]: to the stream that it was taken on. Work of one stream runs in
//!   order, so a block that comes back can be given out again at once on the same stream, though
//!   the GPU may not have finished with it.
//! - Requests up to 1 MiB share segments of 2 MiB, larger ones segments of 20 MiB, and from 10 MiB
//!   on each has a segment of its own. The smallest free block that fits is taken (at the lowest
//!   address among equals) and its rest is cut off; free neighbours are joined.
//! - A block that other streams used too waits in its pool until the pool's stream has been told to
//!   wait for them ([`Allocator::flush`]).
//!
//! Equal sequences of calls give equal addresses. Taking a block that is cached touches no heap.

mod blocks;
mod report;

use std::collections::BTreeMap;

use super::CudaError;
use blocks::{FreeList, Node, Nodes, State};
use report::LISTED;
pub use report::{AllocatorStats, MemoryStats, OutOfMemoryReport};

/// Alignment and smallest step of block sizes, in bytes.
const GRAIN: usize = 512;
const MIB: usize = 1 << 20;
/// The largest request that is served from small segments.
const SMALL: usize = MIB;
const SMALL_SEGMENT: usize = 2 * MIB;
const LARGE_SEGMENT: usize = 20 * MIB;
/// From here on a request has a segment of its own, of whole [`SMALL_SEGMENT`]s.
const OWN_SEGMENT: usize = 10 * MIB;

/// Where segments come from: the driver, or nowhere for a device that only counts.
pub(crate) trait Segments: Send {
    /// Memory of `bytes` bytes, aligned to 512; `None` when there is no more.
    ///
    /// # Errors
    /// What else went wrong: a kernel that failed before is found here too.
    fn take(&mut self, bytes: usize) -> Result<Option<u64>, CudaError>;

    /// Takes back what [`Segments::take`] gave. The allocator calls [`Segments::settle`] before.
    fn give_back(&mut self, address: u64, bytes: usize);

    /// Waits until nothing uses any block any more; false where that is not possible now.
    fn settle(&mut self) -> bool;
}

/// Whose blocks may be reused by whom: the stream that orders them, and the graph that owns them
/// (0 for none).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pool {
    pub(crate) stream: u32,
    pub(crate) graph: u32,
}

/// Why there is no block.
#[derive(Debug)]
pub(crate) enum NoBlock {
    /// There is no memory, even after everything that is cached went back.
    OutOfMemory(Box<OutOfMemoryReport>),
    /// Where memory comes from failed.
    Failed(CudaError),
}

/// A block that was taken. Given back by value, so that it cannot be given back twice.
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

    /// How many bytes it has, with what rounding added.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The pool it was taken from.
    pub(crate) fn pool(&self) -> Pool {
        self.pool
    }
}

/// The allocator.
pub(crate) struct Allocator {
    segments: Box<dyn Segments>,
    /// Bytes that there are at all.
    capacity: usize,
    nodes: Nodes,
    pools: BTreeMap<Pool, Cache>,
    usage: AllocatorStats,
}

/// The blocks of a pool that nobody uses.
#[derive(Default)]
struct Cache {
    small: FreeList,
    large: FreeList,
    /// Given back, but still used by other streams.
    returning: Vec<u32>,
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
    /// An allocator of segments, of which there are `capacity` bytes at all.
    pub(crate) fn new(segments: Box<dyn Segments>, capacity: usize) -> Allocator {
        Allocator {
            segments,
            capacity,
            nodes: Nodes::default(),
            pools: BTreeMap::new(),
            usage: AllocatorStats::default(),
        }
    }

    /// A block of at least `bytes` bytes, aligned to 512.
    ///
    /// # Errors
    /// [`NoBlock`].
    pub(crate) fn take(&mut self, pool: Pool, bytes: usize) -> Result<Block, NoBlock> {
        let bytes = rounded(bytes);
        let small = bytes <= SMALL;
        let cached = self
            .pools
            .entry(pool)
            .or_default()
            .list(small)
            .best_fit(bytes);
        let id = match cached {
            Some(id) => id,
            None => self.grow(pool, bytes)?,
        };

        self.unlist(id);
        self.cut(id, bytes);

        let node = self.nodes.get(id);
        node.state = State::Live;
        self.usage.live += node.bytes;
        self.usage.peak = self.usage.peak.max(self.usage.live);
        Ok(Block {
            address: node.address,
            bytes: node.bytes,
            node: id,
            pool,
        })
    }

    /// Takes a block back. `used_elsewhere` says whether other streams than the pool's used it:
    /// then it can be taken again after the pool's next [`Allocator::flush`].
    pub(crate) fn give_back(&mut self, block: Block, used_elsewhere: bool) {
        let id = block.node;
        let node = self.nodes.get(id);
        self.usage.live -= node.bytes;

        if used_elsewhere {
            node.state = State::Returning;
            let pool = node.pool;
            self.pools.entry(pool).or_default().returning.push(id);
        } else {
            self.free(id);
        }
    }

    /// Says that the pool's stream waits for all work that any other stream was given so far.
    pub(crate) fn flush(&mut self, pool: Pool) {
        while let Some(id) = self
            .pools
            .get_mut(&pool)
            .and_then(|pool| pool.returning.pop())
        {
            self.free(id);
        }
    }

    /// Gives every segment that holds no block in use back to the driver, but for those of graphs,
    /// which run in them again.
    pub(crate) fn release_cached(&mut self) {
        if !self.segments.settle() {
            return;
        }
        let pools: Vec<Pool> = self
            .pools
            .keys()
            .copied()
            .filter(|pool| pool.graph == 0)
            .collect();
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
            self.segments.give_back(node.address, node.bytes);
            self.usage.reserved -= node.bytes;
            self.usage.segments_freed += 1;
        }
    }

    /// Ends the privacy of graph `graph`'s pools: what they cache, and what comes back to them,
    /// belongs to the streams alone.
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
            // A side stream has yet to wait for the graph's last run.
            if node.state == State::Free && node.pool.stream != 0 {
                node.state = State::Returning;
            }
            let node = *node;
            let pool = self.pools.entry(node.pool).or_default();
            match node.state {
                State::Free => pool.list(node.small).insert(node.key(id)),
                State::Returning => pool.returning.push(id),
                State::Live => {}
            }
        }
    }

    pub(crate) fn usage(&self) -> AllocatorStats {
        let mut usage = self.usage;
        let nodes = self.nodes.iter().map(|(_, node)| node);
        for cached in nodes.filter(|node| node.state != State::Live) {
            usage.largest_cached = usage.largest_cached.max(cached.bytes);
            if cached.pool.graph != 0 {
                usage.of_graphs += cached.bytes;
            }
        }
        usage
    }

    pub(crate) fn reset_peak(&mut self) {
        self.usage.peak = self.usage.live;
    }

    /// A new segment that holds `bytes`, free; cached segments go back to the driver if it has
    /// nothing else.
    fn grow(&mut self, pool: Pool, bytes: usize) -> Result<u32, NoBlock> {
        let segment = segment_of(bytes);
        let mut taken = self.take_segment(segment)?;
        if taken.is_none() {
            self.release_cached();
            taken = self.take_segment(segment)?;
        }
        if taken.is_none() {
            // The last resort asks for no byte more than needed.
            taken = self.take_segment(bytes)?;
        }
        let Some((address, segment)) = taken else {
            return Err(NoBlock::OutOfMemory(Box::new(self.exhausted(bytes))));
        };

        self.usage.reserved += segment;
        self.usage.segments_allocated += 1;
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

    /// The address and size of new memory, if there is any.
    fn take_segment(&mut self, bytes: usize) -> Result<Option<(u64, usize)>, NoBlock> {
        let taken = self.segments.take(bytes).map_err(NoBlock::Failed)?;
        Ok(taken.map(|address| (address, bytes)))
    }

    /// Cuts what `bytes` leave of block `id` off, where it is worth a block of its own.
    fn cut(&mut self, id: u32, bytes: usize) {
        let node = *self.nodes.get(id);
        let rest = node.bytes - bytes;
        // A smaller rest of a large block would serve no large request.
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

    /// Makes block `id` free and joins it with its free neighbours.
    fn free(&mut self, id: u32) {
        self.nodes.get(id).state = State::Free;
        let Node { previous, next, .. } = *self.nodes.get(id);
        if let Some(next) = next.filter(|next| self.nodes.get(*next).state == State::Free) {
            self.unlist(next);
            self.join(id, next);
        }

        let mut id = id;
        if let Some(left) = previous.filter(|left| self.nodes.get(*left).state == State::Free) {
            self.unlist(left);
            self.join(left, id);
            id = left;
        }
        self.enlist(id);
    }

    fn enlist(&mut self, id: u32) {
        let node = *self.nodes.get(id);
        self.pools
            .entry(node.pool)
            .or_default()
            .list(node.small)
            .insert(node.key(id));
    }

    fn unlist(&mut self, id: u32) {
        let node = *self.nodes.get(id);
        self.pools
            .entry(node.pool)
            .or_default()
            .list(node.small)
            .remove(node.key(id));
    }

    /// Makes `right` part of its left neighbour.
    fn join(&mut self, left: u32, right: u32) {
        let Node { bytes, next, .. } = *self.nodes.get(right);
        let node = self.nodes.get(left);
        node.bytes += bytes;
        node.next = next;
        if let Some(next) = next {
            self.nodes.get(next).previous = Some(left);
        }
        self.nodes.remove(right);
    }

    fn exhausted(&self, asked: usize) -> OutOfMemoryReport {
        let mut sizes = BTreeMap::<usize, usize>::new();
        for (_, node) in self
            .nodes
            .iter()
            .filter(|(_, node)| node.state == State::Live)
        {
            *sizes.entry(node.bytes).or_default() += 1;
        }
        let mut largest: Vec<(usize, usize)> = sizes.into_iter().collect();
        largest.sort_by_key(|(bytes, count)| std::cmp::Reverse((bytes * count, *bytes)));
        largest.truncate(LISTED);
        OutOfMemoryReport {
            asked,
            held: self.usage(),
            capacity: self.capacity,
            largest,
        }
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        let graphs: Vec<u32> = self.pools.keys().map(|pool| pool.graph).collect();
        for graph in graphs.into_iter().filter(|graph| *graph != 0) {
            self.end_graph(graph);
        }
        self.release_cached();
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

/// Segments without memory behind them, up to a capacity: what a device that only counts has.
pub(crate) struct Imagined {
    left: usize,
    next: u64,
}

impl Imagined {
    pub(crate) fn new(capacity: usize) -> Imagined {
        Imagined {
            left: capacity,
            next: SMALL_SEGMENT as u64,
        }
    }
}

impl Segments for Imagined {
    fn take(&mut self, bytes: usize) -> Result<Option<u64>, CudaError> {
        let Some(left) = self.left.checked_sub(bytes) else {
            return Ok(None);
        };
        self.left = left;
        let address = self.next;
        self.next += bytes.next_multiple_of(SMALL_SEGMENT) as u64;
        Ok(Some(address))
    }

    fn give_back(&mut self, _address: u64, bytes: usize) {
        self.left += bytes;
    }

    fn settle(&mut self) -> bool {
        true
    }
}

#[cfg(test)]
#[path = "allocator/tests.rs"]
mod tests;
