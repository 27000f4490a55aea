//! Elementwise ops of two and three operands, with broadcasting: arithmetic, comparisons, `where_`.

use meshgrad_error::ensure;

use super::elementwise::{map, test};
use crate::Function;
use crate::cpu::elementwise as cpu;
use crate::launch::elementwise::{self as launch, Target};
use crate::{Accumulator, Number, Result, Signature, Tensor, for_any, for_float};

/// Defines an op and its signature for each function of two float operands.
macro_rules! binary_ops {
    ($(
        $(#[$doc:meta])*
        $name:ident = |$a:ident, $b:ident| $value:expr $(, linear in $($linear:literal),+)?;
    )+) => {
        $(
            $(#[$doc])*
            ///
            /// # Shapes
            /// `a` and `b` of one float dtype, with shapes that broadcast; returns the broadcast
            /// shape.
            pub fn $name(a: &Tensor, b: &Tensor) -> Result<Tensor> {
                let mut call = signature_of::$name.call(&[a, b])?;
                let (a, b) = broadcast_pair(a, b, &call.broadcast())?;
                let mut y = call.output(0)?;

                struct Value;

                impl Function<2> for Value {
                    #[inline(always)]
                    fn value<W: Number>(&self, [$a, $b]: [W; 2]) -> W {
                        $value
                    }
                }

                map(&call, &Value, [&a, &b], &mut y)?;
                Ok(y.finish())
            }
        )+

        /// A static per op, named like the op.
        #[allow(non_upper_case_globals)]
        mod signature_of {
            use super::Signature;

            $(
                pub(super) static $name: Signature =
                    Signature::new(stringify!($name), "a: F[~], b: F[~] -> y: F[~]", 1)
                        $(.linear_in(&[$($linear),+]))?;
            )+
        }

        static ARITHMETIC: &[&Signature] = &[$(&signature_of::$name),+];
    };
}

binary_ops! {
    /// a + b.
    add = |a, b| a + b, linear in "a + b";

    /// a - b.
    sub = |a, b| a - b, linear in "a + b";

    /// a * b.
    mul = |a, b| a * b, linear in "a", "b";

    /// a / b.
    div = |a, b| a / b, linear in "a";

    /// max(a, b); NaN if a or b is NaN.
    maximum = |a, b| b.if_le(a, a, a.if_lt(b, b, a + b));

    /// min(a, b); NaN if a or b is NaN.
    minimum = |a, b| a.if_le(b, a, b.if_lt(a, b, a + b));
}

static MAXIMUM_GRAD: Signature =
    Signature::new("maximum_grad", "a: F[~], b: F[~] -> grad: F[~]", 1);

/// The derivative of [`maximum`] with respect to `a`: 1 if a > b, 1/2 if a = b, else 0.
///
/// # Shapes
/// As [`maximum`].
pub fn maximum_grad(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let mut call = MAXIMUM_GRAD.call(&[a, b])?;
    let (a, b) = broadcast_pair(a, b, &call.broadcast())?;
    let mut grad = call.output(0)?;
    map(&call, &MaximumGrad, [&a, &b], &mut grad)?;
    Ok(grad.finish())
}

struct MaximumGrad;

impl Function<2> for MaximumGrad {
    #[inline(always)]
    fn value<W: Number>(&self, [a, b]: [W; 2]) -> W {
        let equal_or_less = a.if_eq(b, W::constant(0.5), W::ZERO);
        b.if_lt(a, W::ONE, equal_or_less)
    }
}

static AFFINE: Signature = Signature::new("affine", "x: F[..] -> y: F[..]", 2);

/// scale * x + shift, with constant `scale` and `shift`. For values that change from step to step,
/// use [`mul`] and [`add`] with tensors.
///
/// # Shapes
/// `x` any shape, float; returns the same.
pub fn affine(x: &Tensor, scale: f64, shift: f64) -> Result<Tensor> {
    let is_linear = shift == 0.0;
    let mut call = AFFINE.call_with(&[x], &[is_linear.into()], || match is_linear {
        true => AFFINE.sharding_rule().clone().linear_in(&["x"]),
        false => Ok(AFFINE.sharding_rule().clone()),
    })?;
    let mut y = call.output(0)?;
    map(&call, &Affine { scale, shift }, [x], &mut y)?;
    Ok(y.finish())
}

struct Affine {
    scale: f64,
    shift: f64,
}

impl Function<1> for Affine {
    #[inline(always)]
    fn value<W: Number>(&self, [x]: [W; 1]) -> W {
        W::constant(self.scale) * x + W::constant(self.shift)
    }
}

static ADD_INTO: Signature =
    Signature::new("add_into", "x: F[..], into: G[..] -> into: G[..]", 1).linear_in(&["x"]);

/// into += x: accumulates a gradient.
///
/// # Shapes
/// `x` and `into` of one shape; their float dtypes may differ.
///
/// # Errors
/// While the storage is in use.
pub fn add_into(x: &Tensor, into: &mut Accumulator) -> Result<()> {
    let call = into.call(&ADD_INTO, &[x])?;
    let range = into.buffer().contiguous_range(call.name())?;
    let (buffer, empty) = (into.buffer(), into.is_empty());
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let to = Target::changed(gpu, buffer)?;
            launch::accumulate(gpu, x, &to, empty)
        }),
        false => call.compute(|| {
            for_float!(x.dtype(), T => for_float!(buffer.dtype(), U => {
                let mut to = buffer.write::<U>(call.name())?;
                cpu::accumulate::<T, U>(x, &mut to[range], empty)
            }))
        }),
    }?;
    into.filled_by(&call)
}

/// Defines an op and its signature for each comparison.
macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident = |$a:ident, $b:ident| $value:expr;)+) => {
        $(
            $(#[$doc])*
            ///
            /// # Shapes
            /// `a` and `b` of one float dtype, with shapes that broadcast; returns the broadcast
            /// shape, bool.
            pub fn $name(a: &Tensor, b: &Tensor) -> Result<Tensor> {
                let mut call = comparison::$name.call(&[a, b])?;
                let (a, b) = broadcast_pair(a, b, &call.broadcast())?;
                let mut y = call.output(0)?;

                struct Comparison;

                impl Function<2> for Comparison {
                    #[inline(always)]
                    fn value<W: Number>(&self, [$a, $b]: [W; 2]) -> W {
                        $value
                    }
                }

                test(&call, &Comparison, [&a, &b], &mut y)?;
                Ok(y.finish())
            }
        )+

        /// A static per op, named like the op.
        #[allow(non_upper_case_globals)]
        mod comparison {
            use super::Signature;

            $(
                pub(super) static $name: Signature =
                    Signature::new(stringify!($name), "a: F[~], b: F[~] -> y: bool[~]", 1);
            )+
        }

        static COMPARISONS: &[&Signature] = &[$(&comparison::$name),+];
    };
}

comparisons! {
    /// a == b.
    eq = |a, b| a.if_eq(b, W::ONE, W::ZERO);

    /// a != b.
    ne = |a, b| a.if_eq(b, W::ZERO, W::ONE);

    /// a < b.
    lt = |a, b| a.if_lt(b, W::ONE, W::ZERO);

    /// a <= b.
    le = |a, b| a.if_le(b, W::ONE, W::ZERO);

    /// a > b.
    gt = |a, b| b.if_lt(a, W::ONE, W::ZERO);

    /// a >= b.
    ge = |a, b| b.if_le(a, W::ONE, W::ZERO);
}

static CLAMP: Signature = Signature::new("clamp", "x: F[..] -> y: F[..]", 2);
static CLAMP_GRAD: Signature =
    Signature::new("clamp_grad", "x: F[..], dy: F[..] -> dx: F[..]", 2).linear_in(&["dy"]);

/// x clamped to [`low`, `high`]; NaN stays NaN.
///
/// # Shapes
/// `x` any shape, float; returns the same.
///
/// # Errors
/// When `low > high`.
pub fn clamp(x: &Tensor, low: f64, high: f64) -> Result<Tensor> {
    check_bounds(low, high)?;
    let mut call = CLAMP.call(&[x])?;
    let mut y = call.output(0)?;
    map(&call, &Clamp(Bounds { low, high }), [x], &mut y)?;
    Ok(y.finish())
}

struct Clamp(Bounds);

impl Function<1> for Clamp {
    #[inline(always)]
    fn value<W: Number>(&self, [x]: [W; 1]) -> W {
        let [low, high]: [W; 2] = self.0.wide();
        x.if_lt(low, low, high.if_lt(x, high, x))
    }
}

/// The gradient of [`clamp`]: dy inside the bounds (inclusive), 0 outside.
///
/// # Shapes
/// `x` and `dy` of one shape and float dtype; returns the same.
///
/// # Errors
/// As [`clamp`].
pub fn clamp_grad(x: &Tensor, dy: &Tensor, low: f64, high: f64) -> Result<Tensor> {
    check_bounds(low, high)?;
    let mut call = CLAMP_GRAD.call(&[x, dy])?;
    let mut dx = call.output(0)?;
    map(&call, &ClampSlope(Bounds { low, high }), [x, dy], &mut dx)?;
    Ok(dx.finish())
}

struct ClampSlope(Bounds);

impl Function<2> for ClampSlope {
    #[inline(always)]
    fn value<W: Number>(&self, [x, dy]: [W; 2]) -> W {
        let [low, high]: [W; 2] = self.0.wide();
        low.if_le(x, x.if_le(high, dy, W::ZERO), W::ZERO)
    }
}

struct Bounds {
    low: f64,
    high: f64,
}

impl Bounds {
    #[inline(always)]
    fn wide<W: Number>(&self) -> [W; 2] {
        [W::constant(self.low), W::constant(self.high)]
    }
}

fn check_bounds(low: f64, high: f64) -> Result<()> {
    ensure!(low <= high, Invalid, "clamp: low = {low} is above high = {high}");
    Ok(())
}

fn broadcast_pair(a: &Tensor, b: &Tensor, shape: &[usize]) -> Result<(Tensor, Tensor)> {
    Ok((a.local_broadcast_to(shape)?, b.local_broadcast_to(shape)?))
}

static WHERE: Signature =
    Signature::new("where_", "condition: bool[~], a: T[~], b: T[~] -> y: T[~]", 0)
        .linear_in(&["a + b"]);

/// `a` where `condition` is true, else `b`.
///
/// # Shapes
/// `condition` bool, `a` and `b` of one dtype, with shapes that broadcast; returns the broadcast
/// shape.
pub fn where_(condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let mut call = WHERE.call(&[condition, a, b])?;
    let shape = call.broadcast();
    let condition = condition.local_broadcast_to(&shape)?;
    let (a, b) = broadcast_pair(a, b, &shape)?;
    let mut y = call.output(0)?;
    match call.device().is_gpu() {
        true => {
            call.launch(|gpu| launch::where_(gpu, [&condition, &a, &b], &Target::uninit(gpu, &y)?))
        }
        false => call
            .compute(|| for_any!(a.dtype(), T => cpu::where_::<T>(&condition, &a, &b, y.slice()?))),
    }?;
    Ok(y.finish())
}

pub(super) fn signatures() -> Vec<&'static Signature> {
    [ARITHMETIC, COMPARISONS, &[&MAXIMUM_GRAD, &AFFINE, &ADD_INTO, &CLAMP, &CLAMP_GRAD, &WHERE]]
        .concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{DType, Device, Kind, Shape, assert_error, ops};

    /// A tensor of small distinct values.
    fn numbered(device: &Device, shape: &[usize], step: f64) -> Tensor {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|i| (i as f64 * step).sin()).collect();
        Tensor::from_slice(device, shape, &values).unwrap()
    }

    /// Two shapes that broadcast: copies of one shape in which some dims are set to 1 and, in the
    /// second, leading dims are removed.
    fn pairs() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
        let dims = prop::collection::vec((0usize..4, 0u8..4), 0..5);
        (dims, 0usize..3).prop_map(|(dims, cut)| {
            let of = |ones: u8| {
                dims.iter().map(|(n, kind)| if *kind == ones { 1 } else { *n }).collect()
            };
            let (a, b): (Vec<usize>, Vec<usize>) = (of(1), of(2));
            let cut = cut.min(b.len());
            (a, b[cut..].to_vec())
        })
    }

    proptest! {
        /// Broadcasting equals computing on operands that were copied to the broadcast shape first.
        #[test]
        fn broadcasting_equals_copying((a, b) in pairs(), swap in any::<bool>()) {
            let device = Device::cpu();
            let (a, b) = (numbered(&device, &a, 0.7), numbered(&device, &b, 1.3));
            let (a, b) = if swap { (b, a) } else { (a, b) };
            let shape = Shape::broadcast(a.shape(), b.shape()).unwrap();

            let y = sub(&a, &b).unwrap();
            prop_assert_eq!(&y.shape()[..], &shape[..]);

            let whole = |x: &Tensor| {
                ops::copy(&x.broadcast_to(&shape).unwrap()).unwrap().to_vec::<f64>().unwrap()
            };
            let expected: Vec<f64> = whole(&a).iter().zip(whole(&b)).map(|(a, b)| a - b).collect();
            prop_assert_eq!(y.to_vec::<f64>().unwrap(), expected);
        }
    }

    #[test]
    fn strided_operands_are_read_in_order() {
        let device = Device::cpu();
        let x = numbered(&device, &[300, 70], 0.1);
        let transposed = x.transpose(0, 1).unwrap().slice(0, 3..60).unwrap();
        let y = add(&transposed, &transposed).unwrap();

        let (values, doubled) = (x.to_vec::<f64>().unwrap(), y.to_vec::<f64>().unwrap());
        for (i, row) in (3..60).enumerate() {
            for column in 0..300 {
                assert_eq!(doubled[i * 300 + column], 2.0 * values[column * 70 + row]);
            }
        }
    }

    #[test]
    fn maximum_and_minimum_propagate_nan() {
        let device = Device::cpu();
        let a = Tensor::from_slice(&device, &[4], &[f32::NAN, 1.0, 2.0, 3.0]).unwrap();
        let b = Tensor::from_slice(&device, &[4], &[1.0, f32::NAN, 5.0, 3.0]).unwrap();
        let largest = maximum(&a, &b).unwrap().to_vec::<f32>().unwrap();
        assert!(largest[0].is_nan() && largest[1].is_nan());
        assert_eq!(&largest[2..], &[5.0, 3.0]);
        assert_eq!(maximum_grad(&a, &b).unwrap().to_vec::<f32>().unwrap()[2..], [0.0, 0.5]);
    }

    #[test]
    fn accumulating_into_another_dtype() {
        let device = Device::cpu();
        let x = ops::full(&device, &[3], DType::BF16, 0.5).unwrap();
        let buffer = Tensor::zeros(&device, &[3], DType::F32, Kind::Gradient).unwrap();
        let mut into = Accumulator::over(buffer.clone()).unwrap();
        add_into(&x, &mut into).unwrap();
        add_into(&x, &mut into).unwrap();
        assert_eq!(buffer.to_vec::<f32>().unwrap(), [1.0; 3]);
        assert_eq!(buffer.version(), 2);
    }

    #[test]
    fn selection_and_clamping() {
        let device = Device::cpu();
        let x = Tensor::from_slice(&device, &[3], &[-2.0f32, 0.5, 9.0]).unwrap();
        let zero = Tensor::scalar(&device, 0.0f32).unwrap();
        let positive = where_(&gt(&x, &zero).unwrap(), &x, &zero).unwrap();
        assert_eq!(positive.to_vec::<f32>().unwrap(), [0.0, 0.5, 9.0]);
        assert_eq!(clamp(&x, -1.0, 1.0).unwrap().to_vec::<f32>().unwrap(), [-1.0, 0.5, 1.0]);
        assert_error(clamp(&x, 1.0, -1.0), "clamp: low = 1 is above high = -1");
    }
}
