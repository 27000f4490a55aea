//! Arithmetic on all lanes of a warp. Each arithmetic instruction is a function on registers,
//! selected when a module is loaded. [`lanes!`] generates it from the operation of one lane.

use super::registers::{LANES, Registers, Slot};

/// The operands of an arithmetic instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operands {
    pub(crate) destination: Slot,
    pub(crate) sources: [Slot; 4],
    /// The number of sources.
    pub(crate) count: u8,
    /// Further data of the instruction: a lookup table, a rounding mode, a seed.
    pub(crate) modifier: u32,
}

/// An arithmetic operation on the lanes of a mask.
#[derive(Clone, Copy)]
pub(crate) struct Compute {
    pub(crate) run: fn(&mut Registers, &Operands, u32),
    /// The number of sources.
    pub(crate) sources: u8,
}

/// Compares two sources; one bit per lane.
pub(crate) type Compare = fn(&Registers, [Slot; 2]) -> u32;

/// One value per lane.
#[inline(always)]
pub(crate) fn each_lane<T: Copy + Default>(mut f: impl FnMut(usize) -> T) -> [T; LANES] {
    let mut out = [T::default(); LANES];
    for (lane, value) in out.iter_mut().enumerate() {
        *value = f(lane);
    }
    out
}

/// The low halves of all lanes.
#[inline(always)]
pub(crate) fn narrowed(wide: &[u64; LANES]) -> [u32; LANES] {
    each_lane(|lane| wide[lane] as u32)
}

/// All lanes, zero-extended.
#[inline(always)]
pub(crate) fn widened(narrow: &[u32; LANES]) -> [u64; LANES] {
    each_lane(|lane| u64::from(narrow[lane]))
}

/// One bit per lane.
#[inline(always)]
pub(crate) fn each_bit(mut f: impl FnMut(usize) -> bool) -> u32 {
    let mut bits = 0;
    for lane in 0..LANES {
        bits |= u32::from(f(lane)) << lane;
    }
    bits
}

/// `lanes!(|a: u32, b: u64| -> u64 { .. })`: a [`Compute`] from the operation of one lane. Types
/// are u32, for registers of up to 32 bits, and u64. The prefix `modifier = m;` binds the
/// instruction's modifier.
macro_rules! lanes {
    ($(modifier = $m:ident;)? |$($a:ident: $T:ty),+| -> $R:ty $body:block) => {{
        fn compute(
            registers: &mut $crate::machine::registers::Registers,
            operands: &$crate::machine::lanes::Operands,
            mask: u32,
        ) {
            use $crate::machine::registers::Lane;

            // The closure also stores the result, directly from vector registers.
            $crate::simd::vectorized(
                #[inline(always)]
                || {
                    let mut sources = operands.sources.iter();
                    $(
                        let source = *sources.next().expect("four sources");
                        let $a = <$T as Lane>::get(registers, source);
                    )+
                    $(let $m = operands.modifier;)?
                    let out: [$R; 32] = $crate::machine::lanes::each_lane(
                        #[inline(always)]
                        |lane| {
                            $(let $a = $a[lane];)+
                            $body
                        },
                    );
                    <$R as Lane>::set(registers, operands.destination, mask, &out);
                },
            );
        }
        $crate::machine::lanes::Compute {
            run: compute,
            sources: [$(stringify!($a)),+].len() as u8,
        }
    }};
}

/// `compare!(|a: u32, b: u32| a < b)`: a [`Compare`] from the operation of one lane.
macro_rules! compare {
    (|$a:ident: $T:ty, $b:ident: $U:ty| $body:expr) => {{
        fn compare(
            registers: &$crate::machine::registers::Registers,
            [a, b]: [$crate::machine::registers::Slot; 2],
        ) -> u32 {
            use $crate::machine::registers::Lane;

            let (a, b) = (<$T as Lane>::get(registers, a), <$U as Lane>::get(registers, b));
            $crate::simd::vectorized(
                #[inline(always)]
                || {
                    $crate::machine::lanes::each_bit(
                        #[inline(always)]
                        |lane| {
                            let ($a, $b) = (a[lane], b[lane]);
                            $body
                        },
                    )
                },
            )
        }
        compare as $crate::machine::lanes::Compare
    }};
}

pub(crate) use {compare, lanes};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::registers::ALL;

    #[test]
    fn an_operation_applies_to_all_lanes() {
        let mut registers = Registers::new(8, 1);
        registers.set_narrow(0, ALL, &each_lane(|lane| lane as u32));
        registers.set_wide(2, ALL, &[10; LANES]);
        let operands = Operands { destination: 4, sources: [0, 2, 0, 0], count: 2, modifier: 100 };
        let compute = lanes!(modifier = m; |a: u32, b: u64| -> u64 {
            u64::from(a) * b + u64::from(m)
        });
        assert_eq!(compute.sources, 2);
        (compute.run)(&mut registers, &operands, 0b11);
        assert_eq!(registers.wide(4)[..3], [100, 110, 0]);

        let less = compare!(|a: u32, b: u64| u64::from(a) < b);
        assert_eq!(less(&registers, [0, 2]), (1 << 10) - 1);
    }
}
