//! Tests that would take long draw a sample, and test everything if `MESHGRAD_EXHAUSTIVE=1`.

use std::env;
use std::time::SystemTime;

/// Whether to test everything.
pub(crate) fn is_exhaustive() -> bool {
    env::var_os("MESHGRAD_EXHAUSTIVE").is_some()
}

/// The seed of a sample: `MESHGRAD_TEST_SEED`, or the number of the day. It is printed, so that a
/// failure can be repeated.
pub(crate) fn seed() -> u64 {
    const DAY: u64 = 24 * 60 * 60;
    let seed = match env::var("MESHGRAD_TEST_SEED") {
        Ok(seed) => seed.parse().expect("MESHGRAD_TEST_SEED is a number"),
        Err(_) => SystemTime::UNIX_EPOCH.elapsed().expect("a date after 1970").as_secs() / DAY,
    };
    println!("a sample: MESHGRAD_TEST_SEED={seed} repeats it, MESHGRAD_EXHAUSTIVE=1 tests all");
    seed
}

/// The seeds of random schedules: two that follow from [`seed`], or `count` fixed ones.
pub(crate) fn schedules(count: u64) -> Vec<u64> {
    match is_exhaustive() {
        true => (0..count).collect(),
        false => {
            let first = 2 * seed();
            vec![first, first + 1]
        }
    }
}
