//! A vectorized loop over lanes gives the same bits as single calls.
//!
//! This is not a tautology: a compiler may treat all NaNs as equal, fuse operations, or use another
//! instruction sequence for each vector width. The interpreter depends on identical results.

use std::hint::black_box;

use pulp::Arch;

use super::super::approximate::{self, Approximation};
use super::super::compare::{NanOperand, max_f32, min_f32};
use super::super::convert::{self, Integer};
use super::super::half_precision::{self as half_ops, Bf16, F16};
use super::super::rounding::{self, Rounding};
use super::edge_case_f32;

/// Operands for 32 lanes: all pairs of edge cases, warp by warp.
fn warps() -> Vec<[[f32; 32]; 2]> {
    let values = edge_case_f32();
    let pairs: Vec<[f32; 2]> =
        values.iter().flat_map(|&a| values.iter().map(move |&b| [a, b])).collect();
    let lanes = |pairs: &[[f32; 2]]| {
        [0, 1].map(|operand| std::array::from_fn(|lane| pairs[lane % pairs.len()][operand]))
    };
    pairs.chunks(32).map(lanes).collect()
}

/// Tests an instruction that maps two f32 to a word.
macro_rules! lanes {
    ($name:ident, |$a:ident, $b:ident| $result:expr) => {
        #[test]
        fn $name() {
            #[inline(never)]
            fn single($a: f32, $b: f32) -> u32 {
                $result
            }
            for [a, b] in warps() {
                let mut in_loop = [0_u32; 32];
                Arch::new().dispatch(
                    #[inline(always)]
                    || {
                        for ((&$a, &$b), result) in a.iter().zip(&b).zip(&mut in_loop) {
                            *result = $result;
                        }
                    },
                );
                for (lane, result) in in_loop.into_iter().enumerate() {
                    let alone = single(black_box(a[lane]), black_box(b[lane]));
                    assert_eq!(result, alone, "{:e}, {:e}", a[lane], b[lane]);
                }
            }
        }
    };
}

/// Tests an instruction that maps two f32 to an f32. NaN must be the canonical one.
macro_rules! float_lanes {
    ($name:ident, |$a:ident, $b:ident| $result:expr) => {
        mod $name {
            use super::*;

            lanes!(in_loops_and_alone, |$a, $b| f32::to_bits($result));

            #[test]
            fn canonical_nan() {
                for [a, b] in warps() {
                    let mut results = [0.0; 32];
                    for ((&$a, &$b), result) in a.iter().zip(&b).zip(&mut results) {
                        *result = $result;
                    }
                    for result in results.into_iter().filter(|result| result.is_nan()) {
                        assert_eq!(result.to_bits(), 0x7fff_ffff);
                    }
                }
            }
        }
    };
}

const ROUNDED: Approximation = Approximation::Rounded;
const PERTURBED: Approximation = Approximation::Perturbed { seed: 11 };

float_lanes!(add, |a, b| rounding::add(a, b, Rounding::Nearest));
float_lanes!(sub_up, |a, b| rounding::sub(a, b, Rounding::Up));
float_lanes!(mul, |a, b| rounding::mul(a, b, Rounding::Nearest));
float_lanes!(fma, |a, b| rounding::fma(a, b, a, Rounding::Nearest));
float_lanes!(fma_zero, |a, b| rounding::fma(a, b, a, Rounding::Zero));
float_lanes!(div, |a, b| rounding::div(a, b, Rounding::Nearest));
float_lanes!(sqrt, |a, _b| rounding::sqrt(a, Rounding::Nearest));
float_lanes!(sqrt_down, |a, _b| rounding::sqrt(a, Rounding::Down));
float_lanes!(saturated, |a, b| rounding::saturate(rounding::mul(a, b, Rounding::Nearest)));
float_lanes!(min, |a, b| min_f32(a, b, NanOperand::Ignored));
float_lanes!(max_nan, |a, b| max_f32(a, b, NanOperand::Propagated));
float_lanes!(integral, |a, _b| convert::integral_f32(a, Rounding::Nearest));
float_lanes!(ex2, |a, _b| approximate::ex2(a, ROUNDED));
float_lanes!(lg2, |a, _b| approximate::lg2(a, ROUNDED));
float_lanes!(sin, |a, _b| approximate::sin(a, ROUNDED));
float_lanes!(tanh, |a, _b| approximate::tanh(a, ROUNDED));
float_lanes!(rsqrt, |a, _b| approximate::rsqrt(a, PERTURBED));
float_lanes!(quotient, |a, b| approximate::div_full(a, b, PERTURBED));

lanes!(flushed, |a, b| rounding::flush(a).to_bits() ^ rounding::flush(b).to_bits());
lanes!(to_bf16, |a, b| convert::f32_pair_to_bf16(a, b, Rounding::Nearest));
lanes!(to_f16, |a, b| convert::f32_pair_to_f16(a, b, Rounding::Nearest));
lanes!(to_s32, |a, b| {
    let convert = |x| convert::f32_to_integer(x, Rounding::Nearest, Integer::S32) as u32;
    convert(a) ^ convert(b).rotate_left(1)
});
lanes!(from_u32, |a, _b| {
    convert::integer_to_f32(a.to_bits().into(), Integer::U32, Rounding::Nearest).to_bits()
});
lanes!(bf16_fma, |a, b| {
    let fma = half_ops::fma::<Bf16>;
    half_ops::both3(a.to_bits(), b.to_bits(), a.to_bits() >> 3, fma)
});
lanes!(f16_fma, |a, b| {
    let fma = half_ops::fma::<F16>;
    half_ops::both3(a.to_bits(), b.to_bits(), a.to_bits() >> 3, fma)
});
