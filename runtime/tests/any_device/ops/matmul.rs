//! Matrix products on every device, compared with f64 on the CPU.

use crate::devices::{assert_close, devices, exact, numbered, reference, rounding};
use meshgrad_runtime::{Accumulator, DType, Device, Tensor, ops};

const FLOATS: [DType; 2] = [DType::F32, DType::BF16];

/// (m, n, k): whole and partial tiles, one row, k = 0, no elements, and k so large that it is
/// split.
const EXTENTS: [[usize; 3]; 8] = [
    [64, 64, 32],
    [33, 65, 17],
    [1, 40, 24],
    [3, 5, 0],
    [0, 4, 4],
    [130, 136, 72],
    [1, 24, 1030],
    [40, 9, 777],
];

/// The tolerance of a sum of `k` products, relative to its magnitude.
fn tolerance(dtype: DType, k: usize) -> f64 {
    2.0 * rounding(dtype) + 1e-6 * (k as f64)
}

/// A contiguous operand, and a transposed view.
fn layouts(device: &Device, rows: usize, columns: usize, dtype: DType) -> [Tensor; 2] {
    let straight = numbered(device, &[rows, columns], dtype, 1.0);
    let transposed = numbered(device, &[columns, rows], dtype, 1.0);
    [straight, transposed.transpose(0, 1).unwrap()]
}

#[test]
fn products_of_all_transposes() {
    for device in devices() {
        for (dtype, [m, n, k]) in FLOATS.into_iter().flat_map(|d| EXTENTS.map(|e| (d, e))) {
            for a in layouts(&device, m, k, dtype) {
                for b in layouts(&device, k, n, dtype) {
                    eprintln!("{a:?} times {b:?}");
                    let c = ops::matmul(&a, &b).unwrap();
                    let expected = ops::matmul(&exact(&a), &exact(&b)).unwrap();
                    assert_eq!(c.dtype(), dtype);
                    assert_close(&c, &expected, tolerance(dtype, k), 1.0);
                }
            }
        }
    }
}

/// As many tiles as warpgroups need, all of them partial.
#[test]
fn products_of_warpgroups() {
    for device in devices() {
        for [a_is_transposed, b_is_transposed] in [[false, false], [false, true], [true, false]] {
            let a = batch(&device, [33, 40, 72], a_is_transposed);
            let b = batch(&device, [33, 72, 136], b_is_transposed);
            let c = ops::matmul(&a, &b).unwrap();
            let expected = ops::matmul(&exact(&a), &exact(&b)).unwrap();
            assert_close(&c, &expected, tolerance(DType::BF16, 72), 1.0);
        }
    }
}

/// Whole tiles, and more slices than buffers.
#[test]
fn products_of_warpgroups_with_a_long_sum() {
    for device in devices() {
        let a = batch(&device, [1, 128 * 17, 520], true);
        let b = batch(&device, [1, 520, 512], true);
        let c = ops::matmul(&a, &b).unwrap();
        let expected = ops::matmul(&exact(&a), &exact(&b)).unwrap();
        assert_close(&c, &expected, tolerance(DType::BF16, 520), 1.0);
    }
}

/// A batch of bf16 matrices, maybe stored transposed.
fn batch(device: &Device, [count, rows, columns]: [usize; 3], is_transposed: bool) -> Tensor {
    let stored = |rows, columns| numbered(device, &[count, rows, columns], DType::BF16, 1.0);
    match is_transposed {
        true => stored(columns, rows).transpose(1, 2).unwrap(),
        false => stored(rows, columns),
    }
}

#[test]
fn batches_and_views() {
    for device in devices() {
        for dtype in FLOATS {
            let a = numbered(&device, &[2, 3, 10, 12], dtype, 1.0);
            let b = numbered(&device, &[12, 9], dtype, 1.0);
            let everywhere = b.broadcast_to(&[2, 3, 12, 9]).unwrap();
            let heads = numbered(&device, &[2, 10, 3, 12], dtype, 1.0);
            let heads = heads.transpose(1, 2).unwrap();
            let column = a.slice(3, 1..2).unwrap().broadcast_to(&[2, 3, 10, 12]).unwrap();
            for (a, b) in [(&a, &everywhere), (&heads, &everywhere), (&column, &everywhere)] {
                let c = ops::matmul(a, b).unwrap();
                let expected = ops::matmul(&exact(a), &exact(b)).unwrap();
                assert_close(&c, &expected, tolerance(dtype, 12), 1.0);
            }
        }
    }
}

#[test]
fn linear_layers_and_their_gradients() {
    for device in devices() {
        for dtype in FLOATS {
            let x = numbered(&device, &[3, 11, 40], dtype, 1.0);
            let w = numbered(&device, &[24, 40], dtype, 1.0);
            let (exact_x, exact_w) = (exact(&x), exact(&w));
            let y = ops::linear(&x, &w).unwrap();
            let expected = ops::linear(&exact_x, &exact_w).unwrap();
            assert_close(&y, &expected, tolerance(dtype, 40), 1.0);

            let dy = ops::cos(&y).unwrap();
            let dx = ops::linear_grad_input(&dy, &w).unwrap();
            let expected = ops::linear_grad_input(&exact(&dy), &exact_w).unwrap();
            assert_close(&dx, &expected, tolerance(dtype, 24), 1.0);

            let mut dw = Accumulator::new(&device, *w.shape(), DType::F32).unwrap();
            let mut exact_dw = Accumulator::new(reference(), *w.shape(), DType::F64).unwrap();
            for _ in 0..2 {
                ops::linear_grad_weight_into(&dy, &x, &mut dw).unwrap();
                ops::linear_grad_weight_into(&exact(&dy), &exact_x, &mut exact_dw).unwrap();
                assert_close(dw.total().unwrap(), exact_dw.total().unwrap(), 1e-4, 1.0);
            }
        }
    }
}

#[test]
fn products_accumulate() {
    for device in devices() {
        for dtype in FLOATS {
            let a = numbered(&device, &[2, 20, 16], dtype, 1.0);
            let b = numbered(&device, &[2, 16, 12], dtype, 1.0);
            let shape = *ops::matmul(&a, &b).unwrap().shape();
            let mut into = Accumulator::new(&device, shape, DType::F32).unwrap();
            for times in 1..3 {
                ops::matmul_into(&a, &b, &mut into).unwrap();
                let product = ops::matmul(&exact(&a), &exact(&b)).unwrap();
                let expected = ops::affine(&product, f64::from(times), 0.0).unwrap();
                assert_close(into.total().unwrap(), &expected, 1e-5, 1.0);
            }
        }
    }
}

/// Products with a split k are correct and deterministic, including batches and strided rows.
#[test]
fn split_k_products() {
    for device in devices() {
        for dtype in FLOATS {
            let a = numbered(&device, &[2, 3, 1600], dtype, 1.0);
            let a = a.slice(2, 5..1505).unwrap();
            let b = numbered(&device, &[2, 1500, 20], dtype, 1.0);
            for n in [20, 13] {
                let b = b.slice(2, 0..n).unwrap();
                let expected = ops::matmul(&exact(&a), &exact(&b)).unwrap();
                let c = ops::matmul(&a, &b).unwrap();
                assert_close(&c, &expected, tolerance(dtype, 1500), 1.0);
                let again = ops::matmul(&a, &b).unwrap();
                assert_eq!(crate::devices::values(&c), crate::devices::values(&again));

                let mut into = Accumulator::new(&device, *c.shape(), DType::F32).unwrap();
                for times in 1..3 {
                    ops::matmul_into(&a, &b, &mut into).unwrap();
                    let expected = ops::affine(&expected, f64::from(times), 0.0).unwrap();
                    assert_close(into.total().unwrap(), &expected, 1e-4, 1.0);
                }
            }
        }
    }
}

/// One operand is a single row or column of a larger tensor. Some strides are odd, and some layouts
/// require a copy.
#[test]
fn single_rows_and_columns_of_views() {
    for device in devices() {
        for dtype in FLOATS {
            let table = numbered(&device, &[37, 3, 53], dtype, 1.0);
            let rows = table.slice(1, 1..2).unwrap();
            let row = rows.transpose(0, 1).unwrap().slice(1, 4..5).unwrap();
            let row = row.slice(2, 2..39).unwrap();
            let column = rows.slice(2, 7..8).unwrap().permute(&[1, 0, 2]).unwrap();
            let steps = rows.permute(&[1, 2, 0]).unwrap().slice(1, 3..40).unwrap();
            for (a, b) in [(&row, &column), (&column, &row), (&row, &steps), (&steps, &column)] {
                let c = ops::matmul(a, b).unwrap();
                let expected = ops::matmul(&exact(a), &exact(b)).unwrap();
                assert_close(&c, &expected, tolerance(dtype, 37), 1.0);
            }
        }
    }
}

/// With k = 0 a product is zero, and adds nothing to an accumulator.
#[test]
fn products_with_k_zero() {
    for device in devices() {
        for dtype in FLOATS {
            let [a, b] = [[2, 4, 0], [2, 0, 6]].map(|shape| numbered(&device, &shape, dtype, 1.0));
            let shape = *ops::matmul(&a, &b).unwrap().shape();
            let mut into = Accumulator::new(&device, shape, DType::F32).unwrap();
            ops::matmul_into(&a, &b, &mut into).unwrap();
            assert_eq!(crate::devices::values(into.total().unwrap()), [0.0; 48]);
            let [some, other] =
                [[2, 4, 5], [2, 5, 6]].map(|shape| numbered(&device, &shape, dtype, 1.0));
            ops::matmul_into(&some, &other, &mut into).unwrap();
            let before = crate::devices::values(into.total().unwrap());
            ops::matmul_into(&a, &b, &mut into).unwrap();
            assert_eq!(crate::devices::values(into.total().unwrap()), before);
        }
    }
}

/// Kernels count rows in signed 32-bit integers, so more rows are an error.
#[test]
fn more_rows_than_kernels_count() {
    let Some(gpu) = crate::devices::gpu() else {
        return;
    };
    let meta = Device::meta(gpu.properties());
    let tall = |rows| ops::full(&meta, &[rows, 1], DType::BF16, 0.0).unwrap();
    let most = i32::MAX as usize;
    assert!(ops::matmul(&tall(most), &tall(1)).is_ok());
    let rejected = ops::matmul(&tall(most + 1), &tall(1)).err().unwrap();
    let message = rejected.to_string();
    let expected = "gemm: m = 2147483648 is not in 0..=2147483647";
    assert!(message.contains(expected), "{message}");
}
