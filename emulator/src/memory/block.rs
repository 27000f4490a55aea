//! The bytes of one allocation, shared by every host thread that runs part of a grid.
//!
//! GPU threads may write and read the same bytes at the same time. Here that must be defined
//! behavior, so every access is a relaxed atomic of its own width. Kernels with a race read some
//! value, and the race is reported (see [`super::races`]).

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Alignment of blocks; `cuMemAlloc` guarantees at least 256 bytes.
pub(crate) const ALIGNMENT: usize = 512;

/// Required alignment of registered host memory: the widest access of a lane.
pub(crate) const HOST_ALIGNMENT: usize = 16;

/// Host memory of a fixed size: either owned, zeroed and aligned to [`ALIGNMENT`], or borrowed from
/// the host program and aligned to [`HOST_ALIGNMENT`].
pub(crate) struct Block {
    start: NonNull<u8>,
    layout: Layout,
    is_own: bool,
}

// SAFETY: a block is plain memory; all access to it is atomic.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

macro_rules! accessors {
    ($($int:ty, $atomic:ty, $load:ident, $store:ident, $at:ident;)+) => {
        $(
            /// The naturally aligned value at byte `offset`.
            #[inline(always)]
            pub(crate) fn $load(&self, offset: usize) -> $int {
                self.$at(offset).load(Relaxed)
            }

            /// Stores at byte `offset`, which must be naturally aligned.
            #[inline(always)]
            pub(crate) fn $store(&self, offset: usize, value: $int) {
                self.$at(offset).store(value, Relaxed);
            }

            /// The atomic at byte `offset`.
            #[inline(always)]
            pub(crate) fn $at(&self, offset: usize) -> &$atomic {
                const BYTES: usize = size_of::<$int>();
                let inside = offset.checked_add(BYTES).is_some_and(|end| end <= self.layout.size());
                assert!(
                    inside && offset.is_multiple_of(BYTES),
                    "offset {offset} is out of bounds or misaligned"
                );
                // SAFETY: in bounds and aligned (checked above). A block's memory is accessed only
                // atomically and lives as long as `self`.
                unsafe { <$atomic>::from_ptr(self.start.as_ptr().add(offset).cast()) }
            }
        )+
    };
}

impl Block {
    /// A block of at least `bytes` bytes; `None` if the host is out of memory.
    pub(crate) fn new(bytes: usize) -> Option<Block> {
        let layout = Layout::from_size_align(bytes.next_multiple_of(8).max(8), ALIGNMENT).ok()?;
        // SAFETY: the size is at least 8.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Block { start, layout, is_own: true })
    }

    /// A block of the host program's memory; `None` if it is too long or misaligned.
    ///
    /// # Safety
    ///
    /// The memory must stay valid until the block is dropped.
    pub(crate) unsafe fn of_host(start: NonNull<u8>, bytes: usize) -> Option<Block> {
        let layout = Layout::from_size_align(bytes, HOST_ALIGNMENT).ok()?;
        start.cast::<u128>().is_aligned().then_some(Block { start, layout, is_own: false })
    }

    /// The size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// The block's address in host memory.
    pub(crate) fn host_address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    accessors! {
        u8, AtomicU8, load_u8, store_u8, at_u8;
        u16, AtomicU16, load_u16, store_u16, at_u16;
        u32, AtomicU32, load_u32, store_u32, at_u32;
        u64, AtomicU64, load_u64, store_u64, at_u64;
    }

    /// Loads pairs of 32-bit words from `offset`, a multiple of eight.
    #[inline(always)]
    pub(crate) fn load_pairs(&self, offset: usize, into: &mut [u64]) {
        let cells = self.pairs(offset, into.len());
        for (pair, cell) in into.iter_mut().zip(cells) {
            *pair = cell.load(Relaxed);
        }
    }

    /// Stores pairs of 32-bit words at `offset`, a multiple of eight.
    #[inline(always)]
    pub(crate) fn store_pairs(&self, offset: usize, pairs: &[u64]) {
        for (pair, cell) in pairs.iter().zip(self.pairs(offset, pairs.len())) {
            cell.store(*pair, Relaxed);
        }
    }

    /// The cells of `count` pairs of words from `offset`.
    #[inline(always)]
    fn pairs(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let end = offset.checked_add(count * 8);
        let inside = end.is_some_and(|end| end <= self.layout.size());
        assert!(
            inside && offset.is_multiple_of(8),
            "offset {offset} is out of bounds or misaligned"
        );
        // SAFETY: in bounds and aligned (checked above). A block's memory is accessed only
        // atomically and lives as long as `self`.
        unsafe {
            let first = self.start.as_ptr().add(offset).cast();
            std::slice::from_raw_parts(first, count)
        }
    }

    /// Loads the 32-bit word at `offsets[lane] + skip` for each lane of `mask`.
    #[inline(always)]
    pub(crate) fn gather(&self, offsets: &[u64; 32], skip: usize, mask: u32, to: &mut [u32; 32]) {
        for lane in 0..32 {
            if mask >> lane & 1 != 0 {
                to[lane] = self.load_u32(offsets[lane] as usize + skip);
            }
        }
    }

    /// Zeroes every byte.
    pub(crate) fn clear(&self) {
        for at in (0..self.layout.size()).step_by(8) {
            self.store_u64(at, 0);
        }
    }

    /// Copies bytes from `offset` into `into`.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let (head, rest) = into.split_at_mut(to_next_word(offset).min(into.len()));
        for (index, byte) in head.iter_mut().enumerate() {
            *byte = self.load_u8(offset + index);
        }
        let mut at = offset + head.len();
        let mut words = rest.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.load_u64(at).to_ne_bytes());
            at += 8;
        }
        for (index, byte) in words.into_remainder().iter_mut().enumerate() {
            *byte = self.load_u8(at + index);
        }
    }

    /// Copies `bytes` to `offset`.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(to_next_word(offset).min(bytes.len()));
        for (index, byte) in head.iter().enumerate() {
            self.store_u8(offset + index, *byte);
        }
        let mut at = offset + head.len();
        let words = rest.chunks_exact(8);
        let tail = words.remainder();
        for word in words {
            let mut value = [0; 8];
            value.copy_from_slice(word);
            self.store_u64(at, u64::from_ne_bytes(value));
            at += 8;
        }
        for (index, byte) in tail.iter().enumerate() {
            self.store_u8(at + index, *byte);
        }
    }
}

fn to_next_word(offset: usize) -> usize {
    offset.next_multiple_of(8) - offset
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: allocated in `new` with this layout, and freed only here.
            unsafe { dealloc(self.start.as_ptr(), self.layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_read_back_at_any_offset() {
        let block = Block::new(100).unwrap();
        let bytes: Vec<u8> = (0..60).collect();
        for offset in 0..24 {
            for length in 0..bytes.len() {
                block.write(offset, &bytes[..length]);
                let mut back = vec![0xff; length];
                block.read(offset, &mut back);
                assert_eq!(back, bytes[..length]);
            }
        }
    }

    #[test]
    fn all_access_widths_read_the_same_bytes() {
        let block = Block::new(16).unwrap();
        block.store_u64(8, 0x8877_6655_4433_2211);
        assert_eq!(block.load_u32(12), 0x8877_6655);
        assert_eq!(block.load_u16(10), 0x4433);
        assert_eq!(block.load_u8(15), 0x88);
    }

    #[test]
    #[should_panic(expected = "out of bounds or misaligned")]
    fn out_of_bounds_access_panics() {
        Block::new(16).unwrap().load_u32(16);
    }
}
