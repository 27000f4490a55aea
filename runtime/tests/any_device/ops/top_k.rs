//! argmax, argmin and top-k on every device equal those of the CPU bit for bit.

use crate::devices::{assert_error, devices, reference, values};
use meshgrad_runtime::{DType, Device, Tensor, ops};

/// Integers with many ties, some NaNs and infinities, and negative zeros.
fn coarse(device: &Device, shape: &[usize], dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| match i % 613 {
        100 => f32::NAN,
        200 => f32::INFINITY,
        300 => f32::NEG_INFINITY,
        400 => -0.0,
        _ => ((i * i * 31 + i) % 97) as f32 - 48.0,
    };
    let elements: Vec<f32> = (0..count).map(value).collect();
    let x = Tensor::from_slice(reference(), shape, &elements).unwrap();
    ops::to_device(&ops::cast(&x, dtype).unwrap(), device).unwrap()
}

/// A copy of the tensor on the CPU.
fn on_cpu(x: &Tensor) -> Tensor {
    ops::to_device(x, reference()).unwrap()
}

fn places(x: &Tensor) -> Vec<i64> {
    x.to_vec().unwrap()
}

#[test]
fn argmax_and_argmin() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            let shapes = [
                [1, 1, 1],
                [3, 17, 2],
                [2, 1100, 3],
                [0, 4, 2],
                [2, 3, 9001],
                [1, 1, 9001], // a row in chunks that ends within a vector
                [1, 3, 64],   // vectors of a warp
            ];
            for shape in shapes {
                let x = coarse(&device, &shape, dtype);
                for (dim, extent) in (0..).zip(shape) {
                    if extent == 0 {
                        continue;
                    }
                    eprintln!("{x} along {dim}");
                    let largest = ops::argmax(&x, dim).unwrap();
                    let smallest = ops::argmin(&x, dim).unwrap();
                    assert_eq!(largest.dtype(), DType::I64);
                    let x = on_cpu(&x);
                    assert_eq!(places(&largest), places(&ops::argmax(&x, dim).unwrap()));
                    assert_eq!(places(&smallest), places(&ops::argmin(&x, dim).unwrap()));
                }
            }
        }
    }
}

#[test]
fn top_k_elements() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            let shapes = [
                (0, 3, 1),
                (1, 1, 1),
                (3, 17, 17),
                (70, 30, 5),
                (2, 300, 5), // tiles of two warps
                (1, 1024, 1024),
                (2, 1030, 7),
                (2, 2100, 1500),
                (1, 8300, 8300),
            ];
            for (rows, columns, k) in shapes {
                check_top(&coarse(&device, &[rows, columns], dtype), k);
            }
            let transposed = coarse(&device, &[40, 3], dtype).transpose(0, 1).unwrap();
            check_top(&transposed, 4);
        }
        check_top(&coarse(&device, &[1, 20_001], DType::BF16), 50);
    }
}

fn check_top(x: &Tensor, k: usize) {
    eprintln!("{k} of {x}");
    let (top, found) = ops::top_k(x, k).unwrap();
    let (expected, expected_places) = ops::top_k(&on_cpu(x), k).unwrap();
    assert_eq!(places(&found), places(&expected_places));
    for (found, expected) in values(&top).into_iter().zip(values(&expected)) {
        assert!(found == expected || (found.is_nan() && expected.is_nan()));
    }
}

#[test]
fn empty_dims() {
    for device in devices() {
        let x = coarse(&device, &[2, 0], DType::F32);
        assert_error(ops::argmax(&x, 1), "argmax: dim 1 of shape");
        assert_error(ops::top_k(&x, 1), "top_k: k = 1 is not in 1..=0");
        assert_eq!(ops::argmin(&x, 0).unwrap().shape().to_vec(), [0]);
    }
}
