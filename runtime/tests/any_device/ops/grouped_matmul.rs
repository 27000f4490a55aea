//! Grouped matrix products on every device, compared with f64 on the CPU.

use crate::devices::{assert_close, devices, exact, gpu, numbered, reference, rounding};
use meshgrad_runtime::{
    Accumulator, DType, Device, IndexOutOfRange, Kind, PinnedBuffer, Shape, Tensor, ops,
};

/// Offsets, and the extents: rows, input features, output features. The cases cover groups with
/// several tiles, one row or no rows; rows outside all groups; row lengths that are and are not
/// whole vectors; zero groups; zero rows; and k = 0.
const CASES: [(&[i64], [usize; 3]); 7] = [
    (&[0, 75, 75, 76, 140], [150, 40, 72]),
    (&[0, 3, 3, 70], [70, 33, 17]),
    (&[0, 128, 256], [256, 64, 64]),
    (&[0, 0, 0], [5, 8, 8]),
    (&[0], [3, 4, 5]),
    (&[0, 0], [0, 4, 5]),
    (&[0, 2, 4], [4, 0, 3]),
];

const FLOATS: [DType; 2] = [DType::F32, DType::BF16];

fn offsets(device: &Device, ends: &[i64]) -> Tensor {
    Tensor::from_slice(device, &[ends.len()], ends).unwrap()
}

/// The same values in a layout where dims `a` and `b` are exchanged.
fn transposed(x: &Tensor, a: isize, b: isize) -> Tensor {
    ops::copy(&x.transpose(a, b).unwrap()).unwrap().transpose(a, b).unwrap()
}

fn accumulator(device: &Device, shape: &[usize], dtype: DType) -> Accumulator {
    Accumulator::new(device, Shape::new(shape).unwrap(), dtype).unwrap()
}

#[test]
fn products_and_their_gradients() {
    for device in devices() {
        for (dtype, (ends, extents)) in FLOATS.into_iter().flat_map(|d| CASES.map(|case| (d, case)))
        {
            eprintln!("{device}: {dtype} {ends:?} {extents:?}");
            let [rows, inner, outer] = extents;
            let groups = ends.len() - 1;
            let x = numbered(&device, &[rows, inner], dtype, 1.0);
            let w = numbered(&device, &[groups, outer, inner], dtype, 1.0);
            let dy = numbered(&device, &[rows, outer], dtype, 0.5);
            check(&x, &w, &dy, ends);
        }
    }
}

/// Operands and offsets may have any strides.
#[test]
fn views() {
    for device in devices() {
        for dtype in FLOATS {
            let x = transposed(&numbered(&device, &[40, 24], dtype, 1.0), 0, 1);
            let w = transposed(&numbered(&device, &[3, 9, 24], dtype, 1.0), 1, 2);
            let dy = transposed(&numbered(&device, &[40, 9], dtype, 0.5), 0, 1);
            check(&x, &w, &dy, &[0, 30, 30, 37]);

            let strided = [0i64, 9, 30, 9, 30, 9, 37, 9];
            let strided = Tensor::from_slice(&device, &[4, 2], &strided).unwrap();
            let strided = strided.slice(1, 0..1).unwrap().view(&[4]).unwrap();
            let at = strided.expect("a view without the dim of one element");
            let y = ops::grouped_matmul_nt(&x, &w, &at).unwrap();
            let dense = ops::grouped_matmul_nt(&x, &w, &offsets(&device, &[0, 30, 30, 37]));
            assert_eq!(crate::devices::values(&y), crate::devices::values(&dense.unwrap()));
        }
    }
}

fn check(x: &Tensor, w: &Tensor, dy: &Tensor, ends: &[i64]) {
    let dtype = x.dtype();
    let (at, exact_at) = (offsets(x.device(), ends), offsets(reference(), ends));
    let tolerance = 2.0 * rounding(dtype) + 2e-4;

    let y = ops::grouped_matmul_nt(x, w, &at).unwrap();
    let expected = ops::grouped_matmul_nt(&exact(x), &exact(w), &exact_at).unwrap();
    assert_eq!(y.dtype(), dtype);
    assert_close(&y, &expected, tolerance, 1.0);

    let dx = ops::grouped_matmul_grad_input(dy, w, &at).unwrap();
    let expected = ops::grouped_matmul_grad_input(&exact(dy), &exact(w), &exact_at).unwrap();
    assert_close(&dx, &expected, tolerance, 1.0);

    let mut dw = accumulator(x.device(), w.shape(), DType::F32);
    let mut expected = accumulator(reference(), w.shape(), DType::F64);
    for _ in 0..2 {
        ops::grouped_matmul_grad_weight_into(dy, x, &at, &mut dw).unwrap();
        let operands = (exact(dy), exact(x));
        ops::grouped_matmul_grad_weight_into(&operands.0, &operands.1, &exact_at, &mut expected)
            .unwrap();
        assert_close(dw.total().unwrap(), expected.total().unwrap(), 1e-4, 1.0);
    }
}

/// If a group has no rows, the accumulator keeps its bits, even negative zeros.
/// As many tiles as warpgroups need. Groups are uneven, and some rows have none.
#[test]
fn products_of_warpgroups() {
    const GROUPS: i64 = 17;
    for device in devices() {
        let ends: Vec<i64> = (0..=GROUPS).map(|i| (i * i * 14 + i * 10).min(4216)).collect();
        let [x, dy] = [0, 1].map(|_| numbered(&device, &[4224, 136], DType::BF16, 1.0));
        let w = numbered(&device, &[GROUPS as usize, 136, 136], DType::BF16, 1.0);
        check(&x, &w, &dy, &ends);
    }
}

#[test]
fn empty_groups_add_nothing() {
    for device in devices() {
        for dtype in FLOATS {
            let x = numbered(&device, &[3, 4], dtype, 1.0);
            let buffer = Tensor::zeros(&device, &[2, 4, 4], DType::F32, Kind::Gradient);
            let buffer = buffer.unwrap();
            ops::fill_into(&buffer, -0.0).unwrap();
            let mut dw = Accumulator::over(buffer).unwrap();
            dw.filled();
            ops::grouped_matmul_grad_weight_into(&x, &x, &offsets(&device, &[0, 3, 3]), &mut dw)
                .unwrap();
            let dw: Vec<f32> = dw.total().unwrap().to_vec().unwrap();
            assert!(dw[16..].iter().all(|x| x.to_bits() == (-0.0f32).to_bits()));
        }
    }
}

/// Rows beyond the last offset are not read: a NaN there does not propagate.
#[test]
fn unused_rows_are_not_read() {
    for device in devices() {
        let mut elements = vec![1.0f32; 4 * 3];
        elements[9..].fill(f32::NAN);
        let x = Tensor::from_slice(&device, &[4, 3], &elements).unwrap();
        for dtype in FLOATS {
            let x = ops::cast(&x, dtype).unwrap();
            let w = numbered(&device, &[2, 3, 3], dtype, 1.0);
            let at = offsets(&device, &[0, 1, 3]);
            let y = ops::grouped_matmul_nt(&x, &w, &at).unwrap();
            let dx = ops::grouped_matmul_grad_input(&x, &w, &at).unwrap();
            let mut dw = accumulator(&device, w.shape(), DType::F32);
            ops::grouped_matmul_grad_weight_into(&x, &x, &at, &mut dw).unwrap();
            for result in [&y, &dx, dw.total().unwrap()] {
                assert!(crate::devices::values(result).iter().all(|x| x.is_finite()));
            }
        }
    }
}

/// A graph reads its offsets at each launch, so they may change after the capture.
#[test]
fn a_graph_follows_its_offsets() {
    let Some(device) = gpu() else { return };
    for dtype in FLOATS {
        let x = numbered(&device, &[70, 9], dtype, 1.0);
        let w = numbered(&device, &[2, 5, 9], dtype, 1.0);
        let at = Tensor::zeros(&device, &[3], DType::I64, Kind::Cache).unwrap();
        let mut graph = device.capture(|| ops::grouped_matmul_nt(&x, &w, &at)).unwrap();
        let mut buffer = PinnedBuffer::new(&device, 24).unwrap();
        for ends in [[0i64, 66, 70], [0, 0, 65], [0, 1, 1]] {
            let bytes: Vec<u8> = ends.iter().flat_map(|end| end.to_le_bytes()).collect();
            buffer.as_mut().copy_from_slice(&bytes);
            buffer = at.fill_from_pinned(0..24, buffer).unwrap().synchronize().unwrap();
            graph.launch().unwrap();
            let expected = ops::grouped_matmul_nt(&x, &w, &offsets(&device, &ends)).unwrap();
            assert_eq!(crate::devices::values(graph.results()), crate::devices::values(&expected));
        }
    }
}

/// On a GPU, invalid offsets are reported by the next synchronization, and the device stays usable.
#[test]
fn invalid_offsets_are_reported_by_a_gpu() {
    let Some(device) = gpu() else { return };
    let x = numbered(&device, &[4, 3], DType::BF16, 1.0);
    let w = numbered(&device, &[2, 5, 3], DType::BF16, 1.0);
    let dy = numbered(&device, &[4, 5], DType::BF16, 1.0);
    for ends in [[1, 2, 4], [0, 3, 2], [0, 2, 5], [-1, 0, 0]] {
        let at = offsets(&device, &ends);
        let y = ops::grouped_matmul_nt(&x, &w, &at).unwrap();
        assert_told(&y, "grouped_matmul_nt");
        assert_eq!(y.to_vec::<half::bf16>().unwrap(), [half::bf16::ZERO; 20]);
        let dx = ops::grouped_matmul_grad_input(&dy, &w, &at).unwrap();
        assert_told(&dx, "grouped_matmul_grad_input");

        let mut dw = accumulator(&device, &[2, 5, 3], DType::F32);
        ops::grouped_matmul_grad_weight_into(&dy, &x, &at, &mut dw).unwrap();
        assert_told(dw.total().unwrap(), "grouped_matmul_grad_weight_into");
    }
}

#[track_caller]
fn assert_told(result: &Tensor, name: &str) {
    let error = ops::cast(result, DType::F32).unwrap().to_vec::<f32>().unwrap_err();
    let told = error.details::<IndexOutOfRange>().unwrap();
    assert_eq!((told.op, told.extent), (name, 5));
    assert!(told.gpu.is_some());
}
