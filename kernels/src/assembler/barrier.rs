//! Barriers of the threads of a CTA.
//!
//! A CTA has sixteen barriers. Barrier 0 is for all threads ([`Kernel::barrier`]). The others are
//! allocated one by one for groups of whole warps. Some warps may arrive without waiting
//! ([`Barrier::arrive`]) while others wait, so a producer can hand a buffer to a consumer.
//!
//! PTX ISA, "Parallel Synchronization and Communication Instructions: bar".

use super::{Kernel, Pred, U32};

/// Barriers of a CTA besides barrier 0.
pub(super) const FURTHER: u32 = 15;

/// A barrier for some warps of the CTA, allocated by [`Kernel::new_barrier`].
///
/// It completes when the expected number of threads has arrived, and can then be reused.
#[derive(Clone, Copy)]
pub struct Barrier<'k> {
    k: &'k Kernel,
    id: u32,
    threads: u32,
}

impl Barrier<'_> {
    /// Waits until all expected threads have arrived. Shared-memory writes before the barrier are
    /// then visible to the threads that waited. All lanes of the warp must call it.
    #[track_caller]
    pub fn wait(self) {
        let Barrier { k, id, threads } = self;
        k.emit(format_args!("bar.sync {id}, {threads}"));
    }

    /// Arrives without waiting. All lanes of the warp must call it.
    #[track_caller]
    pub fn arrive(self) {
        let Barrier { k, id, threads } = self;
        k.emit(format_args!("bar.arrive {id}, {threads}"));
    }
}

impl Kernel {
    /// Waits until all threads of the CTA have arrived. Their earlier shared-memory writes are then
    /// visible to all.
    #[track_caller]
    pub fn barrier(&self) {
        self.emit("bar.sync 0");
    }

    /// The number of threads of the CTA whose predicate is true. Also acts as a
    /// [`Kernel::barrier`].
    #[track_caller]
    pub fn barrier_count(&self, holds: Pred<'_>) -> U32<'_> {
        self.compute("bar.red.popc.u32", &[&0, &holds])
    }

    /// Allocates a barrier for `threads` threads, counting both those that wait and those that
    /// arrive.
    ///
    /// # Panics
    /// If `threads` is not a whole number of the CTA's warps, or if no barrier is left.
    #[track_caller]
    pub fn new_barrier(&self, threads: u32) -> Barrier<'_> {
        let of_cta = self.threads();
        assert!(
            (1..=of_cta).contains(&threads) && threads.is_multiple_of(32),
            "a barrier of {threads} threads in a CTA of {of_cta}: use whole warps of 32"
        );
        let id = self.count_barrier();
        assert!(id <= FURTHER, "a CTA has {FURTHER} barriers besides barrier 0; reuse one");
        Barrier { k: self, id, threads }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::tests::body;
    use super::super::{Kernel, Target};
    use super::FURTHER;

    #[test]
    fn barriers_have_their_own_numbers() {
        let k = &Kernel::new("barriers", Target::Sm80, 128);
        let (full, empty) = (k.new_barrier(64), k.new_barrier(96));
        k.barrier();
        full.arrive();
        empty.wait();
        assert_eq!(body(k)[..3], ["bar.sync 0;", "bar.arrive 1, 64;", "bar.sync 2, 96;"]);
    }

    #[test]
    #[should_panic(expected = "a barrier of 48 threads in a CTA of 64")]
    fn barriers_take_whole_warps() {
        Kernel::new("warps", Target::Sm80, 64).new_barrier(48);
    }

    #[test]
    #[should_panic(expected = "a CTA has 15 barriers")]
    fn the_number_of_barriers_is_limited() {
        let k = &Kernel::new("many", Target::Sm80, 64);
        for _ in 0..=FURTHER {
            k.new_barrier(64);
        }
    }
}
