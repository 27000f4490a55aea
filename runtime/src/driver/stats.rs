//! Memory statistics, and the report of an allocation that failed.

use std::fmt;

/// Bytes of a mebibyte.
pub(super) const MIB: usize = 1 << 20;

/// Memory of a device in bytes, with sizes rounded up as the allocator does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in live tensors.
    pub live: usize,
    /// The largest `live` since the last [`Device::reset_peak`](crate::Device::reset_peak).
    pub peak: usize,
    /// The largest allocation since then.
    pub largest: usize,
    /// Allocated from the operating system or the GPU's driver: live and cached.
    pub reserved: usize,
}

/// Statistics of a GPU's caching allocator; sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorStats {
    /// Bytes in use, rounding included.
    pub live: usize,
    /// The largest `live` since the peak was last reset.
    pub peak: usize,
    /// The largest allocation since then.
    pub largest: usize,
    /// Allocated from the driver: live and cached.
    pub reserved: usize,
    /// Cached memory that graphs keep, because every launch uses it again.
    pub graph_pools: usize,
    /// The largest cached block.
    pub largest_cached: usize,
    /// How many segments were allocated from the driver.
    pub segments_allocated: u64,
    /// How many segments were returned to the driver.
    pub segments_freed: u64,
}

impl AllocatorStats {
    /// Bytes in cached blocks.
    pub fn cached(&self) -> usize {
        self.reserved - self.live
    }

    /// The statistics that every device has.
    pub(crate) fn memory_stats(&self) -> MemoryStats {
        MemoryStats {
            live: self.live,
            peak: self.peak,
            largest: self.largest,
            reserved: self.reserved,
        }
    }

    /// The fraction of cached memory outside of the largest cached block: 0 for one block, near 1
    /// for many small ones.
    pub fn fragmentation(&self) -> f64 {
        match self.cached() {
            0 => 0.0,
            cached => 1.0 - self.largest_cached as f64 / cached as f64,
        }
    }
}

/// Report of an allocation that failed: the request, and what uses the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemoryReport {
    /// Requested bytes, rounding included.
    pub requested: usize,
    /// Statistics of the allocator.
    pub stats: AllocatorStats,
    /// Memory of the GPU in bytes.
    pub capacity: usize,
    /// Sizes and counts of the blocks in use, sorted by total bytes, largest first.
    pub largest: Vec<(usize, usize)>,
}

/// The number of sizes that an [`OutOfMemoryReport`] lists.
pub(super) const LISTED_SIZES: usize = 8;

impl fmt::Display for OutOfMemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AllocatorStats { live, reserved, graph_pools, .. } = self.stats;
        let cached = self.stats.cached() - graph_pools;
        write!(
            f,
            "requested {}; this device holds {} of the GPU's {}: {} in use, {} kept by graphs, \
             {} cached",
            Mib(self.requested),
            Mib(reserved),
            Mib(self.capacity),
            Mib(live),
            Mib(graph_pools),
            Mib(cached)
        )?;
        for (at, (bytes, count)) in self.largest.iter().enumerate() {
            let lead = if at == 0 { "; in use: " } else { ", " };
            write!(f, "{lead}{count} x {}", Mib(*bytes))?;
        }
        self.advice(f)
    }
}

impl OutOfMemoryReport {
    /// Writes what the caller can do to free memory.
    fn advice(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("; use a smaller batch")?;
        if self.stats.graph_pools > 0 {
            f.write_str(", drop graphs")?;
        }
        // The rest belongs to other processes, except for what the driver itself needs.
        let elsewhere = self.capacity.saturating_sub(self.stats.reserved + self.requested);
        match elsewhere > self.capacity / 16 {
            true => f.write_str(
                ", or stop other users of the GPU: other processes (`nvidia-smi` lists them) and \
                 other devices of this process",
            ),
            false => Ok(()),
        }
    }
}

struct Mib(usize);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < MIB => write!(f, "{:.1} KiB", bytes as f64 / 1024.0),
            bytes => write!(f, "{:.1} MiB", bytes as f64 / MIB as f64),
        }
    }
}
