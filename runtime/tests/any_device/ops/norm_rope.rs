//! RMS norm fused with rotary position embedding on every device, compared with the two separate
//! ops in f64 on the CPU.

use crate::devices::{assert_close, devices, exact, numbered, reference, rounding, values};
use meshgrad_runtime::ops::RopeStyle;
use meshgrad_runtime::{Accumulator, DType, Device, Tensor, ops};

const EPS: f64 = 1e-6;

const STYLES: [RopeStyle; 2] = [RopeStyle::Half, RopeStyle::Interleaved];

/// Extents [heads, features, rotated pairs]: features that are whole vectors or not; all, some or
/// no features rotated; more pairs than lanes in a loop; no heads; no features.
const EXTENTS: [[usize; 3]; 11] = [
    [2, 128, 64],
    [1, 320, 160],
    [22, 64, 32],
    [3, 96, 32],
    [2, 120, 24],
    [2, 9, 3],
    [1, 2, 1],
    [2, 5, 0],
    [1, 325, 161],
    [0, 64, 32],
    [2, 0, 0],
];

fn on(device: &Device, x: &Tensor) -> Tensor {
    ops::to_device(x, device).unwrap()
}

/// Tables for two sequences of three positions; the sequences share one if `sequences` is 1.
fn tables(device: &Device, sequences: usize, pairs: usize) -> [Tensor; 2] {
    let positions: Vec<i64> = (0..3 * sequences as i64).map(|i| i * 7).collect();
    let positions = Tensor::from_slice(device, &[sequences, 3], &positions).unwrap();
    let inv_freq: Vec<f32> = (0..pairs).map(|i| 1.0 / (1.0 + i as f32)).collect();
    let inv_freq = Tensor::from_slice(device, &[pairs], &inv_freq).unwrap();
    let (cos, sin) = ops::rope_tables(&positions, &inv_freq, 1.0).unwrap();
    [cos, sin].map(|table| table.broadcast_to(&[2, 3, pairs]).unwrap())
}

#[test]
fn forward_and_gradients() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for [heads, features, pairs] in EXTENTS {
                let dense = numbered(&device, &[2, 3, heads, features], dtype, 2.0);
                // Queries inside a fused projection, and transposed heads.
                let others = numbered(&device, &[2, 3, heads + 4, features], dtype, 2.0);
                let view = others.slice(2, 1..1 + heads).unwrap();
                let transposed = numbered(&device, &[2, 3, features, heads], dtype, 2.0);
                let transposed = transposed.transpose(2, 3).unwrap();
                for x in [&dense, &view, &transposed] {
                    for sequences in [1, 2] {
                        let tables = tables(&device, sequences, pairs);
                        for style in STYLES {
                            check(x, &tables, style, dtype);
                        }
                    }
                }
            }
        }
    }
}

fn check(x: &Tensor, [cos, sin]: &[Tensor; 2], style: RopeStyle, dtype: DType) {
    let w = numbered(x.device(), &[x.shape()[3]], dtype, 1.5);
    let (y, inv_rms) = ops::rms_norm_rope(x, &w, cos, sin, style, EPS).unwrap();
    assert_eq!((y.dtype(), inv_rms.dtype()), (dtype, DType::F32));

    let cpu = reference();
    let (exact_cos, exact_sin) = (on(cpu, cos), on(cpu, sin));
    let (normed, exact_inv_rms) = ops::rms_norm(&exact(x), &exact(&w), EPS).unwrap();
    let expected = ops::rope(&normed, &exact_cos, &exact_sin, style).unwrap();
    assert_close(&y, &expected, 8.0 * rounding(dtype), 1.0);
    assert_close(&inv_rms, &exact_inv_rms, 1e-5, 0.1);

    let dy = ops::cos(&y).unwrap();
    let dz = ops::rope_grad(&exact(&dy), &exact_cos, &exact_sin, style).unwrap();
    let dx = ops::rms_norm_rope_grad_input(&dy, x, &w, &inv_rms, cos, sin, style).unwrap();
    let expected = ops::rms_norm_grad_input(&dz, &exact(x), &exact(&w), &exact_inv_rms).unwrap();
    assert_close(&dx, &expected, 16.0 * rounding(dtype), 1.0);

    let mut dw = Accumulator::new(x.device(), *w.shape(), DType::F32).unwrap();
    let mut expected = Accumulator::new(cpu, *w.shape(), DType::F64).unwrap();
    for _ in 0..2 {
        let to = &mut dw;
        ops::rms_norm_rope_grad_weight_into(&dy, x, &inv_rms, cos, sin, style, to).unwrap();
        let to = &mut expected;
        ops::rms_norm_grad_weight_into(&dz, &exact(x), &exact_inv_rms, to).unwrap();
        assert_close(dw.total().unwrap(), expected.total().unwrap(), 1e-4, 1.0);
    }
}

/// In f32 on the CPU, the result equals that of the two separate ops bit for bit. Heads of 32, 64 and
/// 128 features, all rotated, have loops of their own.
#[test]
fn f32_equals_norm_then_rope() {
    let cpu = reference();
    for (features, pairs) in [(48, 20), (32, 16), (32, 15), (64, 32), (128, 64)] {
        let [cos, sin] = tables(cpu, 2, pairs);
        let x = numbered(cpu, &[2, 3, 2, features], DType::F32, 2.0);
        let w = numbered(cpu, &[features], DType::F32, 1.5);
        for style in STYLES {
            let (y, inv_rms) = ops::rms_norm_rope(&x, &w, &cos, &sin, style, EPS).unwrap();
            let (normed, expected_inv_rms) = ops::rms_norm(&x, &w, EPS).unwrap();
            let expected = ops::rope(&normed, &cos, &sin, style).unwrap();
            assert_eq!(values(&y), values(&expected));
            assert_eq!(values(&inv_rms), values(&expected_inv_rms));
        }
    }
}

#[test]
fn more_pairs_than_features_are_rejected() {
    let cpu = reference();
    let [cos, sin] = tables(cpu, 2, 4);
    let (x, w) =
        (numbered(cpu, &[2, 3, 1, 6], DType::F32, 1.0), numbered(cpu, &[6], DType::F32, 1.0));
    let error = ops::rms_norm_rope(&x, &w, &cos, &sin, RopeStyle::Half, EPS).unwrap_err();
    assert!(error.to_string().contains("4 pairs of angles"), "{error}");
}
