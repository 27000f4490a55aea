//! bf16 values: one in a 16-bit register, or two in a 32-bit register. Arithmetic is in f32.

use super::{B16, F32, Pair, Register, U32};

impl<'k> F32<'k> {
    /// Rounded to bf16, to nearest even.
    #[track_caller]
    pub fn to_bf16(self) -> B16<'k> {
        self.k.compute("cvt.rn.bf16.f32", &[&self])
    }

    /// Two values rounded to bf16, to nearest even; `self` has the lower address in memory.
    #[track_caller]
    pub fn pack(self, high: F32<'k>) -> Pair<'k> {
        self.k.compute("cvt.rn.bf16x2.f32", &[&high, &self])
    }
}

impl<'k> Pair<'k> {
    /// Both halves; the one with the lower address first.
    #[track_caller]
    pub fn split(self) -> [B16<'k>; 2] {
        let halves = [self.k.register(), self.k.register()];
        let [low, high] = halves;
        self.k.emit(format_args!("mov.b32 {{{low}, {high}}}, {self}"));
        halves
    }

    /// Both values as f32, exactly; the one with the lower address first.
    #[track_caller]
    pub fn unpack(self) -> [F32<'k>; 2] {
        let bits: U32<'k> = Register::new(self.k, self.id);
        [(bits << 16).to_f32_bits(), (bits & 0xffff_0000).to_f32_bits()]
    }
}

impl<'k> B16<'k> {
    /// Packs two values into one register; `self` has the lower address in memory.
    #[track_caller]
    pub fn pack(self, high: B16<'k>) -> Pair<'k> {
        self.k.compute("mov.b32", &[&format_args!("{{{self}, {high}}}")])
    }

    /// Converted to f32, exactly.
    #[track_caller]
    pub fn to_f32(self) -> F32<'k> {
        let bits: U32<'k> = self.k.compute("cvt.u32.u16", &[&self]);
        (bits << 16).to_f32_bits()
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::tests::body;
    use super::super::{Kernel, Target};

    /// The first operand of `cvt.rn.bf16x2` is the upper half; the lower half has the lower
    /// address.
    #[test]
    fn pairs_have_the_first_element_in_the_lower_half() {
        let k = &Kernel::new("pair", Target::Sm80, 32);
        let (first, second) = (k.constant(1.0_f32), k.constant(2.0_f32));
        first.pack(second).unpack();
        assert_eq!(
            body(k)[2..7],
            [
                "cvt.rn.bf16x2.f32 %r1, %f2, %f1;",
                "shl.b32 %r2, %r1, 16;",
                "mov.b32 %f3, %r2;",
                "and.b32 %r3, %r1, 4294901760;",
                "mov.b32 %f4, %r3;",
            ]
        );
    }
}
