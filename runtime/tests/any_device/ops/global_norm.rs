//! The global norm of gradients and clipping on every device, compared with f64.

use crate::devices::{devices, numbered, values};
use approx::assert_relative_eq;
use meshgrad_runtime::{DType, Tensor, ops};

/// Covers tensors of several dtypes and layouts, some of them empty.
#[test]
fn norms_of_many_tensors() {
    for device in devices() {
        let of = |shape: &[usize], dtype| numbered(&device, shape, dtype, 1.0);
        let mut tensors = vec![
            of(&[20_001], DType::F32),
            of(&[20, 30], DType::F32).transpose(0, 1).unwrap(),
            of(&[0], DType::F32),
            of(&[300], DType::BF16).slice(0, 1..300).unwrap(),
            of(&[1100], DType::BF16),
            of(&[9001], DType::F32).slice(0, 1..9001).unwrap(),
        ];
        tensors.extend((0..20).map(|i| of(&[i], DType::F32)));
        let squares: f64 = tensors.iter().flat_map(values).map(|x| x * x).sum();
        let tensors: Vec<&Tensor> = tensors.iter().collect();
        let norm = ops::global_norm(&tensors).unwrap();
        let found = f64::from(norm.item::<f32>().unwrap());
        assert_relative_eq!(found, squares.sqrt(), max_relative = 1e-7);

        let nothing = ops::global_norm(&tensors[2..3]).unwrap();
        assert_eq!(nothing.item::<f32>().unwrap(), 0.0);
        assert!(ops::global_norm(&[]).is_err());

        // The squares of the first overflow f32.
        for (x, expected) in [([3e30f32, 4e30], 5e30), ([1.0, f32::NAN], f32::NAN)] {
            let x = Tensor::from_slice(&device, &[2], &x).unwrap();
            let found = ops::global_norm(&[&x]).unwrap().item::<f32>().unwrap();
            assert!(found == expected || found.is_nan() && expected.is_nan(), "{found}");
        }
    }
}

/// GPU kernels do not compute in f64.
#[test]
fn sums_of_squares_are_f64_on_a_cpu() {
    for device in devices() {
        let x = numbered(&device, &[300], DType::BF16, 1.0);
        let squares: f64 = values(&x).iter().map(|x| x * x).sum();
        let sum = ops::sum_of_squares(&[&x]).unwrap();
        let dtype = match device.is_gpu() {
            true => DType::F32,
            false => DType::F64,
        };
        assert_eq!(sum.dtype(), dtype);
        assert_relative_eq!(values(&sum)[0], squares, max_relative = 3e-7);
    }
}

/// Scaled gradients have the mean norm or the limit, whichever is smaller. If the mean norm is not
/// finite, the scale is NaN.
#[test]
fn clipping() {
    for device in devices() {
        let scalar = |x: f32| Tensor::scalar(&device, x).unwrap();
        let clip = |norm: f32, weight: f32, max_norm: f64| {
            let (norm, weight) = (scalar(norm), scalar(weight));
            let (scale, mean) = ops::clip_scale(&norm, &weight, max_norm).unwrap();
            [scale, mean].map(|x| x.item::<f32>().unwrap())
        };
        for unlimited in [0.0, -1.0, f64::INFINITY, 6.0] {
            assert_eq!(clip(50.0, 10.0, unlimited), [0.1, 5.0]);
        }
        let [scale, mean] = clip(50.0, 10.0, 1.0);
        assert_eq!((scale, mean), ((1.0 / (5.0 + 1e-6) / 10.0) as f32, 5.0));
        for (norm, weight) in [(f32::NAN, 1.0), (f32::INFINITY, 1.0), (1.0, 0.0)] {
            for max_norm in [0.0, 1.0] {
                let [scale, mean] = clip(norm, weight, max_norm);
                assert!(scale.is_nan() && !mean.is_finite());
            }
        }
        assert!(ops::clip_scale(&scalar(1.0), &scalar(1.0), f64::NAN).is_err());
    }
}
