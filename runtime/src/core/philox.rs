//! Philox4x32-10, a counter-based random number generator (Salmon, Moraes, Dror and Shaw, "Parallel
//! random numbers: as easy as 1, 2, 3", SC 2011). It uses integers only, so every machine computes
//! the same bits.

use meshgrad_kernels::philox::{KEY_STEPS, MULTIPLIERS, ROUNDS};

const LOW: u64 = 0xffff_ffff;

/// Four random words for each of `N` counters of four words. For a fixed key, counters map one to
/// one to results.
///
/// Each word is in the low half of a 64-bit lane, where vector multiplications expect it. One call
/// computes `N` counters in parallel.
#[inline(always)]
pub(crate) fn philox<const N: usize>(
    mut key: [u32; 2],
    mut counters: [[u64; N]; 4],
) -> [[u32; N]; 4] {
    for _ in 0..ROUNDS {
        let [a, b, c, d] = &mut counters;
        // Indices, because the compiler does not inline all iterators into a body of this size.
        for lane in 0..N {
            let left = (a[lane] & LOW) * u64::from(MULTIPLIERS[0]);
            let right = (c[lane] & LOW) * u64::from(MULTIPLIERS[1]);

            // The high halves are never read.
            a[lane] = (right >> 32) ^ b[lane] ^ u64::from(key[0]);
            b[lane] = right;
            c[lane] = (left >> 32) ^ d[lane] ^ u64::from(key[1]);
            d[lane] = left;
        }
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }

    let mut words = [[0; N]; 4];
    for word in 0..4 {
        for lane in 0..N {
            words[word][lane] = counters[word][lane] as u32;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123, file `kat_vectors`.
    #[test]
    fn known_answers() {
        let answers = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([0xffff_ffff; 4], [0xffff_ffff; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, expected) in answers {
            let words = philox(key, counter.map(|word: u32| [u64::from(word)]));
            assert_eq!(words.map(|[word]| word), expected);
        }
    }

    #[test]
    fn counters_are_independent() {
        let counter = |lane: u64| [lane, lane << 7, !lane & LOW, 5];
        let lanes: Vec<u64> = (0..16).collect();
        let together: [[u64; 16]; 4] =
            std::array::from_fn(|word| std::array::from_fn(|lane| counter(lanes[lane])[word]));

        let together = philox([1, 2], together);
        for (at, lane) in lanes.into_iter().enumerate() {
            let alone = philox([1, 2], counter(lane).map(|word| [word]));
            assert_eq!(alone.map(|[word]| word), together.map(|word| word[at]));
        }
    }
}
