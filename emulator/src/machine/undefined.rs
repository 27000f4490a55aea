//! Undefined bits of registers and predicates, and where their values came from.
//!
//! A value that was never written is carried like any other and reported when it is used (as in
//! MemorySanitizer, Stepanov & Serebryany 2015). Registers track single bits, memory tracks bytes. The
//! common case is one bit per register and lane: the lane is fully defined. What is recorded here
//! applies only to lanes where that bit is clear.

use super::windows::MemoryId;
use crate::numerics::fragment::LANES;

/// The source of an undefined value.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A register or predicate that was never written.
    #[default]
    Register,
    /// Memory that was never written, or that holds an undefined value.
    Memory(Load),
}

/// The read of an undefined byte.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) memory: MemoryId,
    /// The first undefined byte, in the memory's block.
    pub(crate) offset: u64,
    /// Whether a kernel had stored an undefined value there.
    pub(crate) stored: bool,
    pub(crate) pc: u32,
    pub(crate) warp: u16,
    pub(crate) lane: u16,
}

/// The undefined bits of one register in all lanes, and the origin of each lane's.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Undefined {
    pub(crate) bits: [u64; LANES],
    pub(crate) origins: [Origin; LANES],
}

impl Undefined {
    /// Marks bits of a lane as undefined. A lane keeps its first origin.
    pub(crate) fn add(&mut self, lane: usize, bits: u64, origin: Origin) {
        if bits == 0 {
            return;
        }
        if self.bits[lane] == 0 {
            self.origins[lane] = origin;
        }
        self.bits[lane] |= bits;
    }

    /// The lanes with undefined bits.
    pub(crate) fn lanes(&self) -> u32 {
        lanes_where(|lane| self.bits[lane] != 0)
    }

    /// The same origins with other bits.
    pub(crate) fn with_bits(&self, bits: impl Fn(u64) -> u64) -> Undefined {
        Undefined { bits: self.bits.map(bits), origins: self.origins }
    }
}

/// The undefined bytes that each lane reads or writes, one bit each, and their origin.
#[derive(Clone, Default)]
pub(crate) struct UndefinedBytes {
    pub(crate) bytes: [u32; LANES],
    pub(crate) origins: [Origin; LANES],
}

impl UndefinedBytes {
    /// The lanes with undefined bytes.
    pub(crate) fn lanes(&self) -> u32 {
        lanes_where(|lane| self.bytes[lane] != 0)
    }

    /// The undefined bits of an element of `bytes` bytes at byte `skip`, sign-extended if `signed`.
    pub(crate) fn element(&self, skip: usize, bytes: usize, signed: bool) -> Undefined {
        let mut undefined = Undefined::default();
        for lane in (0..LANES).filter(|lane| self.bytes[*lane] != 0) {
            let part = (0..bytes).filter(|byte| self.bytes[lane] >> (skip + byte) & 1 != 0);
            let bits = part.fold(0, |bits, byte| bits | 0xff << (8 * byte));
            let unused = 64 - 8 * bytes as u32;
            let extended = match signed {
                true => ((bits << unused) as i64 >> unused) as u64,
                false => bits,
            };
            undefined.add(lane, extended, self.origins[lane]);
        }
        undefined
    }

    /// Adds the undefined bytes of other lanes.
    pub(crate) fn merge(&mut self, other: &UndefinedBytes) {
        for lane in (0..LANES).filter(|lane| other.bytes[*lane] != 0) {
            (self.bytes[lane], self.origins[lane]) = (other.bytes[lane], other.origins[lane]);
        }
    }

    /// Adds the undefined bits of an element of `bytes` bytes at byte `skip`.
    pub(crate) fn add(&mut self, undefined: &Undefined, skip: usize, bytes: usize) {
        for lane in (0..LANES).filter(|lane| undefined.bits[*lane] != 0) {
            let part = (0..bytes).filter(|byte| undefined.bits[lane] >> (8 * byte) & 0xff != 0);
            let mask = part.fold(0, |mask, byte| mask | 1 << (skip + byte));
            if mask != 0 && self.bytes[lane] == 0 {
                self.origins[lane] = undefined.origins[lane];
            }
            self.bytes[lane] |= mask;
        }
    }
}

/// The lowest `bits` bits.
pub(crate) fn low_bits(bits: u32) -> u64 {
    u64::MAX.checked_shr(64 - bits).unwrap_or(0)
}

fn lanes_where(is: impl Fn(usize) -> bool) -> u32 {
    let lanes = (0..LANES).filter(|lane| is(*lane));
    lanes.fold(0, |all, lane| all | 1 << lane)
}
