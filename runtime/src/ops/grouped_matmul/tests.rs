use super::*;
use crate::{DType, Device, GpuProperties, Kind, Properties, Shape, assert_error, ops};

fn numbered(device: &Device, shape: &[usize], step: f64, dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count).map(|i| ((i + 1) as f64 * step).sin()).collect();
    ops::cast(&Tensor::from_slice(device, shape, &values).unwrap(), dtype).unwrap()
}

fn offsets(device: &Device, ends: &[i64]) -> Tensor {
    Tensor::from_slice(device, &[ends.len()], ends).unwrap()
}

fn values(x: &Tensor) -> Vec<f64> {
    ops::cast(x, DType::F64).unwrap().to_vec().unwrap()
}

fn rows_of(x: &Tensor, ends: &[i64]) -> Tensor {
    x.slice(0, ends[0] as usize..ends[1] as usize).unwrap()
}

/// Offsets for 12 rows. Some groups are empty, and some rows belong to no group.
const ENDS: [&[i64]; 5] =
    [&[0, 3, 3, 10, 12], &[0, 0, 0, 0, 0], &[0, 12, 12, 12, 12], &[0, 5], &[0]];

/// A grouped product and its gradients equal a loop of matrix products over the groups, bit for
/// bit.
#[test]
fn grouped_matmul_equals_a_loop_over_groups() {
    let device = Device::cpu();
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        for ends in ENDS {
            let (c, i, o, g) = (12, 7, 5, ends.len() - 1);
            let x = numbered(&device, &[i, c], 0.3, dtype).transpose(0, 1).unwrap();
            let w = numbered(&device, &[g, i, o], 0.7, dtype).transpose(1, 2).unwrap();
            let dy = numbered(&device, &[c, o], 1.1, dtype);
            let at = offsets(&device, ends);

            let y = grouped_matmul_nt(&x, &w, &at).unwrap();
            let dx = grouped_matmul_grad_input(&dy, &w, &at).unwrap();
            let shape = Shape::new(&[g, o, i]).unwrap();
            let mut dw = Accumulator::new(&device, shape, dtype.accumulator()).unwrap();
            for _ in 0..2 {
                grouped_matmul_grad_weight_into(&dy, &x, &at, &mut dw).unwrap();
            }
            assert_eq!((y.shape().to_vec(), dx.shape().to_vec()), (vec![c, o], vec![c, i]));

            let dw = dw.total().unwrap().clone();
            for (group, ends) in ends.windows(2).enumerate() {
                let w = w.slice(0, group..group + 1).unwrap();
                let w = ops::reshape(&w, &[o, i]).unwrap();
                let (x, dy) = (rows_of(&x, ends), rows_of(&dy, ends));

                let plain = ops::linear(&x, &w).unwrap();
                assert_eq!(values(&rows_of(&y, ends)), values(&plain));
                let plain = ops::linear_grad_input(&dy, &w).unwrap();
                assert_eq!(values(&rows_of(&dx, ends)), values(&plain));

                let mut plain = Accumulator::new(&device, *w.shape(), dw.dtype()).unwrap();
                for _ in 0..2 {
                    ops::linear_grad_weight_into(&dy, &x, &mut plain).unwrap();
                }
                let dw = dw.slice(0, group..group + 1).unwrap();
                assert_eq!(values(&dw), values(plain.total().unwrap()));
            }

            let used = *ends.last().unwrap() as usize;
            assert!(values(&y)[used * o..].iter().all(|y| *y == 0.0));
        }
    }
}

/// Rows after the last offset are not read: a NaN there has no effect.
#[test]
fn unused_rows_are_not_read() {
    let device = Device::cpu();
    let mut elements = vec![1.0f32; 4 * 3];
    elements[9..].fill(f32::NAN);
    let x = Tensor::from_slice(&device, &[4, 3], &elements).unwrap();
    let w = numbered(&device, &[2, 3, 3], 0.3, DType::F32);
    let at = offsets(&device, &[0, 1, 3]);

    let y = values(&grouped_matmul_nt(&x, &w, &at).unwrap());
    let dx = values(&grouped_matmul_grad_input(&x, &w, &at).unwrap());
    let mut dw = Accumulator::new(&device, *w.shape(), DType::F32).unwrap();
    grouped_matmul_grad_weight_into(&x, &x, &at, &mut dw).unwrap();
    let dw = values(dw.total().unwrap());
    assert!([y, dx, dw].concat().iter().all(|x| x.is_finite()));
}

/// The product is linear in both operands, so the gradients are its adjoints.
#[test]
fn gradients_are_adjoints() {
    let device = Device::cpu();
    let dot = |a: &Tensor, b: &Tensor| -> f64 {
        values(a).iter().zip(values(b)).map(|(a, b)| a * b).sum()
    };
    let x = numbered(&device, &[9, 6], 0.3, DType::F64);
    let w = numbered(&device, &[3, 4, 6], 0.7, DType::F64);
    let dy = numbered(&device, &[9, 4], 1.1, DType::F64);
    let at = offsets(&device, &[0, 2, 2, 8]);

    let loss = dot(&grouped_matmul_nt(&x, &w, &at).unwrap(), &dy);
    let by_x = dot(&grouped_matmul_grad_input(&dy, &w, &at).unwrap(), &x);
    let mut dw = Accumulator::new(&device, *w.shape(), DType::F64).unwrap();
    grouped_matmul_grad_weight_into(&dy, &x, &at, &mut dw).unwrap();
    let by_w = dot(dw.total().unwrap(), &w);
    assert!((loss - by_x).abs() < 1e-12 && (loss - by_w).abs() < 1e-12);
}

/// A meta device of a GPU.
fn meta_gpu() -> Device {
    Device::meta(&Properties {
        gpu: Some(GpuProperties {
            model: "imagined".into(),
            compute_capability: (8, 0),
            multiprocessors: 108,
            memory: 1 << 30,
            l2_cache: 40 << 20,
            shared_memory: 166_912,
        }),
        ..Device::cpu().properties().clone()
    })
}

/// FLOPs and bytes count all rows, because only the device knows which are used. On a GPU, each op
/// is one launch.
#[test]
fn flops_count_all_rows() {
    for device in [Device::cpu(), meta_gpu()] {
        let of_f32 = |shape: &[usize]| ops::full(&device, shape, DType::F32, 1.0).unwrap();
        let (x, w, dy) = (of_f32(&[9, 6]), of_f32(&[3, 4, 6]), of_f32(&[9, 4]));
        let at = Tensor::zeros(&device, &[4], DType::I64, Kind::Value).unwrap();
        let mut dw = Accumulator::new(&device, *w.shape(), DType::F32).unwrap();
        let before = device.work();
        grouped_matmul_nt(&x, &w, &at).unwrap();
        grouped_matmul_grad_input(&dy, &w, &at).unwrap();
        grouped_matmul_grad_weight_into(&dy, &x, &at, &mut dw).unwrap();

        let work = device.work();
        assert_eq!(work.flops - before.flops, 3 * 2 * 9 * 6 * 4);
        // Each operand and result counts once per op, including the accumulator.
        let (of_x, of_w, of_dy, of_offsets) = (4 * 9 * 6, 4 * 3 * 4 * 6, 4 * 9 * 4, 8 * 4);
        let bytes = 3 * (of_x + of_w + of_dy + of_offsets);
        assert_eq!(work.bytes - before.bytes, bytes);
        let launches = if device.is_gpu() { 3 } else { 0 };
        assert_eq!(work.kernel_launches - before.kernel_launches, launches);
    }
}

#[test]
fn offsets_are_checked() {
    let device = Device::cpu();
    let x = numbered(&device, &[4, 3], 0.3, DType::F32);
    let w = numbered(&device, &[2, 5, 3], 0.7, DType::F32);
    for ends in [[1, 2, 4], [0, 3, 2], [0, 2, 5], [-1, 0, 0]] {
        let mut dw = Accumulator::new(&device, *w.shape(), DType::F32).unwrap();
        let dy = numbered(&device, &[4, 5], 0.3, DType::F32);
        let at = offsets(&device, &ends);
        let expected = format!("offsets {ends:?} must start with 0, be non-decreasing");
        assert_error(grouped_matmul_nt(&x, &w, &at), &expected);
        assert_error(grouped_matmul_grad_input(&dy, &w, &at), &expected);
        assert_error(grouped_matmul_grad_weight_into(&dy, &x, &at, &mut dw), &expected);
    }
    assert_eq!(
        grouped_matmul_nt(&x, &w, &offsets(&device, &[0, 4])).unwrap_err().to_string(),
        "grouped_matmul_nt: `offsets` needs 3 elements for 2 groups; the op is `x: F[c! i], w: F[g! o i], \
         offsets: i64[b!] -> y: F[c o]` and was given x f32[4, 3], w f32[2, 5, 3], offsets i64[2]"
    );
}
