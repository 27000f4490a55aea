//! Marks: accesses packed into 64 bits.

/// Bytes per granule.
pub(super) const GRANULE: usize = 4;

/// Granules per line.
pub(super) const LINE: usize = 32;

/// Stamps are 1 to this; 0 means no mark.
pub(crate) const LAST_STAMP: u32 = (1 << 11) - 1;

/// Larger clocks saturate; such late accesses are never reported.
pub(crate) const LAST_CLOCK: u32 = (1 << 16) - 1;

/// An access as shadow memory stores it: stamp 11 bits, CTA 20, agent 7, lane 5, clock 16, bytes 4,
/// atomic 1.
///
/// The mark of a granule has one bit per accessed byte. The mark of a line has the number of
/// granules per lane instead (1, 2 or 4), and the lane of its first granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(pub(super) u64);

/// Position of the lane; the bits above it identify the CTA and the warp.
const LANE: u32 = 21;

impl Mark {
    /// No access: no launch has this stamp.
    pub(super) const NONE: Mark = Mark(0);

    /// A mark without bytes.
    pub(crate) fn new(stamp: u32, cta: u32, agent: u8, lane: u8, clock: u32, atomic: bool) -> Mark {
        Mark(
            (u64::from(stamp) << 53)
                | (u64::from(cta & 0xf_ffff) << 33)
                | (u64::from(agent) << 26)
                | (u64::from(lane) << LANE)
                | (u64::from(clock.min(LAST_CLOCK)) << 5)
                | u64::from(atomic),
        )
    }

    /// The same access by another lane.
    #[inline(always)]
    pub(crate) fn by_lane(self, lane: u32) -> Mark {
        Mark(self.0 & !(0x1f << LANE) | u64::from(lane) << LANE)
    }

    /// The same access with these bytes of a granule, one bit each.
    #[inline(always)]
    pub(super) fn of_bytes(self, bytes: u32) -> Mark {
        Mark(self.0 & !(0xf << 1) | u64::from(bytes) << 1)
    }

    /// The same access to a whole line. Lane `first` and each lane after it access `granules`
    /// granules.
    #[inline(always)]
    pub(super) fn of_line(self, first: u32, granules: usize) -> Mark {
        self.by_lane(first).of_bytes(granules as u32)
    }

    /// The mark of one granule, derived from the mark of its line.
    #[inline(always)]
    pub(super) fn in_line(self, index: usize) -> Mark {
        let granules = self.bytes() as usize;
        let lane = usize::from(self.lane()) + index / granules.max(1);
        self.by_lane(lane as u32 & 31).of_bytes(0xf)
    }

    #[inline(always)]
    pub(super) fn stamp(self) -> u64 {
        self.0 >> 53
    }

    /// The linear index of the CTA, modulo 2^20.
    pub(crate) fn cta(self) -> u32 {
        (self.0 >> 33) as u32 & 0xf_ffff
    }

    /// The warp, plus 32 for its asynchronous copies, or 64 for its asynchronous products.
    pub(crate) fn agent(self) -> u8 {
        (self.0 >> 26) as u8 & 0x7f
    }

    pub(crate) fn lane(self) -> u8 {
        (self.0 >> LANE) as u8 & 0x1f
    }

    pub(crate) fn clock(self) -> u32 {
        (self.0 >> 5) as u32 & 0xffff
    }

    #[inline(always)]
    pub(super) fn bytes(self) -> u64 {
        self.0 >> 1 & 0xf
    }

    #[inline(always)]
    pub(super) fn atomic(self) -> bool {
        self.0 & 1 == 1
    }

    /// Whether both are accesses of one warp, of its copies or of its products.
    #[inline(always)]
    pub(super) fn same_agent(self, other: Mark) -> bool {
        (self.0 ^ other.0) >> 26 == 0
    }

    /// Whether both are accesses of one thread.
    #[inline(always)]
    pub(super) fn same_thread(self, other: Mark) -> bool {
        (self.0 ^ other.0) >> LANE == 0
    }

    /// Whether both are accesses of a line that assign every granule to the same thread.
    #[inline(always)]
    pub(super) fn same_threads(self, other: Mark) -> bool {
        self.same_thread(other) && self.bytes() == other.bytes()
    }
}
