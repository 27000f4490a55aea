//! SwiGLU and its gradient on every device, compared with f64 on the CPU.

use crate::devices::{assert_close, devices, exact, numbered, rounding};
use meshgrad_runtime::{DType, Device, Tensor, ops};

/// Rows that are whole vectors or not; one element; no rows; no features; strided tensors.
fn operands(device: &Device, dtype: DType) -> Vec<Tensor> {
    let shapes: [&[usize]; 7] =
        [&[3, 2, 64], &[2, 40, 2, 96], &[5, 2, 7], &[2, 2, 301], &[2, 1], &[0, 2, 8], &[4, 2, 0]];
    let mut all: Vec<Tensor> =
        shapes.iter().map(|shape| numbered(device, shape, dtype, 6.0)).collect();
    let transposed = numbered(device, &[2, 6, 16], dtype, 6.0);
    all.push(transposed.transpose(0, 1).unwrap());
    // Rows that are not aligned to 16 bytes.
    let wide = numbered(device, &[2 * 64 + 1], dtype, 6.0);
    let shifted = wide.slice(0, 1..129).unwrap();
    all.push(ops::reshape(&shifted, &[1, 2, 64]).unwrap());
    all
}

#[test]
fn forward_and_gradient() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for gate_up in operands(&device, dtype) {
                eprintln!("{gate_up:?}");
                check(&gate_up, dtype);
            }
        }
    }
}

/// For a gate far from 0 the result is gate * up or 0, never NaN.
#[test]
fn large_gates() {
    let gates = [-1e30f32, -200.0, -90.0, -0.0, 0.0, 90.0, 200.0, 1e30];
    for device in devices() {
        let rows = [gates, [2.0; 8]].concat();
        let gate_up = Tensor::from_slice(&device, &[1, 2, 8], &rows).unwrap();
        check(&gate_up, DType::F32);
    }
}

fn check(gate_up: &Tensor, dtype: DType) {
    let y = ops::swiglu(gate_up).unwrap();
    let expected = ops::swiglu(&exact(gate_up)).unwrap();
    assert_eq!(y.dtype(), dtype);
    assert_close(&y, &expected, 8.0 * rounding(dtype), 0.1);

    let dy = ops::cos(&y).unwrap();
    let slope = ops::swiglu_grad(gate_up, &dy).unwrap();
    let expected = ops::swiglu_grad(&exact(gate_up), &exact(&dy)).unwrap();
    assert_close(&slope, &expected, 8.0 * rounding(dtype), 1.0);
}
