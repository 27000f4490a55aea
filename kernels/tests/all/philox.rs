//! Philox on the host, with which the words of the kernels are compared.

use meshgrad_kernels::philox::{FOLD, KEY_STEPS, MULTIPLIERS, ROUNDS};

/// An arbitrary key.
pub(crate) const KEY: [u32; 4] = [0x89ab_cdef, 0x0123_4567, 5, 0x8000_0001];

fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let (mut key, mut words) = (key, counter);
    for _ in 0..ROUNDS {
        let product = |word: usize, by: usize| u64::from(words[word]) * u64::from(MULTIPLIERS[by]);
        let (left, right) = (product(0, 0), product(2, 1));
        words = [
            (right >> 32) as u32 ^ words[1] ^ key[0],
            right as u32,
            (left >> 32) as u32 ^ words[3] ^ key[1],
            left as u32,
        ];
        key = [0, 1].map(|i: usize| key[i].wrapping_add(KEY_STEPS[i]));
    }
    words
}

/// The random word of an element.
pub(crate) fn word([a, b, c, d]: [u32; 4], element: u64) -> u32 {
    let block = element / 4;
    let words = philox([a, b], [block as u32, (block >> 32) as u32, c, d]);
    words[(element % 4) as usize]
}

/// Derives a key from a key and a number.
pub(crate) fn fold([a, b, c, d]: [u32; 4], value: u64) -> [u32; 4] {
    philox([a ^ FOLD, b], [value as u32, (value >> 32) as u32, c, d])
}

/// A known answer published with Random123, and the frozen ones of the runtime.
#[test]
fn known_answers() {
    assert_eq!(
        philox([0xa409_3822, 0x299f_31d0], [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
    );
    let key = [0x89ab_cdef, 0x0123_4567, 0, 0];
    assert_eq!(word(key, 1_000_003), 0xcdd4_a776);
    assert_eq!(word(key, (1 << 34) + 5), 0x5fe7_20cb);
    let folded = [0x9959_cbec, 0x3837_fc71, 0xf4ea_269d, 0x6c57_a06a];
    assert_eq!(fold(key, 1), folded);
}
