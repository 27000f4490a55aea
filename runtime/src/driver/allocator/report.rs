//! What an allocator holds, and the message when that is all there is.

use std::fmt;

use super::MIB;

/// How much memory a device uses, in bytes of whole size classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// In tensors that exist now.
    pub live: usize,
    /// The largest `live` since the last [`Device::reset_peak`](crate::Device::reset_peak).
    pub peak: usize,
    /// Taken from the operating system or the GPU's driver: live, and kept for reuse.
    pub reserved: usize,
}

/// What an allocator holds, in bytes, and how often it asked for more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorStats {
    /// In blocks that are in use, with what rounding adds.
    pub live: usize,
    /// The largest `live` since the peak was last reset.
    pub peak: usize,
    /// Taken from the driver: live, and cached.
    pub reserved: usize,
    /// The part of what is cached that graphs keep, for they run in it again.
    pub of_graphs: usize,
    /// The largest block that is cached.
    pub largest_cached: usize,
    /// How often the driver was asked for memory.
    pub segments_allocated: u64,
    /// How often memory was given back to the driver.
    pub segments_freed: u64,
}

impl AllocatorStats {
    /// In blocks that are kept for reuse.
    pub fn cached(&self) -> usize {
        self.reserved - self.live
    }

    /// The part that every device has.
    pub(crate) fn memory(&self) -> MemoryStats {
        MemoryStats {
            live: self.live,
            peak: self.peak,
            reserved: self.reserved,
        }
    }

    /// How much of the cached memory no single request could have: 0 when it is one block, near 1
    /// when it is dust.
    pub fn fragmentation(&self) -> f64 {
        match self.cached() {
            0 => 0.0,
            cached => 1.0 - self.largest_cached as f64 / cached as f64,
        }
    }
}

/// There is no memory for a request: what was asked for, and what is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemoryReport {
    /// Bytes asked for, with what rounding adds.
    pub asked: usize,
    /// What the allocator holds.
    pub held: AllocatorStats,
    /// Bytes of memory that the GPU has.
    pub capacity: usize,
    /// Sizes of the blocks in use and how many there are of each, those that hold most first.
    pub largest: Vec<(usize, usize)>,
}

/// How many sizes an [`OutOfMemoryReport`] lists.
pub(super) const LISTED: usize = 8;

impl fmt::Display for OutOfMemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AllocatorStats {
            live,
            reserved,
            of_graphs,
            ..
        } = self.held;
        let cached = self.held.cached() - of_graphs;
        write!(
            f,
            "{} asked for; of {} this device has {}: {} in use, {} kept by graphs, {} cached",
            Mib(self.asked),
            Mib(self.capacity),
            Mib(reserved),
            Mib(live),
            Mib(of_graphs),
            Mib(cached)
        )?;
        for (at, (bytes, count)) in self.largest.iter().enumerate() {
            let lead = if at == 0 { "; in use: " } else { ", " };
            write!(f, "{lead}{count} x {}", Mib(*bytes))?;
        }
        self.ways_out(f)
    }
}

impl OutOfMemoryReport {
    /// What gives memory free, where there is any.
    fn ways_out(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("; take a smaller batch")?;
        if self.held.of_graphs > 0 {
            f.write_str(", drop graphs")?;
        }
        // All but what the driver itself needs, and what is left of segments.
        let elsewhere = self
            .capacity
            .saturating_sub(self.held.reserved + self.asked);
        match elsewhere > self.capacity / 16 {
            true => f.write_str(
                ", or end what holds the rest: other processes (`nvidia-smi` lists them) and other \
                 devices of this one",
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
