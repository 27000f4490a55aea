//! Sets of bytes, one bit each, shared by every host thread that runs part of a grid.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A set of bytes of a block, such as the bytes that were ever written.
pub(crate) struct ByteSet(Box<[AtomicU32]>);

impl ByteSet {
    /// The empty set over a block of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> ByteSet {
        let words = bytes.div_ceil(32);
        ByteSet((0..words).map(|_| AtomicU32::new(0)).collect())
    }

    /// Removes all bytes.
    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// The number of bytes in the set.
    pub(crate) fn count(&self) -> u64 {
        let words = self.0.iter();
        words.map(|word| u64::from(word.load(Relaxed).count_ones())).sum()
    }

    /// Adds `count` bytes from `offset`.
    #[inline(always)]
    pub(crate) fn set(&self, offset: usize, count: usize) {
        for_words(offset, count, |index, bits| {
            let word = &self.0[index];
            if word.load(Relaxed) & bits != bits {
                word.fetch_or(bits, Relaxed);
            }
            true
        });
    }

    /// Removes `count` bytes from `offset`.
    pub(crate) fn unset(&self, offset: usize, count: usize) {
        for_words(offset, count, |index, bits| {
            self.0[index].fetch_and(!bits, Relaxed);
            true
        });
    }

    /// Whether the set contains all `count` bytes from `offset`.
    #[inline(always)]
    pub(crate) fn all(&self, offset: usize, count: usize) -> bool {
        for_words(offset, count, |index, bits| self.0[index].load(Relaxed) & bits == bits)
    }

    /// Whether the set contains none of `count` bytes from `offset`.
    pub(crate) fn none(&self, offset: usize, count: usize) -> bool {
        for_words(offset, count, |index, bits| self.0[index].load(Relaxed) & bits == 0)
    }

    /// Adds whole aligned lines of 128 bytes.
    #[inline(always)]
    pub(crate) fn set_lines(&self, offset: usize, lines: usize) {
        for word in self.lines(offset, lines) {
            if word.load(Relaxed) != u32::MAX {
                word.store(u32::MAX, Relaxed);
            }
        }
    }

    /// Whether the set contains whole aligned lines of 128 bytes.
    #[inline(always)]
    pub(crate) fn all_lines(&self, offset: usize, lines: usize) -> bool {
        let missing = |word: &AtomicU32| !word.load(Relaxed);
        self.lines(offset, lines).iter().map(missing).fold(0, |all, it| all | it) == 0
    }

    #[inline(always)]
    fn lines(&self, offset: usize, lines: usize) -> &[AtomicU32] {
        debug_assert!(offset.is_multiple_of(128));
        &self.0[offset / 32..offset / 32 + 4 * lines]
    }

    /// Copies the membership of `count` bytes from offset `from` of `other` to offset `to`.
    pub(crate) fn copy(&self, to: usize, other: &ByteSet, from: usize, count: usize) {
        for index in 0..count {
            match other.all(from + index, 1) {
                true => self.set(to + index, 1),
                false => self.unset(to + index, 1),
            }
        }
    }
}

/// Calls `f` with the index of each word and its bits in the range until `f` returns false. Returns
/// whether `f` always returned true.
#[inline(always)]
fn for_words(offset: usize, count: usize, mut f: impl FnMut(usize, u32) -> bool) -> bool {
    let (mut at, end) = (offset, offset + count);
    while at < end {
        let in_word = (32 - at % 32).min(end - at);
        let bits = (u32::MAX >> (32 - in_word)) << (at % 32);
        if !f(at / 32, bits) {
            return false;
        }
        at += in_word;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bytes_of_the_range_are_set() {
        for offset in 0..70 {
            for count in 0..70 {
                let bytes = ByteSet::new(150);
                bytes.set(offset, count);
                for at in 0..150 {
                    assert_eq!(bytes.all(at, 1), (offset..offset + count).contains(&at));
                }
                assert!(bytes.all(offset, count));
                bytes.unset(offset, count);
                assert_eq!(bytes.count(), 0);
            }
        }
    }
}
