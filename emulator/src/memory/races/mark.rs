//! An access in 64 bits.

/// Stamps run from 1 to this; 0 is no mark at all.
pub(crate) const LAST_STAMP: u32 = (1 << 12) - 1;

/// Clocks beyond this are not told apart; an access that late is never accused.
pub(crate) const LAST_CLOCK: u32 = (1 << 16) - 1;

/// An access as memory remembers it: stamp 12 bits, CTA 20, agent 6, lane 5, clock 16, bytes 4,
/// atomic 1.
///
/// The mark of a granule has the bytes of it that were touched. That of a line has, in their place,
/// how many granules each lane touched side by side (1, 2 or 4), and the lane of its first granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(pub(super) u64);

/// Where the lane begins; what is above it tells the CTA and the warp.
const LANE: u32 = 21;

impl Mark {
    /// No access at all: no launch has its stamp.
    pub(super) const NONE: Mark = Mark(0);

    /// A mark that touches no byte yet.
    pub(crate) fn new(stamp: u32, cta: u32, agent: u8, lane: u8, clock: u32, atomic: bool) -> Mark {
        Mark(
            (u64::from(stamp) << 52)
                | (u64::from(cta & 0xf_ffff) << 32)
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

    /// The same access of some bytes of a granule, a bit each.
    #[inline(always)]
    pub(super) fn of_bytes(self, bytes: u32) -> Mark {
        Mark(self.0 & !(0xf << 1) | u64::from(bytes) << 1)
    }

    /// The same access of a whole line, whose lanes from `first` on touch `granules` each.
    #[inline(always)]
    pub(super) fn of_line(self, first: u32, granules: usize) -> Mark {
        self.by_lane(first).of_bytes(granules as u32)
    }

    /// What the mark of a line says of the granule with this index in the line.
    #[inline(always)]
    pub(super) fn in_line(self, index: usize) -> Mark {
        let granules = self.bytes() as usize;
        let lane = usize::from(self.lane()) + index / granules.max(1);
        self.by_lane(lane as u32 & 31).of_bytes(0xf)
    }

    #[inline(always)]
    pub(super) fn stamp(self) -> u64 {
        self.0 >> 52
    }

    /// The linear index of the CTA, modulo 2^20.
    pub(crate) fn cta(self) -> u32 {
        (self.0 >> 32) as u32 & 0xf_ffff
    }

    /// The warp, or 32 plus the warp for its asynchronous copies.
    pub(crate) fn agent(self) -> u8 {
        (self.0 >> 26) as u8 & 0x3f
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

    /// Whether both are accesses of one warp, or of the copies of one.
    #[inline(always)]
    pub(super) fn same_party(self, other: Mark) -> bool {
        (self.0 ^ other.0) >> 26 == 0
    }

    /// Whether both are accesses of one thread.
    #[inline(always)]
    pub(super) fn same_thread(self, other: Mark) -> bool {
        (self.0 ^ other.0) >> LANE == 0
    }

    /// Whether both are accesses of a line in which each granule is touched by the same thread.
    #[inline(always)]
    pub(super) fn same_threads(self, other: Mark) -> bool {
        self.same_thread(other) && self.bytes() == other.bytes()
    }
}
