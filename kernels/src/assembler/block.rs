//! What the threads of a warp or of a CTA do together: sums and exchanges.

use super::{F32, Kernel, Pair};

/// The sum over the 32 lanes of the warp, in every lane: the same bits in each and in every run.
///
/// All lanes must take part.
#[track_caller]
pub fn warp_sum<'k>(k: &'k Kernel, value: F32<'k>) -> F32<'k> {
    group_sum(k, value, 32)
}

/// The sum over each group of `lanes` neighbours, a power of two up to 32, in every lane of the
/// group. All lanes of the warp must take part.
///
/// Each round adds what the lane has whose index differs in one bit (butterfly). Addition commutes,
/// so both partners get the same bits.
///
/// # Panics
/// If `lanes` is anything else.
#[track_caller]
pub fn group_sum<'k>(k: &'k Kernel, value: F32<'k>, lanes: u32) -> F32<'k> {
    assert!(
        lanes.is_power_of_two() && lanes <= 32,
        "a group of {lanes} lanes: groups are powers of two up to 32"
    );
    let mut sum = value;
    for bit in (0..lanes.trailing_zeros()).rev() {
        let distance = 1 << bit;
        sum = sum + k.compute("shfl.sync.bfly.b32", &[&sum, &distance, &31, &-1]);
    }
    sum
}

/// What the neighbour holds: lanes 0 and 1 exchange their values, lanes 2 and 3, and so on. All
/// lanes of the warp must take part.
#[track_caller]
pub fn exchange_with_neighbour(value: Pair<'_>) -> Pair<'_> {
    let k = value.kernel();
    k.compute("shfl.sync.bfly.b32", &[&value, &1, &31, &-1])
}

/// The sum over all threads of the CTA, in every thread: the same bits in each and in every run.
///
/// Every thread must take part, and the CTA must consist of whole warps. Each warp sums its lanes;
/// the sums of the warps go through shared memory and are added in order. In a loop, a
/// [`Kernel::barrier`] must stand between one round and the next.
///
/// # Panics
/// If the CTA does not consist of whole warps.
#[track_caller]
pub fn block_sum<'k>(k: &'k Kernel, value: F32<'k>) -> F32<'k> {
    assert!(
        k.threads().is_multiple_of(32),
        "a sum over a CTA of {} threads: a CTA must consist of whole warps of 32",
        k.threads()
    );
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

#[cfg(test)]
mod tests {
    use super::super::{Kernel, Target};
    use super::*;

    #[test]
    #[should_panic(expected = "a group of 24 lanes")]
    fn groups_are_powers_of_two() {
        let k = &Kernel::new("group", Target::Sm80, 32);
        group_sum(k, k.constant(1.0), 24);
    }

    #[test]
    #[should_panic(expected = "a group of 64 lanes")]
    fn groups_are_within_a_warp() {
        let k = &Kernel::new("group", Target::Sm80, 64);
        group_sum(k, k.constant(1.0), 64);
    }

    #[test]
    #[should_panic(expected = "a CTA of 48 threads")]
    fn sums_need_whole_warps() {
        let k = &Kernel::new("block", Target::Sm80, 48);
        block_sum(k, k.constant(1.0));
    }
}
