//! Ops that fill, copy and cast, on every device, compared with the CPU.

use crate::devices::{assert_close, devices, gpu, reference};
use meshgrad_runtime::{Bool, DType, Device, Element, IndexOutOfRange, Kind, Shape, Tensor, ops};

/// A tensor of any dtype. Adjacent elements differ, except in bool.
fn elements(shape: &[usize], dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<i64> = (0..count as i64).map(|i| i * 37 % 119 - 40).collect();
    let values = Tensor::from_slice(reference(), shape, &values).unwrap();
    ops::cast(&values, dtype).unwrap()
}

fn on(device: &Device, x: &Tensor) -> Tensor {
    ops::to_device(x, device).unwrap()
}

/// The bytes of the elements, in row-major order.
fn bits(x: &Tensor) -> Vec<u8> {
    fn of<T: Element>(x: &Tensor) -> Vec<u8> {
        let values = x.to_vec::<T>().unwrap();
        bytemuck::cast_slice(&values).to_vec()
    }
    match x.dtype() {
        DType::F64 => of::<f64>(x),
        DType::F32 => of::<f32>(x),
        DType::BF16 => of::<half::bf16>(x),
        DType::F16 => of::<half::f16>(x),
        DType::I64 => of::<i64>(x),
        DType::I32 => of::<i32>(x),
        DType::U32 => of::<u32>(x),
        DType::U8 => of::<u8>(x),
        _ => of::<Bool>(x),
    }
}

/// Views of a [6, 20, 33] tensor: contiguous, transposed, strided, broadcast, empty, in rows of 16
/// elements.
fn views(x: &Tensor) -> Vec<Tensor> {
    let transposed = |a, b| x.transpose(a, b).unwrap();
    vec![
        x.clone(),
        transposed(1, 2),
        transposed(0, 2),
        transposed(0, 1),
        x.slice(2, 1..30).unwrap(),
        transposed(1, 2).slice(1, 3..20).unwrap(),
        x.slice(0, 2..2).unwrap(),
        x.slice(1, 4..5).unwrap().broadcast_to(&[6, 9, 33]).unwrap(),
        ops::reshape(x, &[6, 15, 44]).unwrap().slice(2, 4..20).unwrap(),
        // No two dims can be merged.
        ops::reshape(x, &[2, 3, 4, 5, 3, 11]).unwrap().permute(&[1, 3, 5, 0, 2, 4]).unwrap(),
    ]
}

/// A copy has the same bits, for every layout and dtype.
#[test]
fn copies_keep_bits() {
    for device in devices() {
        for dtype in DType::ALL {
            let x = elements(&[6, 20, 33], dtype);
            let on_device = on(&device, &x);
            for (expected, view) in views(&x).iter().zip(views(&on_device)) {
                let copy = ops::copy(&view).unwrap();
                assert!(copy.is_contiguous());
                assert_eq!(bits(&copy), bits(expected), "{view:?} on {device}");

                let into = Tensor::zeros(&device, view.shape(), dtype, Kind::Cache).unwrap();
                ops::copy_into(&view, &into).unwrap();
                assert_eq!(bits(&into), bits(expected), "{view:?} on {device}");
            }
        }
    }
}

#[test]
fn casts_equal_those_of_the_cpu() {
    for device in devices() {
        for from in DType::ALL {
            let x = elements(&[7, 5], from);
            let on_device = on(&device, &x);
            for to in DType::ALL {
                let expected = ops::cast(&x.transpose(0, 1).unwrap(), to).unwrap();
                let found = ops::cast(&on_device.transpose(0, 1).unwrap(), to).unwrap();
                assert_eq!(bits(&found), bits(&expected), "{from} to {to} on {device}");
            }
        }
    }
}

/// Values that are out of range in other formats, halfway between two values of one, NaN and
/// infinities.
#[test]
fn casts_of_special_values_equal_those_of_the_cpu() {
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        0.49,
        255.9,
        256.0,
        1e10,
        -1e20,
        65_519.0,
        65_520.0,
        1e-7,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1.001_953_125,
        2.5e-8,
    ];
    let integers = [0i64, 1, -1, 3, 255, 256, -70_000, 1 << 31, i64::MAX, i64::MIN, 5 << 33];
    for device in devices() {
        for from in DType::ALL {
            let x = match from.is_float() {
                true => Tensor::from_slice(reference(), &[floats.len()], &floats),
                false => Tensor::from_slice(reference(), &[integers.len()], &integers),
            };
            let x = ops::cast(&x.unwrap(), from).unwrap();
            let on_device = on(&device, &x);
            for to in DType::ALL {
                let (found, expected) = (ops::cast(&on_device, to), ops::cast(&x, to).unwrap());
                assert_close(&found.unwrap(), &expected, 0.0, 0.0);
            }
        }
    }
}

/// Via f64, integers above 2^53 would be rounded twice.
#[test]
fn integers_are_rounded_once() {
    let (one, step) = (1i64 << 60, 1i64 << 37); // f32s above 2^60 are 2^37 apart
    let half = step / 2;
    let cases = [
        (one + half - 1, one),
        (one + half, one), // to even
        (one + half + 1, one + step),
        (-one - half - 1, -one - step),
        (one + step + half, one + 2 * step),
        (one + step + half - 1, one + step),
        ((1 << 24) + 1, 1 << 24),
        (i64::MIN, i64::MIN),
    ];
    let [x, expected] = [0, 1].map(|it| cases.map(|case| [case.0, case.1][it]));
    for device in devices() {
        let x = Tensor::from_slice(&device, &[cases.len()], &x).unwrap();
        let y = ops::cast(&x, DType::F32).unwrap().to_vec::<f32>().unwrap();
        let exact: Vec<i64> = y.iter().map(|y| *y as i64).collect();
        assert_eq!(exact, expected, "on {device}");
    }
}

#[test]
fn fills_of_every_dtype() {
    for device in devices() {
        for dtype in DType::ALL {
            for count in [0, 1, 7, 16, 77] {
                let expected = ops::full(reference(), &[count], dtype, 3.0).unwrap();
                let full = ops::full(&device, &[count], dtype, 3.0).unwrap();
                assert_eq!(bits(&full), bits(&expected), "{dtype} on {device}");

                let whole = Tensor::zeros(&device, &[count + 2], dtype, Kind::Cache).unwrap();
                let part = whole.slice(0, 1..count + 1).unwrap();
                ops::fill_into(&part, 3.0).unwrap();
                assert_eq!(bits(&part), bits(&expected), "{dtype} on {device}");
                let around = [whole.slice(0, 0..1), whole.slice(0, count + 1..count + 2)];
                for outside in around {
                    assert!(bits(&outside.unwrap()).iter().all(|byte| *byte == 0));
                }
            }
        }
    }
}

#[test]
fn gradients_of_slices_are_padded_with_zeros() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16, DType::I64] {
            let dy = elements(&[4, 8, 6], dtype);
            for (dim, range) in [(0, 3..7), (1, 1..9), (2, 2..8)] {
                let mut extents = [4, 8, 6];
                extents[dim] = 11;
                let shape = Shape::new(&extents).unwrap();
                let expected = ops::slice_grad(&dy, &shape, dim, range.clone()).unwrap();
                let on_device = on(&device, &dy);
                let dx = ops::slice_grad(&on_device, &shape, dim, range).unwrap();
                assert_eq!(bits(&dx), bits(&expected), "dim {dim} on {device}");
            }
            let transposed = dy.transpose(0, 2).unwrap();
            let shape = Shape::new(&[6, 8, 9]).unwrap();
            let expected = ops::slice_grad(&transposed, &shape, 2, 5..9).unwrap();
            let on_device = on(&device, &dy).transpose(0, 2).unwrap();
            let dx = ops::slice_grad(&on_device, &shape, 2, 5..9).unwrap();
            assert_eq!(bits(&dx), bits(&expected), "on {device}");
        }
    }
}

#[test]
fn concats_of_every_dtype_and_dim() {
    for device in devices() {
        for dtype in DType::ALL {
            let x = elements(&[5, 12, 9], dtype);
            for dim in 0..3 {
                let other = x.slice(dim, 1..4).unwrap();
                let none = x.slice(dim, 2..2).unwrap();
                let expected = ops::concat(&[&x, &none, &other, &x], dim).unwrap();
                let x = on(&device, &x);
                let other = x.slice(dim, 1..4).unwrap();
                let none = x.slice(dim, 2..2).unwrap();
                let found = ops::concat(&[&x, &none, &other, &x], dim).unwrap();
                assert_eq!(bits(&found), bits(&expected), "{dtype}, dim {dim} on {device}");
            }
        }
    }
}

/// Rows are copied into a cache at a position given by a tensor. Nothing else is written.
#[test]
fn copies_at_a_position() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16, DType::U8] {
            for inner in [1, 3, 16] {
                let x = elements(&[2, 3, inner], dtype);
                let empty = || Tensor::zeros(&device, &[2, 8, inner], dtype, Kind::Cache).unwrap();
                let on_device = on(&device, &x);
                for start in [5, 0, 2] {
                    let into = empty();
                    let at = Tensor::from_slice(&device, &[1], &[start as i64]).unwrap();
                    ops::copy_at_into(&on_device, &into, &at).unwrap();
                    let rows = into.slice(1, start..start + 3).unwrap();
                    assert_eq!(bits(&rows), bits(&x), "{dtype} at {start} on {device}");
                    for around in [into.slice(1, 0..start), into.slice(1, start + 3..8)] {
                        assert!(bits(&around.unwrap()).iter().all(|byte| *byte == 0));
                    }
                }
                let into = empty();
                let transposed = ops::copy(&x.transpose(0, 2).unwrap()).unwrap();
                let transposed = on(&device, &transposed).transpose(0, 2).unwrap();
                let at = Tensor::from_slice(&device, &[1], &[4i64]).unwrap();
                ops::copy_at_into(&transposed, &into, &at).unwrap();
                assert_eq!(bits(&into.slice(1, 4..7).unwrap()), bits(&x));
            }
        }
    }
}

/// On a GPU, the next read reports an out-of-range position, and the cache is unchanged.
#[test]
fn out_of_range_positions_are_reported() {
    let Some(gpu) = gpu() else { return };
    let into = Tensor::zeros(&gpu, &[2, 8, 4], DType::F32, Kind::Cache).unwrap();
    let x = ops::full(&gpu, &[2, 3, 4], DType::F32, 1.0).unwrap();
    for start in [6i64, -1] {
        let at = Tensor::from_slice(&gpu, &[1], &[start]).unwrap();
        ops::copy_at_into(&x, &into, &at).unwrap();
        let error = into.to_vec::<f32>().unwrap_err();
        let told = error.details::<IndexOutOfRange>().unwrap();
        assert_eq!((told.op, told.index, told.extent), ("copy_at_into", start, 6));
        assert_eq!(into.to_vec::<f32>().unwrap(), [0.0; 64]);
    }
}
