//! Sums over the threads of a warp and of a CTA.

use super::{F32, Kernel};

/// The sum over the 32 lanes of the warp, in every lane: the same bits in each and in every run.
///
/// All lanes must take part. Five exchanges with the lane whose index differs in one bit: lane
/// pairs, then pairs of pairs (butterfly). Addition commutes, so both partners get the same bits.
#[track_caller]
pub fn warp_sum<'k>(k: &'k Kernel, value: F32<'k>) -> F32<'k> {
    let mut sum = value;
    for distance in [16, 8, 4, 2, 1] {
        let exchange = "shfl.sync.bfly.b32";
        sum = sum + k.compute(exchange, &[&sum, &distance, &31, &-1]);
    }
    sum
}

/// The sum over all threads of the CTA, in every thread: the same bits in each and in every run.
///
/// Every thread must take part, and the CTA must consist of whole warps. Each warp sums its lanes;
/// the sums of the warps go through shared memory and are added in order.
#[track_caller]
pub fn block_sum<'k>(k: &'k Kernel, value: F32<'k>) -> F32<'k> {
    let sum = warp_sum(k, value);
    let warps = k.threads() / 32;
    if warps == 1 {
        return sum;
    }

    let sums = k.shared::<f32>(warps);
    k.if_(k.lane().equals(0), || {
        sums.element::<f32>(k.warp()).store(sum)
    });
    k.barrier();
    let first = sums.load::<f32>();
    (1..warps).fold(first, |total, warp| {
        total + sums.offset(4 * warp).load::<f32>()
    })
}
