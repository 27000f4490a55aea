//! Tests of the instructions' arithmetic against independently written references.

mod approximate;
mod bits;
mod compare;
mod convert;
mod descriptor;
mod half_precision;
mod integer;
mod lanes;
mod matrix_move;
#[cfg(target_arch = "x86_64")]
mod processor;
mod rounding;
mod tensor_core;

use proptest::prelude::*;

use super::rounding::Rounding;

const MODES: [Rounding; 4] = [Rounding::Nearest, Rounding::Zero, Rounding::Down, Rounding::Up];

/// Bit patterns that cover every kind of f32, for sweeps over all pairs.
fn edge_case_f32() -> Vec<f32> {
    let magnitudes = [
        0x0000_0000_u32,
        0x0000_0001,
        0x0000_0003,
        0x007f_ffff,
        0x0080_0000,
        0x0080_0001,
        0x00ff_ffff,
        0x3380_0000,
        0x3eaa_aaab,
        0x3f00_0000,
        0x3f7f_ffff,
        0x3f80_0000,
        0x3f80_0001,
        0x3fff_ffff,
        0x4049_0fdb,
        0x4b80_0001,
        0x7e80_0000,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7f80_0001,
        0x7fc0_0000,
    ];
    let both_signs = |bits: u32| [f32::from_bits(bits), f32::from_bits(bits | 1 << 31)];
    magnitudes.into_iter().flat_map(both_signs).collect()
}

/// Any f32, with edge cases overrepresented.
fn any_f32() -> impl Strategy<Value = f32> {
    prop_oneof![
        3 => any::<u32>().prop_map(f32::from_bits),
        1 => proptest::sample::select(edge_case_f32()),
        1 => (0_u32..0x0200_0000, any::<bool>())
            .prop_map(|(bits, negative)| f32::from_bits(bits | u32::from(negative) << 31)),
    ]
}

/// Any f64, with edge cases overrepresented.
fn any_f64() -> impl Strategy<Value = f64> {
    prop_oneof![
        3 => any::<u64>().prop_map(f64::from_bits),
        1 => any_f32().prop_map(f64::from),
        1 => (0_u64..0x0040_0000_0000_0000, any::<bool>())
            .prop_map(|(bits, negative)| f64::from_bits(bits | u64::from(negative) << 63)),
        1 => (0.5_f64..2.0).prop_map(|x| x),
    ]
}
