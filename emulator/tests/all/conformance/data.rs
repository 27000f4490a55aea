//! Reproducible inputs, and tolerances of results.

use std::fmt::Debug;

/// Pseudorandom numbers (SplitMix64: Steele, Lea and Flood 2014).
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Noise {
        Noise(seed)
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn u32(&mut self) -> u32 {
        (self.u64() >> 32) as u32
    }

    /// In `low..=high`.
    pub(crate) fn integer(&mut self, low: i64, high: i64) -> i64 {
        low + (self.u64() % (high - low + 1) as u64) as i64
    }

    /// In `low..high`.
    pub(crate) fn f64(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// In `low..high`.
    pub(crate) fn f32(&mut self, low: f32, high: f32) -> f32 {
        self.f64(low.into(), high.into()) as f32
    }

    /// Integers in `low..=high`; their sums are exact in any order.
    pub(crate) fn whole_f32(&mut self, count: usize, low: i64, high: i64) -> Vec<f32> {
        self.vector(count, |noise| noise.integer(low, high) as f32)
    }

    pub(crate) fn vector<T>(
        &mut self,
        count: usize,
        mut draw: impl FnMut(&mut Noise) -> T,
    ) -> Vec<T> {
        (0..count).map(|_| draw(self)).collect()
    }
}

/// The ulp of an f32 of `value`'s magnitude.
pub(crate) fn ulp_f32(value: f64) -> f64 {
    let exponent = exponent(value).clamp(-126, 127);
    2f64.powi(exponent - 23)
}

/// The ulp of an f64 of `value`'s magnitude.
pub(crate) fn ulp_f64(value: f64) -> f64 {
    2f64.powi((exponent(value) - 52).max(-1022))
}

/// The exponent e with `2^e <= |value| < 2^(e + 1)`.
pub(crate) fn exponent(value: f64) -> i32 {
    match value.abs() {
        0.0 => i32::MIN / 2,
        magnitude if magnitude.is_subnormal() => exponent(magnitude * 2f64.powi(60)) - 60,
        magnitude => ((magnitude.to_bits() >> 52) as i32) - 1023,
    }
}

/// Fails unless `got` is within `tolerance` of `want`, or both are the same infinity or NaN.
#[track_caller]
pub(crate) fn assert_near(got: f64, want: f64, tolerance: f64, what: impl Debug) {
    let same = got == want || got.is_nan() && want.is_nan();
    let near = (got - want).abs() <= tolerance;
    assert!(same || near, "{what:?}: {got:e} instead of {want:e} (+- {tolerance:e})");
}

/// Fails unless both have the same bits; all NaNs are equal.
#[track_caller]
pub(crate) fn assert_same(got: f64, want: f64, what: impl Debug) {
    let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
    assert!(same, "{what:?}: {got:e} instead of {want:e}");
}
