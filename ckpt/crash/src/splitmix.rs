//! SplitMix64 (Steele, Lea and Flood 2014).

/// A reproducible random number generator.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator. Equal seeds give equal sequences.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)] // never ends, so `Option` would be in the way
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`. The bias of the modulo is negligible for small bounds.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Permutes the values in place.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_equal_the_reference_implementation() {
        // The first outputs of the reference implementation for seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        let first = [(); 3].map(|()| random.next());
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn shuffle_is_a_permutation() {
        let mut values: Vec<u32> = (0..50).collect();
        SplitMix64::new(3).shuffle(&mut values);
        assert_ne!(values, (0..50).collect::<Vec<_>>());
        values.sort_unstable();
        assert_eq!(values, (0..50).collect::<Vec<_>>());
    }
}
