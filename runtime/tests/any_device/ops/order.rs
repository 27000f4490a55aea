//! Cumulative sums and sorting on every device, compared with the CPU.

use crate::devices::{assert_close, assert_error, devices, exact, numbered, reference, rounding};
use meshgrad_runtime::{DType, Tensor, ops};

/// Several dims to sum along; one element, none; one block and more, and a strided tensor.
fn operands(device: &meshgrad_runtime::Device, dtype: DType) -> Vec<Tensor> {
    let shapes: [&[usize]; 7] =
        [&[1], &[3, 5, 2], &[0, 8], &[8, 0], &[2, 1024], &[2, 2500], &[130, 9]];
    let mut all: Vec<Tensor> =
        shapes.iter().map(|shape| numbered(device, shape, dtype, 2.0)).collect();
    all.push(all[1].permute(&[2, 0, 1]).unwrap());
    all
}

#[test]
fn cumulative_sums_equal_f64() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            // A running sum in f32, rounded once.
            let (tolerance, unit) = match dtype {
                DType::F32 => (8.0 * rounding(dtype), 20.0),
                _ => (1.5 * rounding(dtype), 0.1),
            };
            for x in operands(&device, dtype) {
                for dim in 0..x.shape().len() as isize {
                    for sum in [ops::cumsum, ops::reverse_cumsum] {
                        let (y, expected) = (sum(&x, dim).unwrap(), sum(&exact(&x), dim).unwrap());
                        assert_eq!((y.shape(), y.dtype()), (x.shape(), dtype));
                        assert_close(&y, &expected, tolerance, unit);
                    }
                }
            }
        }
    }
}

/// The last sum is the whole sum, and the sums from both ends overlap in one element.
#[test]
fn sums_from_both_ends() {
    for device in devices() {
        let x: Vec<f32> = (0..3000).map(|i| ((i * 7) % 5) as f32).collect();
        let x = Tensor::from_slice(&device, &[2, 1500], &x).unwrap();
        let (forward, backward) = (ops::cumsum(&x, -1).unwrap(), ops::reverse_cumsum(&x, -1));
        let both = ops::sub(&ops::add(&forward, &backward.unwrap()).unwrap(), &x).unwrap();
        let total = ops::sum(&x, &[-1]).unwrap().unsqueeze(1).unwrap();
        let total = total.broadcast_to(&[2, 1500]).unwrap();
        assert_eq!(both.to_vec::<f32>().unwrap(), total.to_vec::<f32>().unwrap());
    }
}

/// An infinity does not reach the sums before it.
#[test]
fn infinities_only_count_from_their_element_on() {
    for device in devices() {
        let mut x = vec![1.0f32; 1500];
        x[1200] = f32::INFINITY;
        let x = Tensor::from_slice(&device, &[1500], &x).unwrap();
        let y = ops::cumsum(&x, 0).unwrap().to_vec::<f32>().unwrap();
        assert_eq!((y[1199], y[1200], y[1499]), (1200.0, f32::INFINITY, f32::INFINITY));
    }
}

/// Integers with ties, NaNs of both signs, infinities and both zeros.
fn coarse(device: &meshgrad_runtime::Device, shape: &[usize], dtype: DType) -> Tensor {
    let value = |i: usize| match i % 61 {
        10 => f32::NAN,
        20 => f32::INFINITY,
        30 => f32::NEG_INFINITY,
        40 => -0.0,
        50 => -f32::NAN,
        _ => ((i * i * 31 + i) % 9) as f32 - 4.0,
    };
    let elements: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    // The CPU casts: a GPU makes all NaNs equal.
    let x = Tensor::from_slice(reference(), shape, &elements).unwrap();
    ops::to_device(&ops::cast(&x, dtype).unwrap(), device).unwrap()
}

#[test]
fn argsort_is_a_stable_sort_of_each_row() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for shape in [[1, 1], [3, 17], [2, 3000], [0, 4], [4, 0], [300, 5]] {
                let x = coarse(&device, &shape, dtype);
                for descending in [false, true] {
                    let found = ops::argsort(&x, -1, descending).unwrap();
                    assert_eq!((found.shape(), found.dtype()), (x.shape(), DType::I64));
                    assert_eq!(found.to_vec::<i64>().unwrap(), sorted(&x, descending));
                    let across = ops::argsort(&x.transpose(0, 1).unwrap(), 0, descending).unwrap();
                    let across = ops::contiguous(&across.transpose(0, 1).unwrap()).unwrap();
                    assert_eq!(across.to_vec::<i64>().unwrap(), found.to_vec::<i64>().unwrap());
                }
            }
        }
    }
}

/// NaN is replaced by a number above infinity's, for a sort of integers.
fn sorted(x: &Tensor, descending: bool) -> Vec<i64> {
    let rank = |x: f64| match x {
        _ if x.is_nan() => 1_000_000,
        f64::INFINITY => 999_999,
        f64::NEG_INFINITY => -999_999,
        x => x as i64,
    };
    let values = ops::cast(&exact(x), DType::F64).unwrap().to_vec::<f64>().unwrap();
    let columns = x.extent(-1).unwrap().max(1);
    let rows = values.chunks(columns).map(|row| {
        let mut order: Vec<i64> = (0..row.len() as i64).collect();
        let sign = if descending { -1 } else { 1 };
        order.sort_by_key(|at| sign * rank(row[*at as usize]));
        order
    });
    rows.flatten().collect()
}

#[test]
fn errors_name_the_dim() {
    for device in devices() {
        let x = numbered(&device, &[2, 3], DType::F32, 1.0);
        assert_error(ops::cumsum(&x, 2), "has no dim 2");
        assert_error(ops::argsort(&x, -3, false), "has no dim -3");
        let scalar = ops::sum(&x, &[0, 1]).unwrap();
        assert_error(ops::cumsum(&scalar, 0), "has no dim");
        let indices = ops::argsort(&x, 0, false).unwrap();
        assert_error(ops::argsort(&indices, 0, false), "; the op is `");
    }
}
