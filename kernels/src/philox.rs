//! Philox4x32-10, a counter-based random number generator (Salmon, Moraes, Dror and Shaw, "Parallel
//! random numbers: as easy as 1, 2, 3", SC 2011).
//!
//! Element `i` of a tensor has word `i % 4` of block `i / 4`. All operations are on integers, so
//! the CPU and every GPU return the same bits.

use crate::assembler::{U32, U64};

/// Number of rounds.
pub const ROUNDS: usize = 10;

/// The multipliers of words 0 and 2.
pub const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];

/// Increments of the key's words per round: the golden ratio and sqrt(3) - 1, as fractions of 2^32.
pub const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// [`Key::fold`] combines the first word of a key with this constant.
pub const FOLD: u32 = 0x243f_6a88;

/// Four random words. For each key, this is a bijection of the counters.
#[track_caller]
pub fn philox<'k>(key: [U32<'k>; 2], counter: [U32<'k>; 4]) -> [U32<'k>; 4] {
    let ([mut left, mut right], [mut a, mut b, mut c, mut d]) = (key, counter);
    for round in 0..ROUNDS {
        if round > 0 {
            (left, right) = (left + KEY_STEPS[0], right + KEY_STEPS[1]);
        }
        let (of_a, of_c) = (a.mul_high(MULTIPLIERS[0]), c.mul_high(MULTIPLIERS[1]));
        (a, b, c, d) = (of_c ^ b ^ left, c * MULTIPLIERS[1], of_a ^ d ^ right, a * MULTIPLIERS[0]);
    }
    [a, b, c, d]
}

/// A 128-bit key in registers.
#[derive(Clone, Copy, Debug)]
pub struct Key<'k>(pub [U32<'k>; 4]);

impl<'k> Key<'k> {
    /// Derives the key number `value` from this one.
    #[track_caller]
    pub fn fold(self, value: U64<'k>) -> Key<'k> {
        let Key([a, b, c, d]) = self;
        Key(philox([a ^ FOLD, b], [value.low(), (value >> 32).low(), c, d]))
    }

    /// The four words of a block: those of elements `4 * block` to `4 * block + 3`.
    #[track_caller]
    pub fn block(self, block: U64<'k>) -> [U32<'k>; 4] {
        let Key([a, b, c, d]) = self;
        philox([a, b], [block.low(), (block >> 32).low(), c, d])
    }

    /// The word of one element.
    #[track_caller]
    pub fn word(self, element: U64<'k>) -> U32<'k> {
        let [first, second, third, fourth] = self.block(element >> 2);
        let at = element.low();
        let odd = (at & 1).differs(0);
        let late = (at & 2).differs(0);
        late.select(odd.select(fourth, third), odd.select(second, first))
    }
}
