//! Integer operations among the lanes of a warp, and counters in shared memory.

use super::{Kernel, SharedAddress, U32};

impl<'k> U32<'k> {
    /// The number of set bits.
    #[track_caller]
    pub fn count_ones(self) -> U32<'k> {
        self.k.compute("popc.b32", &[&self])
    }

    /// A bit mask of the lanes of the warp that hold the same value. All lanes must call it.
    #[track_caller]
    pub fn match_any(self) -> U32<'k> {
        self.k.compute("match.any.sync.b32", &[&self, &-1])
    }

    /// The value of the lane whose index differs in the bits of `distance` (`shfl.bfly`). All lanes
    /// of the warp must call it.
    #[track_caller]
    pub fn shuffle_xor(self, distance: u32) -> U32<'k> {
        self.k.compute("shfl.sync.bfly.b32", &[&self, &distance, &31, &-1])
    }

    /// The inclusive prefix sum over the lanes of the warp. All lanes of the warp must call it.
    #[track_caller]
    pub fn inclusive_scan(self) -> U32<'k> {
        let lane = self.k.lane();
        [1u32, 2, 4, 8, 16].into_iter().fold(self, |sum, distance| {
            let before: U32<'k> = self.k.compute("shfl.sync.up.b32", &[&sum, &distance, &0, &-1]);
            sum + lane.ge(distance).select(before, 0)
        })
    }
}

impl Kernel {
    /// Waits until all lanes of the warp have arrived. Their earlier writes are then visible to
    /// all.
    #[track_caller]
    pub fn warp_barrier(&self) {
        self.emit("bar.warp.sync -1");
    }
}

impl<'k> SharedAddress<'k> {
    /// Atomically adds to a counter.
    #[track_caller]
    pub fn atomic_add(self, value: U32<'k>) {
        let address = self.written();
        self.kernel().emit(format_args!("red.shared.add.u32 {address}, {value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::tests::body;
    use super::super::{Kernel, Target};

    #[test]
    fn instructions() {
        let k = &Kernel::new("lanes", Target::Sm80, 32);
        let x = k.constant(5u32);
        k.shared::<u32>(4).offset(8).atomic_add(x.match_any().count_ones());
        k.warp_barrier();
        assert_eq!(
            body(k)[2..6],
            [
                "match.any.sync.b32 %r3, %r1, -1;",
                "popc.b32 %r4, %r3;",
                "red.shared.add.u32 [%r2+8], %r4;",
                "bar.warp.sync -1;",
            ]
        );
    }

    /// Five rounds with one shuffle, one select and one addition each.
    #[test]
    fn a_scan_has_five_rounds() {
        let k = &Kernel::new("scan", Target::Sm80, 32);
        k.constant(1u32).inclusive_scan();
        let lines = body(k);
        let count = |what: &str| lines.iter().filter(|line| line.starts_with(what)).count();
        assert_eq!((count("shfl.sync.up"), count("selp"), count("add")), (5, 5, 5));
    }
}
