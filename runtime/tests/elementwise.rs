//! The elementwise ops on every device, against f64 on the CPU.

mod devices;

use devices::{assert_close, devices, exact, numbered, reference, rounding, values};
use meshgrad_runtime::{Accumulator, DType, Error, Kind, Result, Tensor, ops};

type Unary = fn(&Tensor) -> Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

const FLOATS: [DType; 2] = [DType::F32, DType::BF16];

/// Shapes with a tail, without elements, without dims, and of more than one CTA.
const SHAPES: [&[usize]; 6] = [&[], &[1], &[0, 3], &[7], &[3, 5, 2], &[33, 257]];

/// Every function of one operand is within a few roundings of its value in f64.
#[test]
fn functions_of_one_operand() {
    let functions: [(&str, Unary); 15] = [
        ("neg", ops::neg),
        ("abs", ops::abs),
        ("square", ops::square),
        ("sqrt", |x| ops::sqrt(&ops::abs(x)?)),
        ("rsqrt", |x| {
            ops::rsqrt(&ops::affine(&ops::abs(x)?, 1.0, 0.5)?)
        }),
        ("reciprocal", |x| {
            ops::reciprocal(&ops::affine(x, 1.0, 5.0)?)
        }),
        ("exp", ops::exp),
        ("ln", |x| ops::ln(&ops::affine(&ops::abs(x)?, 1.0, 0.5)?)),
        ("sin", ops::sin),
        ("cos", ops::cos),
        ("tanh", ops::tanh),
        ("sigmoid", ops::sigmoid),
        ("silu", ops::silu),
        ("relu", ops::relu),
        ("clamp", |x| ops::clamp(x, -0.5, 1.5)),
    ];
    for device in devices() {
        for (dtype, shape) in FLOATS.into_iter().flat_map(|d| SHAPES.map(|s| (d, s))) {
            let x = numbered(&device, shape, dtype, 3.0);
            for (name, function) in functions {
                eprintln!("{name} of {x:?}");
                let (y, expected) = (function(&x).unwrap(), function(&exact(&x)).unwrap());
                assert_eq!(y.dtype(), dtype);
                assert_close(&y, &expected, 8.0 * rounding(dtype), 1.0);
            }
        }
    }
}

/// Gradients too are functions of two operands.
#[test]
fn functions_of_two_operands() {
    let functions: [(&str, Binary); 22] = [
        ("add", ops::add),
        ("sub", ops::sub),
        ("mul", ops::mul),
        ("div", |a, b| ops::div(a, &ops::affine(b, 1.0, 7.0)?)),
        ("maximum", ops::maximum),
        ("minimum", ops::minimum),
        ("maximum_share", ops::maximum_share),
        ("neg_grad", ops::neg_grad),
        ("abs_grad", ops::abs_grad),
        ("square_grad", ops::square_grad),
        ("sqrt_grad", |y, dy| {
            ops::sqrt_grad(&ops::affine(y, 1.0, 7.0)?, dy)
        }),
        ("rsqrt_grad", ops::rsqrt_grad),
        ("reciprocal_grad", ops::reciprocal_grad),
        ("exp_grad", ops::exp_grad),
        ("ln_grad", |x, dy| {
            ops::ln_grad(&ops::affine(x, 1.0, 7.0)?, dy)
        }),
        ("sin_grad", ops::sin_grad),
        ("cos_grad", ops::cos_grad),
        ("tanh_grad", ops::tanh_grad),
        ("sigmoid_grad", ops::sigmoid_grad),
        ("silu_grad", ops::silu_grad),
        ("relu_grad", ops::relu_grad),
        ("clamp_grad", |x, dy| ops::clamp_grad(x, dy, -0.5, 1.5)),
    ];
    for device in devices() {
        for (dtype, shape) in FLOATS.into_iter().flat_map(|d| SHAPES.map(|s| (d, s))) {
            let a = numbered(&device, shape, dtype, 3.0);
            let b = ops::cos(&a).unwrap();
            for (name, function) in functions {
                eprintln!("{name} of {a:?}");
                let y = function(&a, &b).unwrap();
                let expected = function(&exact(&a), &exact(&b)).unwrap();
                assert_close(&y, &expected, 16.0 * rounding(dtype), 8.0);
            }
        }
    }
}

/// Broadcast and transposed operands are read as copies of them would be, to the bit.
#[test]
fn strides() {
    for device in devices() {
        for dtype in FLOATS {
            let a = numbered(&device, &[6, 1, 35], dtype, 3.0);
            let b = numbered(&device, &[35, 4, 7], dtype, 2.0);
            let a = a.broadcast_to(&[6, 4, 35]).unwrap();
            let b = b.permute(&[2, 1, 0]).unwrap().slice(0, 1..7).unwrap();

            let y = ops::mul(&a, &b).unwrap();
            let whole = ops::mul(&ops::copy(&a).unwrap(), &ops::copy(&b).unwrap()).unwrap();
            assert_eq!(values(&y), values(&whole));
            let of_views = ops::mul(&exact(&a), &exact(&b)).unwrap();
            assert_close(&y, &of_views, rounding(dtype), 0.0);
        }
    }
}

#[test]
fn comparisons_and_selection() {
    let comparisons: [Binary; 6] = [ops::eq, ops::ne, ops::lt, ops::le, ops::gt, ops::ge];
    for device in devices() {
        let a = Tensor::from_slice(&device, &[5], &[1.0f32, 2.0, f32::NAN, -0.0, 7.0]).unwrap();
        let b = Tensor::from_slice(&device, &[5], &[1.0f32, 3.0, 4.0, 0.0, f32::NAN]).unwrap();
        for compare in comparisons {
            let (holds, expected) = (
                compare(&a, &b).unwrap(),
                compare(&exact(&a), &exact(&b)).unwrap(),
            );
            assert_eq!(values(&holds), values(&expected));
            let chosen = ops::select(&holds, &a, &b).unwrap();
            let expected = ops::select(&expected, &exact(&a), &exact(&b)).unwrap();
            assert_close(&chosen, &expected, 0.0, 0.0);
        }
    }
}

#[test]
fn casts_round_to_nearest_even() {
    for device in devices() {
        // Half of what bf16 tells apart at 1: both lie between two of its numbers.
        let half = 1.0 / 256.0;
        let special = [f32::NAN, f32::INFINITY, -3.3e38];
        let x = [&[1.0f32, 1.0 + half, 1.0 + 3.0 * half, 0.1][..], &special].concat();
        let x = Tensor::from_slice(&device, &[7], &x).unwrap();
        let narrow = ops::cast(&x, DType::BF16).unwrap();
        let on_cpu = ops::cast(&ops::to_device(&x, reference()).unwrap(), DType::BF16).unwrap();
        assert_close(&narrow, &on_cpu, 0.0, 0.0);
        let wide = ops::cast(&narrow, DType::F32).unwrap();
        assert_close(&wide, &narrow, 0.0, 0.0);
    }
}

#[test]
fn accumulating_filling_and_copying_in_place() {
    for device in devices() {
        let x = numbered(&device, &[5, 13], DType::BF16, 2.0);
        let mut sum = Accumulator::new(&device, *x.shape(), DType::F32).unwrap();
        ops::add_into(&x, &mut sum).unwrap();
        ops::add_into(&x, &mut sum).unwrap();
        let doubled = ops::affine(&exact(&x), 2.0, 0.0).unwrap();
        assert_close(sum.total().unwrap(), &doubled, 0.0, 0.0);
        assert_eq!(sum.buffer().version(), 2);

        let cache = Tensor::zeros(&device, &[5, 13], DType::BF16, Kind::Cache).unwrap();
        assert_eq!(values(&cache), vec![0.0; 65]);
        ops::copy_into(&x, &cache).unwrap();
        assert_eq!(values(&cache), values(&x));
        ops::fill_into(&cache, -1.5).unwrap();
        assert_eq!(values(&cache), vec![-1.5; 65]);
        let fixed = ops::full(&device, &[5, 13], DType::BF16, 2.0).unwrap();
        assert!(matches!(
            ops::copy_into(&x, &fixed),
            Err(Error::Immutable { op: "copy_into" })
        ));
    }
}
