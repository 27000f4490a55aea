//! Sums, means, maxima and minima on every device, compared with f64 on the CPU.

use crate::devices::{assert_close, devices, exact, numbered, rounding, values};
use meshgrad_runtime::{DType, Device, Result, Tensor, ops};

type Op = fn(&Tensor, &[isize]) -> Result<Tensor>;

const OPS: [Op; 4] = [ops::sum, ops::mean, ops::max, ops::min];

/// All subsets of up to three dims.
const DIMS: [&[isize]; 8] = [&[], &[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]];

/// Rows that are whole vectors or not, long rows and long columns, strided and empty tensors.
fn operands(device: &Device, dtype: DType) -> Vec<Tensor> {
    let shapes = [[2, 3, 64], [3, 5, 7], [1, 1, 1], [2, 1100, 8], [1, 2, 20_001], [2, 0, 3]];
    let numbered = |shape: &[usize]| numbered(device, shape, dtype, 1.0);
    let mut all: Vec<Tensor> = shapes.iter().map(|shape| numbered(shape)).collect();
    all.push(numbered(&[6, 4, 8]).transpose(0, 2).unwrap());
    all.push(numbered(&[6, 4, 8]).permute(&[1, 2, 0]).unwrap());
    all.push(numbered(&[6, 5, 9]).slice(2, 1..9).unwrap());
    all.push(numbered(&[6, 1, 8]).broadcast_to(&[6, 3, 8]).unwrap());
    all.push(numbered(&[3, 3, 8]).slice(0, 1..3).unwrap());
    all
}

#[test]
fn any_dims_of_any_layout() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for x in operands(&device, dtype) {
                for dims in DIMS {
                    check(&x, dims, dtype);
                }
            }
        }
    }
}

fn check(x: &Tensor, dims: &[isize], dtype: DType) {
    eprintln!("{x} over {dims:?}");
    // The tolerance allows the error of an f32 sum of thousands of elements, or one rounding to
    // bf16.
    let unit = if dtype == DType::F32 { 1024.0 } else { 0.05 };
    for op in OPS {
        let y = op(x, dims).unwrap();
        assert_eq!(y.dtype(), dtype);
        assert_close(&y, &op(&exact(x), dims).unwrap(), rounding(dtype), unit);
    }
    // Extremes are exact.
    for op in [ops::max as Op, ops::min] {
        assert_eq!(values(&op(x, dims).unwrap()), values(&op(&exact(x), dims).unwrap()));
    }
}

#[test]
fn nan_propagates_and_empty_extremes_are_infinite() {
    for device in devices() {
        let mut elements = vec![1.0f32; 600];
        elements[250] = f32::NAN;
        let x = Tensor::from_slice(&device, &[3, 200], &elements).unwrap();
        for op in OPS {
            let rows = op(&x, &[1]).unwrap().to_vec::<f32>().unwrap();
            let nan: Vec<bool> = rows.iter().map(|x| x.is_nan()).collect();
            assert_eq!(nan, [false, true, false]);
            let columns = op(&x, &[0]).unwrap().to_vec::<f32>().unwrap();
            assert!(columns.iter().position(|x| x.is_nan()) == Some(50));
        }

        // In the first access of a row or a column, and in the remainder.
        for extents in [[1, 9, 1], [2, 33, 1], [1, 9, 4]] {
            for place in [0, 8] {
                let mut elements = vec![1.0f32; extents.iter().product()];
                elements[place * extents[2]] = f32::NAN;
                let x = Tensor::from_slice(&device, &extents, &elements).unwrap();
                for op in OPS {
                    let results = op(&x, &[1]).unwrap().to_vec::<f32>().unwrap();
                    let nan: Vec<bool> = results.iter().map(|x| x.is_nan()).collect();
                    assert!(nan[0] && !nan[1..].contains(&true), "{extents:?} {place}");
                }
            }
        }

        let none = Tensor::from_slice::<f32>(&device, &[2, 0], &[]).unwrap();
        let of = |op: Op| op(&none, &[1]).unwrap().to_vec::<f32>().unwrap()[1];
        assert_eq!((of(ops::sum), of(ops::max)), (0.0, f32::NEG_INFINITY));
        assert_eq!(of(ops::min), f32::INFINITY);
        assert!(of(ops::mean).is_nan());
    }
}
