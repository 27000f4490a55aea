//! Barriers: where threads of a CTA wait for each other.
//!
//! A CTA has sixteen. The first belongs to all its threads ([`Kernel::barrier`]); the others are
//! given out one by one to whole warps, some of which may announce themselves and go on
//! ([`Barrier::arrive`]) while others wait: so a producer hands a buffer to a consumer.
//!
//! PTX ISA, "Parallel Synchronization and Communication Instructions: bar".

use super::{Kernel, Pred, U32};

/// Barriers of a CTA beside that of all its threads.
pub(super) const FURTHER: u32 = 15;

/// A barrier for some warps of the CTA, made by [`Kernel::new_barrier`].
///
/// It opens when its number of threads have come, and is then as new.
#[derive(Clone, Copy)]
pub struct Barrier<'k> {
    k: &'k Kernel,
    id: u32,
    threads: u32,
}

impl Barrier<'_> {
    /// Waits until the others are here; what all wrote to shared memory before is then seen by
    /// those that waited. All lanes of the warp must take part.
    #[track_caller]
    pub fn wait(self) {
        let Barrier { k, id, threads } = self;
        k.emit(format_args!("bar.sync {id}, {threads}"));
    }

    /// Counts as here, and goes on. All lanes of the warp must take part.
    #[track_caller]
    pub fn arrive(self) {
        let Barrier { k, id, threads } = self;
        k.emit(format_args!("bar.arrive {id}, {threads}"));
    }
}

impl Kernel {
    /// Waits until all threads of the CTA have come here; what they wrote to shared memory before
    /// is then seen by all.
    #[track_caller]
    pub fn barrier(&self) {
        self.emit("bar.sync 0");
    }

    /// In how many threads of the CTA the predicate holds. A [`Kernel::barrier`] at the same time.
    #[track_caller]
    pub fn barrier_count(&self, holds: Pred<'_>) -> U32<'_> {
        self.compute("bar.red.popc.u32", &[&0, &holds])
    }

    /// A barrier of its own for `threads` threads, those that wait and those that arrive.
    ///
    /// # Panics
    /// If these are not whole warps of the CTA, and for the sixteenth.
    #[track_caller]
    pub fn new_barrier(&self, threads: u32) -> Barrier<'_> {
        let of_cta = self.threads();
        assert!(
            (1..=of_cta).contains(&threads) && threads.is_multiple_of(32),
            "a barrier of {threads} threads in a CTA of {of_cta}: it takes whole warps of 32"
        );
        let id = self.count_barrier();
        assert!(
            id <= FURTHER,
            "a CTA has {FURTHER} barriers beside that of all its threads: use one again"
        );
        Barrier {
            k: self,
            id,
            threads,
        }
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
        assert_eq!(
            body(k)[..3],
            ["bar.sync 0;", "bar.arrive 1, 64;", "bar.sync 2, 96;"]
        );
    }

    #[test]
    #[should_panic(expected = "a barrier of 48 threads in a CTA of 64")]
    fn barriers_take_whole_warps() {
        Kernel::new("warps", Target::Sm80, 64).new_barrier(48);
    }

    #[test]
    #[should_panic(expected = "a CTA has 15 barriers")]
    fn barriers_are_few() {
        let k = &Kernel::new("many", Target::Sm80, 64);
        for _ in 0..=FURTHER {
            k.new_barrier(64);
        }
    }
}
