//! Rotary position embeddings on every device, compared with f64 on the CPU.

use crate::devices::{assert_close, devices, exact, numbered, reference, rounding, values};
use meshgrad_runtime::ops::RopeStyle;
use meshgrad_runtime::{DType, Device, Tensor, ops};

const STYLES: [RopeStyle; 2] = [RopeStyle::Half, RopeStyle::Interleaved];

/// Extents [heads, features, rotated pairs]: features that are whole vectors or not; all, some or
/// no features rotated; no heads; no features.
const EXTENTS: [[usize; 3]; 9] = [
    [2, 128, 64],
    [1, 640, 320],
    [3, 96, 32],
    [2, 120, 24],
    [2, 9, 3],
    [1, 2, 1],
    [2, 5, 0],
    [0, 64, 32],
    [2, 0, 0],
];

fn on(device: &Device, x: &Tensor) -> Tensor {
    ops::to_device(x, device).unwrap()
}

fn tables(device: &Device, positions: &Tensor, pairs: usize, factor: f64) -> (Tensor, Tensor) {
    let inv_freq: Vec<f32> = (0..pairs).map(|i| 1e4f32.powf(-(i as f32) / pairs as f32)).collect();
    let inv_freq = Tensor::from_slice(device, &[pairs], &inv_freq).unwrap();
    ops::rope_tables(&on(device, positions), &inv_freq, factor).unwrap()
}

/// Tables equal those of the CPU up to one rounding, for every index dtype and large positions.
#[test]
fn tables_equal_those_of_the_cpu() {
    let cpu = reference();
    let i64s = [0i64, 1, 7, -3, 131_071, 1 << 31, -(1 << 40), 355, 710, 22];
    let i64s = Tensor::from_slice(cpu, &[2, 5], &i64s).unwrap();
    let i32s = Tensor::from_slice(cpu, &[3], &[-5i32, 9, i32::MAX]).unwrap();
    let u32s = Tensor::from_slice(cpu, &[3], &[5u32, 9, u32::MAX]).unwrap();
    let transposed = i64s.transpose(0, 1).unwrap();
    for device in devices() {
        for positions in [&i64s, &i32s, &u32s, &transposed] {
            for (pairs, factor) in [(64, 1.0), (3, 1.25), (0, 1.0)] {
                let (cos, sin) = tables(&device, positions, pairs, factor);
                let (expected_cos, expected_sin) = tables(cpu, positions, pairs, factor);
                assert_close(&cos, &expected_cos, rounding(DType::F32), 0.0);
                assert_close(&sin, &expected_sin, rounding(DType::F32), 0.0);
            }
        }
    }
}

#[test]
fn rotated_heads_and_their_gradient() {
    let positions = Tensor::from_slice(reference(), &[2, 3], &[0i64, 1, 2, 7, 70, 700]).unwrap();
    let of_all = positions.slice(0, 1..2).unwrap();
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for [heads, features, pairs] in EXTENTS {
                let shape = [2, 3, heads, features];
                let dense = numbered(&device, &shape, dtype, 2.0);
                // Queries inside a fused projection, and transposed heads.
                let others = [2, 3, heads + 4, features];
                let view = numbered(&device, &others, dtype, 2.0);
                let view = view.slice(2, 1..1 + heads).unwrap();
                let transposed = numbered(&device, &[2, 3, features, heads], dtype, 2.0);
                let transposed = transposed.transpose(2, 3).unwrap();
                for x in [&dense, &view, &transposed] {
                    for positions in [&positions, &of_all] {
                        let (cos, sin) = tables(&device, positions, pairs, 1.1);
                        check(x, &broadcast(&cos), &broadcast(&sin), dtype);
                    }
                }
            }
        }
    }
}

/// Broadcasts a table to two sequences.
fn broadcast(table: &Tensor) -> Tensor {
    table.broadcast_to(&[2, 3, table.shape()[2]]).unwrap()
}

fn check(x: &Tensor, cos: &Tensor, sin: &Tensor, dtype: DType) {
    let cpu = reference();
    let (exact_cos, exact_sin) = (on(cpu, cos), on(cpu, sin));
    for style in STYLES {
        let y = ops::rope(x, cos, sin, style).unwrap();
        let expected = ops::rope(&exact(x), &exact_cos, &exact_sin, style).unwrap();
        assert_eq!(y.dtype(), dtype);
        assert_close(&y, &expected, 4.0 * rounding(dtype), 1.0);

        let back = ops::rope_grad(&y, cos, sin, style).unwrap();
        let expected = ops::rope_grad(&exact(&y), &exact_cos, &exact_sin, style).unwrap();
        assert_close(&back, &expected, 4.0 * rounding(dtype), 1.0);
    }
}

/// A table [T, H] is shared by all sequences.
#[test]
fn one_table_for_all_sequences() {
    let positions = Tensor::from_slice(reference(), &[3], &[4i64, 5, 6]).unwrap();
    for device in devices() {
        let x = numbered(&device, &[2, 3, 1, 16], DType::F32, 2.0);
        let (cos, sin) = tables(&device, &positions, 8, 1.0);
        let y = ops::rope(&x, &cos, &sin, RopeStyle::Half).unwrap();
        let first = ops::rope(&x.slice(0, 0..1).unwrap(), &cos, &sin, RopeStyle::Half).unwrap();
        assert_eq!(values(&y)[..48], values(&first)[..]);
    }
}
