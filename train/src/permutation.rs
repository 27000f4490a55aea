//! Orders that are pure functions of numbers.

/// A permutation of `0..count`: a balanced Feistel network (Luby & Rackoff 1988) over the next
/// power of four, applied until the result is below `count` (cycle walking).
pub(crate) fn permute(index: u64, count: u64, key: u64) -> u64 {
    const ROUNDS: u64 = 4;

    let bits = u64::BITS - (count - 1).leading_zeros();
    let half = bits.div_ceil(2).max(1);
    let mask = (1 << half) - 1;

    let mut value = index;
    loop {
        let (mut left, mut right) = (value >> half, value & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mix(key ^ round, right) & mask));
        }
        value = left << half | right;
        if value < count {
            return value;
        }
    }
}

/// Mixes two words into one: the finalizer of SplitMix64 (Steele, Lea & Flood 2014) over both.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let finish = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let step = |z: u64| finish(z.wrapping_add(0x9e37_79b9_7f4a_7c15));
    step(step(a) ^ b)
}
