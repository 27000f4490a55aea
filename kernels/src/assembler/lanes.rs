//! What the lanes of a warp tell each other about integers, and counters that they share.

use super::{Kernel, SharedAddress, U32};

impl<'k> U32<'k> {
    /// How many of its bits are set.
    #[track_caller]
    pub fn count_ones(self) -> U32<'k> {
        self.k.compute("popc.b32", &[&self])
    }

    /// The lanes of the warp that hold the same value, a bit each. All lanes must take part.
    #[track_caller]
    pub fn match_any(self) -> U32<'k> {
        self.k.compute("match.any.sync.b32", &[&self, &-1])
    }

    /// What the lane holds whose index differs in the bits of `distance`. All lanes of the warp must
    /// take part.
    #[track_caller]
    pub fn shuffle_xor(self, distance: u32) -> U32<'k> {
        self.k
            .compute("shfl.sync.bfly.b32", &[&self, &distance, &31, &-1])
    }

    /// The sum over this lane and those before it. All lanes of the warp must take part.
    #[track_caller]
    pub fn inclusive_scan(self) -> U32<'k> {
        let lane = self.k.lane();
        [1u32, 2, 4, 8, 16].into_iter().fold(self, |sum, distance| {
            let before: U32<'k> = self
                .k
                .compute("shfl.sync.up.b32", &[&sum, &distance, &0, &-1]);
            sum + lane.ge(distance).select(before, 0)
        })
    }
}

impl Kernel {
    /// Waits until all lanes of the warp have come here; what they wrote before is then seen by
    /// all.
    #[track_caller]
    pub fn warp_barrier(&self) {
        self.emit("bar.warp.sync -1");
    }
}

impl<'k> SharedAddress<'k> {
    /// Adds to a counter, whoever else does so at the same time.
    #[track_caller]
    pub fn count(self, value: U32<'k>) {
        let address = self.written();
        self.kernel()
            .emit(format_args!("red.shared.add.u32 {address}, {value}"));
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
        k.shared::<u32>(4)
            .offset(8)
            .count(x.match_any().count_ones());
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

    /// Five rounds, and no lane takes what its own value would be added to twice.
    #[test]
    fn sums_over_the_lanes_before() {
        let k = &Kernel::new("scan", Target::Sm80, 32);
        k.constant(1u32).inclusive_scan();
        let lines = body(k);
        let count = |what: &str| lines.iter().filter(|line| line.starts_with(what)).count();
        assert_eq!(
            (count("shfl.sync.up"), count("selp"), count("add")),
            (5, 5, 5)
        );
    }
}
