use super::*;
use crate::{Device, assert_error, ops};

fn numbered(device: &Device, shape: &[usize], step: f64, dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count).map(|i| ((i + 1) as f64 * step).sin()).collect();
    ops::cast(&Tensor::from_slice(device, shape, &values).unwrap(), dtype).unwrap()
}

fn values(x: &Tensor) -> Vec<f64> {
    ops::cast(x, DType::F64).unwrap().to_vec().unwrap()
}

fn indices(device: &Device, shape: &[usize], extent: usize, dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let elements: Vec<i64> = (0..count).map(|i| ((i * i * 7 + i / 2) % extent) as i64).collect();
    ops::cast(&Tensor::from_slice(device, shape, &elements).unwrap(), dtype).unwrap()
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    values(a).iter().zip(values(b)).map(|(a, b)| a * b).sum()
}

/// The coordinates of element `at` of a tensor of `shape`; the inverse of [`place`].
fn coordinates(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut coordinates: Vec<usize> = shape
        .iter()
        .rev()
        .map(|extent| {
            let coordinate = at % extent;
            at /= extent;
            coordinate
        })
        .collect();
    coordinates.reverse();
    coordinates
}

fn place(coordinates: &[usize], shape: &[usize]) -> usize {
    coordinates.iter().zip(shape).fold(0, |place, (c, extent)| place * extent + c)
}

/// concat(split(x)) == x along any dim, for contiguous and transposed x, and with empty parts.
#[test]
fn concat_undoes_split() {
    let device = Device::cpu();
    for dtype in [DType::F64, DType::BF16, DType::I64, DType::Bool] {
        let x = ops::cast(&numbered(&device, &[7, 300, 11], 0.3, DType::F64), dtype).unwrap();
        for x in [x.clone(), x.transpose(0, 2).unwrap()] {
            for dim in 0..3 {
                let extent = x.shape()[dim];
                let sizes = [1, 0, extent - 4, 3];
                let parts = split(&x, &sizes, dim as isize).unwrap();
                let again = concat(&parts.iter().collect::<Vec<_>>(), dim as isize - 3).unwrap();
                assert_eq!(again.shape(), x.shape());
                assert_eq!(values(&again), values(&x));
            }
        }
    }
    let empty = numbered(&device, &[0, 3], 0.1, DType::F32);
    assert_eq!(concat(&[&empty, &empty], 1).unwrap().shape().to_vec(), [0, 6]);
}

#[test]
fn concat_and_split_reject_mismatched_operands() {
    let device = Device::cpu();
    let (a, b) =
        (numbered(&device, &[2, 3], 0.1, DType::F32), numbered(&device, &[2, 4], 0.1, DType::F32));
    assert_eq!(
        concat(&[&a, &b], 0).unwrap_err().to_string(),
        "concat: all extents except those of dim 0 must be equal; the op is `first: T[*], other: T[*] -> y: T[*]` \
         and was given first f32[2, 3], other f32[2, 4]"
    );
    assert!(concat(&[&a, &b], 1).is_ok());
    assert_error(concat(&[], 0), "concat: needs at least one tensor");
    let c = ops::cast(&a, DType::F64).unwrap();
    assert_error(concat(&[&a, &c], 0), "; the op is `");
    assert_error(concat(&[&a], 2), "has no dim");
    assert_error(split(&a, &[1, 1], 1), "split: sizes [1, 1] must sum to the extent of dim 1");
    assert_error(split(&a, &[usize::MAX, 4], 1), "must sum to the extent of dim 1");
}

#[test]
fn index_select_equals_a_loop_and_its_gradient_is_its_adjoint() {
    let device = Device::cpu();
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        for shape in [[3, 4, 5], [1, 300, 70], [600, 2, 40]] {
            let x = numbered(&device, &shape, 0.3, dtype).transpose(0, 1).unwrap();
            for dim in 0..3 {
                for m in [0, 1, 17] {
                    let shape = x.shape();
                    let ids = indices(&device, &[m], shape[dim], DType::U32);
                    let y = index_select(&x, dim as isize, &ids).unwrap();
                    let (picked, from, id) = (values(&y), values(&x), ids.to_vec::<u32>().unwrap());
                    for (at, value) in picked.iter().enumerate() {
                        let mut c = coordinates(at, y.shape());
                        c[dim] = id[c[dim]] as usize;
                        assert_eq!(*value, from[place(&c, shape)]);
                    }

                    let dy = numbered(&device, y.shape(), 0.7, dtype);
                    let dx = index_select_grad(&dy, dim as isize, &ids, shape[dim]).unwrap();
                    assert_eq!(dx.shape(), shape);
                    let mut expected = vec![0.0; x.elements()];
                    for (at, value) in values(&dy).iter().enumerate() {
                        let mut c = coordinates(at, y.shape());
                        c[dim] = id[c[dim]] as usize;
                        expected[place(&c, shape)] += value;
                    }
                    assert_rounded(&dx, &expected, dtype);
                }
            }
        }
    }
}

fn assert_rounded(actual: &Tensor, expected: &[f64], dtype: DType) {
    // The error of the sum, and the error of rounding it to `dtype`.
    let (of_sum, of_result) = match dtype {
        DType::F64 => (1e-12, 0.0),
        DType::F32 => (1e-5, 0.0),
        _ => (1e-5, 1.0 / 256.0),
    };
    for (actual, expected) in values(actual).iter().zip(expected) {
        let allowed = of_sum + of_result * expected.abs();
        assert!((actual - expected).abs() <= allowed, "{actual} is not {expected}");
    }
}

/// The index tensors are larger or smaller than the source in the indexed dim, and equal or smaller
/// in the others.
#[test]
fn gather_and_scatter_add_equal_loops() {
    let device = Device::cpu();
    let cases = [
        (vec![5], 0, vec![9]),
        (vec![4, 3], 0, vec![6, 2]),
        (vec![4, 3], 1, vec![3, 7]),
        (vec![3, 4, 5], 1, vec![2, 9, 5]),
        (vec![3, 4, 5], 2, vec![3, 4, 1]),
        (vec![300, 200], 1, vec![300, 3]),
        (vec![2, 3], 1, vec![0, 4]),
        (vec![70, 300], 0, vec![90, 299]),
    ];
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        for (shape, dim, index_shape) in &cases {
            let dim = *dim;
            let reversed: Vec<usize> = shape.iter().rev().copied().collect();
            let order: Vec<usize> = (0..shape.len()).rev().collect();
            let x = numbered(&device, &reversed, 0.3, dtype).permute(&order).unwrap();
            let index = indices(&device, index_shape, shape[dim], DType::I32);
            let src = numbered(&device, index_shape, 0.7, dtype);

            let y = gather(&x, dim as isize, &index).unwrap();
            let sum = scatter_add(shape, dim as isize, &index, &src).unwrap();

            let (from, ids) = (values(&x), index.to_vec::<i32>().unwrap());
            let (mut picked, mut expected) = (Vec::new(), vec![0.0; x.elements()]);
            for (at, value) in values(&src).iter().enumerate() {
                let mut c = coordinates(at, index_shape);
                c[dim] = ids[at] as usize;
                picked.push(from[place(&c, shape)]);
                expected[place(&c, shape)] += value;
            }
            assert_eq!(values(&y), picked);
            assert_rounded(&sum, &expected, dtype);
            if dtype == DType::F64 {
                assert!((dot(&y, &src) - dot(&x, &sum)).abs() < 1e-9);
            }
        }
    }
}

#[test]
fn indices_are_checked() {
    let device = Device::cpu();
    let x = numbered(&device, &[2, 3], 0.1, DType::F32);
    let ids = Tensor::from_slice(&device, &[2], &[0i64, -1]).unwrap();
    assert_eq!(
        index_select(&x, 1, &ids).unwrap_err().to_string(),
        "index_select: index -1 at position 1 is outside of 0..3"
    );
    let index = Tensor::from_slice(&device, &[1, 2], &[0i64, 3]).unwrap();
    assert_error(gather(&x, 1, &index), "gather: index 3 at position 1 is outside of 0..3");
    let src = numbered(&device, &[1, 2], 0.1, DType::F32);
    let expected = "scatter_add: index 3 at position 1 is outside of 0..3";
    assert_error(scatter_add(&[2, 3], 1, &index, &src), expected);
    let wide = Tensor::from_slice(&device, &[1, 4], &[0i64; 4]).unwrap();
    assert_error(gather(&x, 0, &wide), "; the op is `");
    let dy = numbered(&device, &[2, 3], 0.1, DType::F32);
    assert_error(index_select_grad(&dy, 1, &ids, 3), "; the op is `");
}

#[test]
fn bits_do_not_depend_on_threads() {
    let bits = |threads: usize| {
        let device = Device::cpu_with_threads(threads).unwrap();
        device.run(|| {
            let ids = indices(&device, &[5000], 33, DType::I64);
            let dy = numbered(&device, &[5000, 600], 0.3, DType::F32);
            let select = index_select_grad(&dy, 0, &ids, 33).unwrap();
            let index = indices(&device, &[5000, 600], 20, DType::I64);
            let scatter = scatter_add(&[5000, 20], 1, &index, &dy).unwrap();
            [select, scatter].map(|x| values(&x).into_iter().map(f64::to_bits).collect::<Vec<_>>())
        })
    };
    assert_eq!(bits(1), bits(3));
}
