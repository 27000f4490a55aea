//! Peak floating-point operations per second of a CPU.

use std::hint::black_box;
use std::thread;

use meshgrad_harness::seconds;
use pulp::{Arch, Simd, WithSimd};

/// Independent chains of multiply-adds: enough to fill the pipeline of any core, and few enough to
/// fit into registers.
const CHAINS: usize = 12;

/// Multiply-adds per chain in a measurement of some milliseconds.
const LENGTH: usize = 1 << 23;

/// TFLOP/s of f32 multiply-adds in registers on `threads` threads: the best of 20 measurements.
pub(crate) fn multiply_adds(threads: usize) -> f64 {
    let measure = || {
        let (seconds, lanes) = seconds(|| {
            thread::scope(|scope| {
                let running: Vec<_> =
                    (0..threads).map(|_| scope.spawn(|| Arch::new().dispatch(Chains))).collect();
                let lanes = running.into_iter().map(|thread| thread.join().unwrap_or(0));
                lanes.sum::<usize>()
            })
        });
        2e-12 * (lanes * CHAINS * LENGTH) as f64 / seconds
    };
    (0..20).map(|_| measure()).fold(0.0, f64::max)
}

struct Chains;

impl WithSimd for Chains {
    /// Lanes per vector.
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
