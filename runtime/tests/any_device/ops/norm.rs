//! RMS norm, layer norm and their gradients on every device, compared with f64 on the CPU.

use crate::devices::{assert_close, devices, exact, numbered, reference, rounding};
use meshgrad_runtime::{Accumulator, DType, Number, RowFunction, Signature, Tensor, ops};

const EPS: f64 = 1e-6;

/// Rows that fit in the registers of a few lanes, of a warp or of a CTA, and rows that do not; whole
/// vectors or not; one element; no rows, no features; a transposed tensor.
fn operands(device: &meshgrad_runtime::Device, dtype: DType) -> Vec<Tensor> {
    let shapes: [&[usize]; 12] = [
        &[3, 64],
        &[2, 5, 7],
        &[1, 1],
        &[0, 8],
        &[3, 0],
        &[130, 96],
        &[2, 2056],
        &[2, 1025],
        &[2, 5000],
        &[5, 264],    // a warp with several accesses per lane, ragged; two CTAs
        &[1, 16_384], // f32: a loop over vectors; bf16: four vectors per thread
        &[200, 7],    // sums of columns by elements, in four blocks
    ];
    let mut all: Vec<Tensor> =
        shapes.iter().map(|shape| numbered(device, shape, dtype, 2.0)).collect();
    let transposed = numbered(device, &[6, 10], dtype, 2.0).transpose(0, 1).unwrap();
    all.push(transposed);
    all
}

#[test]
fn forward_and_gradients() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for x in operands(&device, dtype) {
                eprintln!("{x}");
                check(&x, dtype);
            }
        }
    }
}

/// The fused residual addition and norm, and their gradient, match f64.
#[test]
fn sums_and_their_norm() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for x in operands(&device, dtype) {
                check_sum(&x, dtype);
            }
        }
    }
}

fn check_sum(x: &Tensor, dtype: DType) {
    let w = numbered(x.device(), &[x.extent(-1).unwrap()], dtype, 1.5);
    let added = ops::cos(x).unwrap();
    let (sum, y, inv_rms) = ops::add_rms_norm(x, &added, &w, EPS).unwrap();
    let expected = ops::add(&exact(x), &exact(&added)).unwrap();
    assert_close(&sum, &expected, rounding(dtype), 0.0);

    // The norm is computed from the rounded sum, as with separate ops: bit for bit, so that a stream
    // may be cut between the two.
    let (separate, separate_inv_rms) = ops::rms_norm(&sum, &w, EPS).unwrap();
    let bits = |x: &Tensor| -> Vec<u32> {
        let values = ops::cast(x, DType::F32).unwrap().to_vec::<f32>().unwrap();
        values.into_iter().map(f32::to_bits).collect()
    };
    assert_eq!(bits(&y), bits(&separate));
    assert_eq!(bits(&inv_rms), bits(&separate_inv_rms));
    let (expected, exact_inv_rms) = ops::rms_norm(&exact(&sum), &exact(&w), EPS).unwrap();
    assert_eq!((y.dtype(), inv_rms.dtype()), (dtype, DType::F32));
    assert_close(&y, &expected, 4.0 * rounding(dtype), 0.1);
    assert_close(&inv_rms, &exact_inv_rms, 1e-5, 0.1);

    let dx = ops::add_rms_norm_grad_input(&added, &y, &sum, &w, &inv_rms).unwrap();
    let operands = [&added, &y, &sum, &w].map(exact);
    let [dsum, dy, sum, w] = operands.each_ref();
    let expected = ops::add_rms_norm_grad_input(dsum, dy, sum, w, &exact_inv_rms).unwrap();
    assert_close(&dx, &expected, 8.0 * rounding(dtype), 1.0);
    let of_norm = ops::rms_norm_grad_input(dy, sum, w, &exact_inv_rms).unwrap();
    assert_close(&expected, &ops::add(dsum, &of_norm).unwrap(), 1e-12, 1.0);
}

fn check(x: &Tensor, dtype: DType) {
    let features = x.extent(-1).unwrap();
    let w = numbered(x.device(), &[features], dtype, 1.5);
    let (y, inv_rms) = ops::rms_norm(x, &w, EPS).unwrap();
    let (exact_y, exact_inv_rms) = ops::rms_norm(&exact(x), &exact(&w), EPS).unwrap();
    assert_eq!((y.dtype(), inv_rms.dtype()), (dtype, DType::F32));
    assert_close(&y, &exact_y, 4.0 * rounding(dtype), 0.1);
    assert_close(&inv_rms, &exact_inv_rms, 1e-5, 0.1);

    let dy = ops::cos(x).unwrap();
    let dx = ops::rms_norm_grad_input(&dy, x, &w, &inv_rms).unwrap();
    let exact_dx =
        ops::rms_norm_grad_input(&exact(&dy), &exact(x), &exact(&w), &exact_inv_rms).unwrap();
    assert_close(&dx, &exact_dx, 8.0 * rounding(dtype), 1.0);

    let shape = *w.shape();
    let mut dw = Accumulator::new(x.device(), shape, DType::F32).unwrap();
    let mut exact_dw = Accumulator::new(reference(), shape, DType::F64).unwrap();
    for _ in 0..2 {
        ops::rms_norm_grad_weight_into(&dy, x, &inv_rms, &mut dw).unwrap();
        let operands = (exact(&dy), exact(x));
        ops::rms_norm_grad_weight_into(&operands.0, &operands.1, &exact_inv_rms, &mut exact_dw)
            .unwrap();
        assert_close(dw.total().unwrap(), exact_dw.total().unwrap(), 1e-4, 1.0);
    }
}

#[test]
fn layer_norm_and_its_gradients() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for x in operands(&device, dtype) {
                // A mean far from 0.
                check_layer_norm(&ops::affine(&x, 1.0, 3.0).unwrap(), dtype);
            }
        }
    }
}

fn check_layer_norm(x: &Tensor, dtype: DType) {
    let w = numbered(x.device(), &[x.extent(-1).unwrap()], dtype, 1.5);
    let b = ops::cos(&w).unwrap();
    // One element has no variance.
    let eps = 1e-2;
    let (y, mean, inv_std) = ops::layer_norm(x, &w, &b, eps).unwrap();
    let [exact_x, exact_w, exact_b] = [x, &w, &b].map(exact);
    let (exact_y, exact_mean, exact_inv_std) =
        ops::layer_norm(&exact_x, &exact_w, &exact_b, eps).unwrap();
    assert_eq!((y.dtype(), mean.dtype()), (dtype, DType::F32));
    assert_close(&y, &exact_y, 4.0 * rounding(dtype), 2.0);
    assert_close(&mean, &exact_mean, 1e-6, 1.0);
    assert_close(&inv_std, &exact_inv_std, 1e-5, 0.1);

    let dy = ops::cos(x).unwrap();
    let exact_dy = exact(&dy);
    let dx = ops::layer_norm_grad_input(&dy, x, &w, &mean, &inv_std).unwrap();
    let exact_dx =
        ops::layer_norm_grad_input(&exact_dy, &exact_x, &exact_w, &exact_mean, &exact_inv_std);
    assert_close(&dx, &exact_dx.unwrap(), 8.0 * rounding(dtype), 10.0);

    let shape = *w.shape();
    let mut dw = Accumulator::new(x.device(), shape, DType::F32).unwrap();
    let mut exact_dw = Accumulator::new(reference(), shape, DType::F64).unwrap();
    for _ in 0..2 {
        ops::layer_norm_grad_weight_into(&dy, x, &mean, &inv_std, &mut dw).unwrap();
        let (mean, inv_std) = (&exact_mean, &exact_inv_std);
        ops::layer_norm_grad_weight_into(&exact_dy, &exact_x, mean, inv_std, &mut exact_dw)
            .unwrap();
        assert_close(dw.total().unwrap(), exact_dw.total().unwrap(), 1e-4, 10.0);
    }
}

/// x times a given number of the row.
struct Scaled;

impl RowFunction<1, 1> for Scaled {
    const GIVEN: usize = 1;

    #[inline(always)]
    fn value<W: Number>(&self, [x]: [W; 1], [s]: [W; 1]) -> W {
        x * s
    }
}

static SCALED: Signature = Signature::new("scaled", "x: F[..] -> y: F[..]", 1);

#[test]
fn functions_of_rows_name_what_does_not_fit() {
    for device in devices() {
        let of = |shape: &[usize], dtype| numbered(&device, shape, dtype, 1.0);
        let x = of(&[2, 3], DType::F32);
        let run = |operand: &Tensor, given: &Tensor| {
            let mut call = SCALED.call(&[&x]).unwrap();
            let mut y = call.output(0).unwrap();
            let done = ops::map_rows(&call, &Scaled, [operand], [given], &mut y, &mut []);
            done.map(|()| y.finish()).map_err(|error| error.to_string())
        };
        let s = of(&[2], DType::F32);
        let expected = ops::mul(&exact(&x), &exact(&s.unsqueeze(1).unwrap())).unwrap();
        assert_close(&run(&x, &s).unwrap(), &expected, rounding(DType::F32), 0.0);
        let row = run(&of(&[3], DType::F32), &s).unwrap();
        assert_eq!(row.shape().to_vec(), [2, 3]);
        for (operand, given, problem) in [
            (of(&[2, 4], DType::F32), s.clone(), "cannot map rows of"),
            (of(&[2, 3], DType::BF16), s.clone(), "cannot map rows of"),
            (x.clone(), of(&[3], DType::F32), "is not one f32 per row"),
            (x.clone(), of(&[2], DType::BF16), "is not one f32 per row"),
        ] {
            let error = run(&operand, &given).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }

        let call = SCALED.call(&[&x]).unwrap();
        let mut y = SCALED.call(&[&x]).unwrap().output(0).unwrap();
        let error = ops::map_rows(&call, &Scaled, [&x], [], &mut y, &mut []).unwrap_err();
        assert!(error.to_string().contains("0 numbers per row are given"), "{error}");
    }
}
