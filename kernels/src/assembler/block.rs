//! Reductions, scans and exchanges among the threads of a warp or a CTA.

use super::{F32, Kernel, Pair, Register, Stored, U32};

/// A type that lanes of a warp can exchange.
pub trait Shuffle: Stored {
    /// The value of the lane whose index differs in the bit `distance`. All lanes of the warp must
    /// call it.
    #[doc(hidden)]
    fn shuffle_xor<'k>(
        k: &'k Kernel,
        value: Register<'k, Self>,
        distance: u32,
    ) -> Register<'k, Self>;
}

macro_rules! exchanged {
    ($($by:ident: $($type:ty),+;)+) => {
        $($(impl Shuffle for $type {
            #[track_caller]
            fn shuffle_xor<'k>(
                k: &'k Kernel,
                value: Register<'k, Self>,
                distance: u32,
            ) -> Register<'k, Self> {
                $by(k, value, distance)
            }
        })+)+
    };
}

exchanged! {
    whole: f32, u32;
    by_halves: u64, f64;
}

#[track_caller]
fn whole<'k, T: Stored>(k: &'k Kernel, value: Register<'k, T>, distance: u32) -> Register<'k, T> {
    k.compute("shfl.sync.bfly.b32", &[&value, &distance, &31, &-1])
}

/// A shuffle moves 32 bits, so a 64-bit value needs two.
#[track_caller]
fn by_halves<'k, T: Stored>(
    k: &'k Kernel,
    value: Register<'k, T>,
    distance: u32,
) -> Register<'k, T> {
    let [low, high]: [U32<'k>; 2] = [k.register(), k.register()];
    k.emit(format_args!("mov.b64 {{{low}, {high}}}, {value}"));
    let [low, high] = [low, high].map(|half| whole(k, half, distance));
    k.compute("mov.b64", &[&format_args!("{{{low}, {high}}}")])
}

/// The sum over the 32 lanes of the warp. Every lane gets the same bits, in every run.
///
/// All lanes must call it.
#[track_caller]
pub fn warp_sum<'k>(k: &'k Kernel, value: F32<'k>) -> F32<'k> {
    group_sum(k, value, 32)
}

/// The sum over each group of `lanes` consecutive lanes (a power of two up to 32). Every lane of
/// the group gets the result. All lanes of the warp must call it.
///
/// # Panics
/// If `lanes` is not a power of two up to 32.
#[track_caller]
pub fn group_sum<'k>(k: &'k Kernel, value: F32<'k>, lanes: u32) -> F32<'k> {
    group_reduce(k, value, lanes, |a, b| a + b)
}

/// The maximum over each group of `lanes` consecutive lanes; NaN if any value is NaN.
///
/// # Panics
/// If `lanes` is not a power of two up to 32.
#[track_caller]
pub fn group_max<'k>(k: &'k Kernel, value: F32<'k>, lanes: u32) -> F32<'k> {
    group_reduce(k, value, lanes, |a, b| a.max(b))
}

/// Reduces the values of each group of `lanes` consecutive lanes (a power of two up to 32). Every
/// lane of the group gets the result. All lanes of the warp must call it.
///
/// This is a butterfly reduction: each round merges with the lane whose index differs in one bit.
/// `merge` must be commutative, so that both lanes get the same bits.
///
/// # Panics
/// If `lanes` is not a power of two up to 32.
#[track_caller]
pub fn group_reduce<'k, T: Shuffle>(
    k: &'k Kernel,
    value: Register<'k, T>,
    lanes: u32,
    merge: impl Fn(Register<'k, T>, Register<'k, T>) -> Register<'k, T>,
) -> Register<'k, T> {
    assert!(
        lanes.is_power_of_two() && lanes <= 32,
        "a group of {lanes} lanes: groups are powers of two up to 32"
    );
    let mut folded = value;
    for bit in (0..lanes.trailing_zeros()).rev() {
        folded = merge(folded, T::shuffle_xor(k, folded, 1 << bit));
    }
    folded
}

/// Divides the warp into groups of `lanes` consecutive lanes, and sums over the lanes that have the
/// same position in their group. Every lane gets its sum. All lanes of the warp must call it.
///
/// # Panics
/// If `lanes` is not a power of two up to 32.
#[track_caller]
pub fn sum_across_groups<'k>(k: &'k Kernel, value: F32<'k>, lanes: u32) -> F32<'k> {
    assert!(
        lanes.is_power_of_two() && lanes <= 32,
        "groups of {lanes} lanes: groups are powers of two up to 32"
    );
    let distances = (lanes.trailing_zeros()..5).map(|bit| 1 << bit);
    distances.fold(value, |sum, distance: u32| {
        sum + k.compute("shfl.sync.bfly.b32", &[&sum, &distance, &31, &-1])
    })
}

/// Swaps values between lanes 0 and 1, lanes 2 and 3, and so on. All lanes of the warp must call
/// it.
#[track_caller]
pub fn swap_with_neighbor(value: Pair<'_>) -> Pair<'_> {
    let k = value.kernel();
    k.compute("shfl.sync.bfly.b32", &[&value, &1, &31, &-1])
}

/// The sum over all threads of the CTA. Every thread gets the same bits, in every run.
///
/// All threads must call it, and the CTA must consist of whole warps. In a loop, separate
/// iterations by a [`Kernel::barrier`].
///
/// # Panics
/// If the CTA does not consist of whole warps.
#[track_caller]
pub fn block_sum<'k>(k: &'k Kernel, value: F32<'k>) -> F32<'k> {
    block_reduce(k, value, |a, b| a + b)
}

/// Reduces the values of all threads of the CTA. Every thread gets the result.
///
/// All threads must call it, and the CTA must consist of whole warps. Each warp reduces its lanes
/// and stores the result in shared memory. Then every thread merges these results in order. In a
/// loop, separate iterations by a [`Kernel::barrier`].
///
/// # Panics
/// If the CTA does not consist of whole warps.
#[track_caller]
pub fn block_reduce<'k, T: Shuffle>(
    k: &'k Kernel,
    value: Register<'k, T>,
    merge: impl Fn(Register<'k, T>, Register<'k, T>) -> Register<'k, T>,
) -> Register<'k, T> {
    assert!(
        k.threads().is_multiple_of(32),
        "reduction over a CTA of {} threads: a CTA must consist of whole warps of 32",
        k.threads()
    );
    let folded = group_reduce(k, value, 32, &merge);
    let warps = k.threads() / 32;
    if warps == 1 {
        return folded;
    }

    let of_warps = k.shared::<T>(warps);
    k.if_(k.lane().equals(0), || of_warps.element::<T>(k.warp()).store(folded));
    k.barrier();
    let first = of_warps.load::<T>();
    (1..warps)
        .fold(first, |folded, warp| merge(folded, of_warps.offset(T::BYTES * warp).load::<T>()))
}

/// The exclusive prefix sum over the threads of the CTA, and the sum over all threads.
///
/// All threads must call it, and the CTA must consist of whole warps. In a loop, separate
/// iterations by a [`Kernel::barrier`].
#[track_caller]
pub fn block_exclusive_scan<'k>(k: &'k Kernel, value: U32<'k>) -> [U32<'k>; 2] {
    let warps = k.threads() / 32;
    let sums = k.shared::<u32>(warps);
    let to_lane = value.inclusive_scan();
    k.if_(k.lane().equals(31), || {
        sums.element::<u32>(k.warp()).store(to_lane);
    });
    k.barrier();

    let (mut before, mut total) = (to_lane - value, k.constant(0u32));
    for warp in 0..warps {
        let of_warp = sums.offset(4 * warp).load::<u32>();
        before = before + k.warp().gt(warp).select(of_warp, 0);
        total = total + of_warp;
    }
    [before, total]
}

/// The sum over the threads before this one, and the sum over all threads. Every run gives the same
/// bits.
///
/// All threads must call it, and the CTA must consist of whole warps. In a loop, separate
/// iterations by a [`Kernel::barrier`].
#[track_caller]
pub fn block_prefix_sum<'k>(k: &'k Kernel, value: F32<'k>) -> [F32<'k>; 2] {
    let (lane, warps) = (k.lane(), k.threads() / 32);
    let sums = k.shared::<f32>(warps);
    let up = |value: F32<'k>, distance: u32| -> F32<'k> {
        let lower = k.compute("shfl.sync.up.b32", &[&value, &distance, &0, &-1]);
        lane.ge(distance).select(lower, 0.0)
    };
    let to_lane = [1, 2, 4, 8, 16].into_iter();
    let to_lane = to_lane.fold(value, |sum, distance| sum + up(sum, distance));
    k.if_(lane.equals(31), || {
        sums.element::<f32>(k.warp()).store(to_lane);
    });
    k.barrier();

    let (mut before, mut total) = (k.constant(0.0), k.constant(0.0));
    for warp in 0..warps {
        let of_warp = sums.offset(4 * warp).load::<f32>();
        before = before + k.warp().gt(warp).select(of_warp, 0.0);
        total = total + of_warp;
    }
    [before + up(to_lane, 1), total]
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
