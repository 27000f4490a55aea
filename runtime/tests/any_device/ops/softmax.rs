//! Softmax, log-softmax and their gradients on every device, compared with f64 on the CPU.

use crate::devices::{assert_close, devices, exact, numbered, rounding};
use meshgrad_runtime::{DType, Device, Result, Tensor, ops};

/// Rows that fit in registers and rows that do not; one element; no elements; strided tensors.
fn operands(device: &Device, dtype: DType) -> Vec<Tensor> {
    let shapes: [&[usize]; 10] = [
        &[3, 64],
        &[2, 5, 7],
        &[1, 1],
        &[0, 8],
        &[8, 0],
        &[130, 96],
        &[2, 16_400],
        &[5, 264],  // a warp with several accesses per lane
        &[2, 1160], // the registers of a CTA, ragged
        &[2, 301],  // elements, in more than one iteration
    ];
    let mut all: Vec<Tensor> =
        shapes.iter().map(|shape| numbered(device, shape, dtype, 6.0)).collect();
    let transposed = numbered(device, &[6, 10], dtype, 6.0);
    all.push(transposed.transpose(0, 1).unwrap());
    let long = numbered(device, &[3, 65], dtype, 6.0);
    all.push(long.slice(1, 1..65).unwrap()); // all rows are unaligned
    all
}

type Op = fn(&Tensor) -> Result<Tensor>;
type Grad = fn(&Tensor, &Tensor) -> Result<Tensor>;

#[test]
fn forward_and_gradients() {
    let functions: [(Op, Grad); 2] =
        [(ops::softmax, ops::softmax_grad), (ops::log_softmax, ops::log_softmax_grad)];
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for x in operands(&device, dtype) {
                for (function, gradient) in functions {
                    eprintln!("{x}");
                    let y = function(&x).unwrap();
                    assert_eq!(y.dtype(), dtype);
                    let exact_y = function(&exact(&x)).unwrap();
                    // log_softmax is a difference of f32 numbers of this magnitude.
                    let unit = if dtype == DType::F32 { 8.0 } else { 0.1 };
                    assert_close(&y, &exact_y, 4.0 * rounding(dtype), unit);

                    let dy = ops::cos(&x).unwrap();
                    let dx = gradient(&y, &dy).unwrap();
                    let exact_dx = gradient(&exact(&y), &exact(&dy)).unwrap();
                    assert_close(&dx, &exact_dx, 8.0 * rounding(dtype), 1.0);
                }
            }
        }
    }
}

/// Masked elements are 0. A fully masked row, or one with NaN or infinity, gives NaN. The sizes use
/// registers, a loop over elements, and a loop over vectors.
#[test]
fn masked_and_nan_rows() {
    let (minus, nan) = (f32::NEG_INFINITY, f32::NAN);
    for (device, columns) in devices().iter().flat_map(|it| [64, 65, 8196].map(|n| (it, n))) {
        let mut rows = vec![vec![0.5f32; columns]; 5];
        rows[0][..columns - 1].fill(minus);
        rows[1].fill(minus);
        rows[2][columns / 2] = nan;
        rows[3][columns / 2] = f32::INFINITY;
        rows[4][1..].fill(minus);
        let x = Tensor::from_slice(device, &[5, columns], &rows.concat()).unwrap();
        let of = |op: Op| {
            let y = op(&x).unwrap().to_vec::<f32>().unwrap();
            assert!(y[columns..4 * columns].iter().all(|y| y.is_nan()));
            [y[0], y[columns - 1], y[4 * columns], y[4 * columns + 1]]
        };
        assert_eq!(of(ops::softmax), [0.0, 1.0, 1.0, 0.0]);
        assert_eq!(of(ops::log_softmax), [minus, 0.0, 0.0, minus]);
    }
}

/// A row in which all elements are minus infinity gives NaN. In other rows, minus infinity works as
/// a mask.
#[test]
fn minus_infinity() {
    let minus = f32::NEG_INFINITY;
    for device in devices() {
        let rows = [0.0f32, minus, 0.0, minus, minus, minus];
        let x = Tensor::from_slice(&device, &[2, 3], &rows).unwrap();
        let y = ops::softmax(&x).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(y[..3], [0.5, 0.0, 0.5]);
        assert!(y[3..].iter().all(|y| y.is_nan()));
        let y = ops::log_softmax(&x).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(y[1], minus);
        assert!(y[3..].iter().all(|y| y.is_nan()));
    }
}
