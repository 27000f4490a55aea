//! Elementwise ops on every device, compared with f64 on the CPU.

use crate::devices::{
    assert_close, assert_error, devices, exact, numbered, reference, rounding, values,
};
use meshgrad_runtime::ops::Domain;
use meshgrad_runtime::{
    Accumulator, DType, Error, Function, Kind, Number, Result, Signature, Tensor, ops,
};

type Unary = fn(&Tensor) -> Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

const FLOATS: [DType; 2] = [DType::F32, DType::BF16];

/// Shapes without dims, without elements, with a partial vector at the end, and of several CTAs.
const SHAPES: [&[usize]; 6] = [&[], &[1], &[0, 3], &[7], &[3, 5, 2], &[33, 257]];

/// Asserts that results are close, given a few roundings in f32 and one to `dtype`.
fn assert_rounded(actual: &Tensor, expected: &Tensor, dtype: DType) {
    match dtype {
        DType::BF16 => assert_close(actual, expected, rounding(dtype), 0.1),
        _ => assert_close(actual, expected, 16.0 * rounding(dtype), 1.0),
    }
}

#[test]
fn unary_functions_equal_f64() {
    let listed = ops::UNARY.iter().map(|op| (op.name, op.value, op.domain));
    let others: [(&str, Unary, Domain); 2] =
        [("neg", ops::neg, Domain::Real), ("clamp", |x| ops::clamp(x, -0.5, 1.5), Domain::Real)];
    let functions: Vec<_> = listed.chain(others).collect();
    for device in devices() {
        for (dtype, shape) in FLOATS.into_iter().flat_map(|d| SHAPES.map(|s| (d, s))) {
            let all = numbered(&device, shape, dtype, 3.0);
            let positive = ops::affine(&ops::abs(&all).unwrap(), 1.0, 0.5).unwrap();
            for (name, function, domain) in &functions {
                let x = match domain {
                    Domain::Real => &all,
                    Domain::Positive => &positive,
                };
                eprintln!("{name} of {x}");
                let (y, expected) = (function(x).unwrap(), function(&exact(x)).unwrap());
                assert_eq!(y.dtype(), dtype);
                assert_rounded(&y, &expected, dtype);
            }
        }
    }
}

/// Binary functions include the gradients of unary functions.
#[test]
fn binary_functions_equal_f64() {
    // Offsets that are added to the operands, to keep them away from zero.
    let (anywhere, first, second) = ([0.0, 0.0], [7.0, 0.0], [0.0, 7.0]);
    let gradients = ops::UNARY.iter().map(|op| {
        let offsets = match op.domain {
            Domain::Real => anywhere,
            Domain::Positive => first,
        };
        (op.grad_name, op.grad, offsets)
    });
    let others: [(&str, Binary, [f64; 2]); 8] = [
        ("add", ops::add, anywhere),
        ("sub", ops::sub, anywhere),
        ("mul", ops::mul, anywhere),
        ("div", ops::div, second),
        ("maximum", ops::maximum, anywhere),
        ("minimum", ops::minimum, anywhere),
        ("maximum_grad", ops::maximum_grad, anywhere),
        ("clamp_grad", |x, dy| ops::clamp_grad(x, dy, -0.5, 1.5), anywhere),
    ];
    let functions: Vec<_> = gradients.chain(others).collect();
    for device in devices() {
        for (dtype, shape) in FLOATS.into_iter().flat_map(|d| SHAPES.map(|s| (d, s))) {
            let a = numbered(&device, shape, dtype, 3.0);
            let b = ops::cos(&a).unwrap();
            for (name, function, [to_a, to_b]) in &functions {
                eprintln!("{name} of {a:?}");
                let a = ops::affine(&a, 1.0, *to_a).unwrap();
                let b = ops::affine(&b, 1.0, *to_b).unwrap();
                let y = function(&a, &b).unwrap();
                let expected = function(&exact(&a), &exact(&b)).unwrap();
                assert_rounded(&y, &expected, dtype);
            }
        }
    }
}

/// Broadcast and transposed operands give the bits of contiguous copies.
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
            let (holds, expected) =
                (compare(&a, &b).unwrap(), compare(&exact(&a), &exact(&b)).unwrap());
            assert_eq!(values(&holds), values(&expected));
            let chosen = ops::where_(&holds, &a, &b).unwrap();
            let expected = ops::where_(&expected, &exact(&a), &exact(&b)).unwrap();
            assert_close(&chosen, &expected, 0.0, 0.0);
        }
    }
}

#[test]
fn casts_round_to_nearest_even() {
    for device in devices() {
        // Half of the spacing of bf16 at 1: the second and third value are halfway between two bf16
        // numbers.
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
        assert_error(
            ops::copy_into(&x, &fixed),
            "copy_into: the tensor is a value, which is immutable",
        );
    }
}

/// A user-defined op has one definition for all devices.
#[test]
fn user_defined_functions() {
    static SOFTPLUS: Signature = Signature::new("softplus", "x: F[..] -> y: F[..]", 3);

    struct Softplus;

    impl Function<1> for Softplus {
        #[inline(always)]
        fn value<W: Number>(&self, [x]: [W; 1]) -> W {
            (W::ONE + x.exp()).ln()
        }
    }

    let softplus = |x: &Tensor| {
        let mut call = SOFTPLUS.call(&[x])?;
        let mut y = call.output(0)?;
        ops::map(&call, &Softplus, [x], &mut y)?;
        Ok::<_, Error>((call, y.finish()))
    };
    for device in devices() {
        let x = numbered(&device, &[5, 13], DType::F32, 3.0);
        let (mut call, y) = softplus(&x.transpose(0, 1).unwrap()).unwrap();
        let (_, expected) = softplus(&exact(&x.transpose(0, 1).unwrap())).unwrap();
        assert_rounded(&y, &expected, DType::F32);

        let mut other = call.output(0).unwrap();
        let narrow = ops::cast(&x, DType::BF16).unwrap();
        for wrong in [&x, &narrow.transpose(0, 1).unwrap()] {
            let rejected = ops::map(&call, &Softplus, [wrong], &mut other);
            assert_error(rejected, "softplus: cannot map ");
        }
    }
}
