//! The most floating-point operations a second that the threads of a CPU do together.

use std::hint::black_box;
use std::thread;

use meshgrad_harness::seconds;
use pulp::{Arch, Simd, WithSimd};

/// Chains of multiply-adds that do not wait for each other: as many as any core has in flight, and
/// no more than registers hold.
const CHAINS: usize = 12;

/// Multiply-adds of each chain in a turn: some milliseconds.
const LENGTH: usize = 1 << 23;

/// TFLOP/s of f32 multiply-adds on registers alone, on so many threads: the best of some turns.
pub(crate) fn multiply_adds(threads: usize) -> f64 {
    let turn = || {
        let (seconds, lanes) = seconds(|| {
            thread::scope(|scope| {
                let running: Vec<_> = (0..threads)
                    .map(|_| scope.spawn(|| Arch::new().dispatch(Chains)))
                    .collect();
                let lanes = running.into_iter().map(|thread| thread.join().unwrap_or(0));
                lanes.sum::<usize>()
            })
        });
        2e-12 * (lanes * CHAINS * LENGTH) as f64 / seconds
    };
    (0..20).map(|_| turn()).fold(0.0, f64::max)
}

struct Chains;

impl WithSimd for Chains {
    /// Lanes of a vector.
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        let factor = simd.splat_f32s(black_box(0.5));
        let mut sums = [simd.splat_f32s(black_box(1.0)); CHAINS];
        for _ in 0..LENGTH {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(*sum, factor, factor);
            }
        }
        black_box(sums.map(|sum| simd.reduce_sum_f32s(sum)));
        S::F32_LANES
    }
}
