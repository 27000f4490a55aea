//! Elementwise ops of one operand, and their gradients.
//!
//! `unary_ops!` is the only list of them. The tape, the checks and the tests take their functions
//! from it: a new op is an entry here.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::elementwise::map;
use crate::Function;
use crate::{Number, Result, Signature, Tensor};

/// Calls the macro `$define` with all elementwise ops of one operand:
///
/// ```text
/// /// The documentation.
/// name: Domain = |x| value, flops per element;
/// name_grad of kept = |kept, dy| gradient;
/// ```
///
/// The gradient op takes the tensor that makes the derivative cheapest: the operand (`of x`) or the
/// result (`of y`). Both functions are generic over the number type `W`.
#[doc(hidden)]
#[macro_export]
macro_rules! unary_ops {
    ($define:ident) => {
        $define! {
            /// |x|; its derivative at 0 is 0.
            abs: Real = |x| x.abs(), flops 1;
            abs_grad of x = |x, dy| dy * sign(x);

            /// x^2.
            square: Real = |x| x * x, flops 1;
            square_grad of x = |x, dy| dy * (x + x);

            /// The square root.
            sqrt: Positive = |x| x.sqrt(), flops 1;
            sqrt_grad of y = |y, dy| dy / (y + y);

            /// 1 / sqrt(x).
            rsqrt: Positive = |x| W::ONE / x.sqrt(), flops 2;
            rsqrt_grad of y = |y, dy| dy * W::constant(-0.5) * y * y * y;

            /// 1 / x.
            reciprocal: Positive = |x| W::ONE / x, flops 1;
            reciprocal_grad of y = |y, dy| -dy * y * y;

            /// e^x.
            exp: Real = |x| x.exp(), flops 1;
            exp_grad of y = |y, dy| dy * y;

            /// The natural logarithm.
            ln: Positive = |x| x.ln(), flops 1;
            ln_grad of x = |x, dy| dy / x;

            /// The sine of an angle in radians.
            sin: Real = |x| x.sin(), flops 1;
            sin_grad of x = |x, dy| dy * x.cos();

            /// The cosine of an angle in radians.
            cos: Real = |x| x.cos(), flops 1;
            cos_grad of x = |x, dy| -dy * x.sin();

            /// The hyperbolic tangent.
            tanh: Real = |x| x.tanh(), flops 1;
            tanh_grad of y = |y, dy| dy * (W::ONE - y * y);

            /// 1 / (1 + e^-x).
            sigmoid: Real = |x| x.sigmoid(), flops 3;
            sigmoid_grad of y = |y, dy| dy * y * (W::ONE - y);

            /// x * sigmoid(x), also called swish (Ramachandran et al. 2017).
            silu: Real = |x| x * x.sigmoid(), flops 4;
            silu_grad of x = |x, dy| dy * silu_slope(x);

            /// ln(1 + e^x), a smooth maximum of x and 0.
            softplus: Real = |x| softplus_of(x), flops 8;
            softplus_grad of x = |x, dy| dy * x.sigmoid();

            /// The error function: 2 / sqrt(pi) times the integral of e^-t^2 from 0 to x.
            erf: Real = |x| x.erf(), flops 8;
            erf_grad of x = |x, dy| dy * W::constant(FRAC_2_SQRT_PI) * (-x * x).exp();

            /// x Phi(x), Phi being the cumulative normal distribution (Hendrycks and Gimpel 2016).
            gelu: Real = |x| x * normal_cdf(x), flops 12;
            gelu_grad of x = |x, dy| dy * (normal_cdf(x) + x * normal_density(x));

            /// [`gelu`] with an approximation of Phi by a tanh, as GPT-2 computes it.
            gelu_tanh: Real = |x| x * gelu_gate(x), flops 12;
            gelu_tanh_grad of x = |x, dy| dy * gelu_tanh_slope(x);

            /// max(x, 0); its derivative at 0 is 0.
            relu: Real = |x| x.if_le(W::ZERO, W::ZERO, x), flops 1;
            relu_grad of x = |x, dy| W::ZERO.if_lt(x, dy, W::ZERO);
        }
    };
}

macro_rules! define {
    ($(
        $(#[$doc:meta])*
        $name:ident: $domain:ident = |$x:ident| $value:expr, flops $flops:literal;
        $grad:ident of $kept:ident = |$k:ident, $dy:ident| $slope:expr;
    )+) => {
        $(
            $(#[$doc])*
            ///
            /// # Shapes
            /// `x` any shape, f64, f32 or bf16; returns the same.
            ///
            /// # Errors
            /// For another dtype.
            pub fn $name(x: &Tensor) -> Result<Tensor> {
                struct Value;

                impl Function<1> for Value {
                    #[inline(always)]
                    fn value<W: Number>(&self, [$x]: [W; 1]) -> W {
                        $value
                    }
                }

                mapped(&signature_of::$name, &Value, [x])
            }

            #[doc = concat!(
                "The gradient of [`", stringify!($name), "`] with respect to its operand, from `",
                stringify!($kept), "`."
            )]
            ///
            /// # Shapes
            /// Both operands of one shape and float dtype; returns the same.
            pub fn $grad($kept: &Tensor, dy: &Tensor) -> Result<Tensor> {
                struct Slope;

                impl Function<2> for Slope {
                    #[inline(always)]
                    fn value<W: Number>(&self, [$k, $dy]: [W; 2]) -> W {
                        $slope
                    }
                }

                mapped(&signature_of::$grad, &Slope, [$kept, dy])
            }
        )+

        /// All elementwise ops of one operand that have a gradient op, by name.
        pub static UNARY: &[UnaryOp] = &[$(
            UnaryOp {
                name: stringify!($name),
                domain: Domain::$domain,
                value: $name,
                grad_name: stringify!($grad),
                grad: $grad,
            }
        ),+];

        /// A static per op, named like the op.
        #[allow(non_upper_case_globals)]
        mod signature_of {
            use super::Signature;

            $(
                pub(super) static $name: Signature =
                    Signature::new(stringify!($name), "x: F[..] -> y: F[..]", $flops);
                pub(super) static $grad: Signature = Signature::new(
                    stringify!($grad),
                    concat!(stringify!($kept), ": F[..], dy: F[..] -> dx: F[..]"),
                    $flops + 1,
                ).linear_in(&["dy"]);
            )+
        }

        pub(super) static SIGNATURES: &[&Signature] =
            &[&NEG, $(&signature_of::$name, &signature_of::$grad),+];
    };
}

unary_ops!(define);

/// Where a function of one number is defined and differentiable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// At every number, up to single points.
    Real,
    /// Above 0.
    Positive,
}

/// An elementwise op of one operand, for checks that treat all of them alike.
#[derive(Debug, Clone, Copy)]
pub struct UnaryOp {
    /// The op's name.
    pub name: &'static str,
    /// Where it is defined.
    pub domain: Domain,
    /// The op.
    pub value: fn(&Tensor) -> Result<Tensor>,
    /// The name of its gradient op.
    pub grad_name: &'static str,
    /// Its gradient op: takes the operand or the result, and dy.
    pub grad: fn(&Tensor, &Tensor) -> Result<Tensor>,
}

static NEG: Signature = Signature::new("neg", "x: F[..] -> y: F[..]", 1).linear_in(&["x"]);

/// -x.
///
/// # Shapes
/// `x` any shape, f64, f32 or bf16; returns the same.
///
/// # Errors
/// For another dtype.
pub fn neg(x: &Tensor) -> Result<Tensor> {
    struct Neg;

    impl Function<1> for Neg {
        #[inline(always)]
        fn value<W: Number>(&self, [x]: [W; 1]) -> W {
            -x
        }
    }

    mapped(&NEG, &Neg, [x])
}

/// `f` of operands of one shape.
fn mapped<const N: usize>(
    signature: &'static Signature,
    f: &impl Function<N>,
    operands: [&Tensor; N],
) -> Result<Tensor> {
    let mut call = signature.call(&operands)?;
    let mut y = call.output(0)?;
    map(&call, f, operands, &mut y)?;
    Ok(y.finish())
}

#[inline(always)]
fn sign<W: Number>(x: W) -> W {
    let negative_or_zero = x.if_lt(W::ZERO, -W::ONE, W::ZERO);
    W::ZERO.if_lt(x, W::ONE, negative_or_zero)
}

/// d/dx x s(x) = s(x) (1 + x (1 - s(x))), s being the sigmoid.
#[inline(always)]
pub(crate) fn silu_slope<W: Number>(x: W) -> W {
    let s = x.sigmoid();
    s * (W::ONE + x * (W::ONE - s))
}

/// max(x, 0) + ln(1 + u) with u = e^-|x|, which does not overflow.
///
/// ln(1 + u) is accurate for small u, too: w = 1 + u loses digits of u, but ln(w) / (w - 1) changes so
/// slowly that the quotient is right (Goldberg 1991, theorem 4).
#[inline(always)]
fn softplus_of<W: Number>(x: W) -> W {
    let u = (-x.abs()).exp();
    let w = W::ONE + u;
    let ln = w.if_eq(W::ONE, u, w.ln() * u / (w - W::ONE));
    x.if_le(W::ZERO, W::ZERO, x) + ln
}

/// The cumulative distribution of standard normal numbers.
#[inline(always)]
fn normal_cdf<W: Number>(x: W) -> W {
    let half = W::constant(0.5);
    half + half * (x * W::constant(FRAC_1_SQRT_2)).erf()
}

/// e^(-x^2 / 2) / sqrt(2 pi).
#[inline(always)]
fn normal_density<W: Number>(x: W) -> W {
    W::constant(0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2) * (W::constant(-0.5) * x * x).exp()
}

/// (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), which is the sigmoid of 2 u.
#[inline(always)]
fn gelu_gate<W: Number>(x: W) -> W {
    let cubic = W::constant(0.044_715) * x * x * x;
    (W::constant(2.0 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2) * (x + cubic)).sigmoid()
}

/// d/dx x g(x) = g (1 + x (1 - g) 2 u'), g being the gate.
#[inline(always)]
fn gelu_tanh_slope<W: Number>(x: W) -> W {
    let gate = gelu_gate(x);
    let cubic = W::constant(3.0 * 0.044_715) * x * x;
    let slope = W::constant(2.0 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2) * (W::ONE + cubic);
    gate * (W::ONE + x * (W::ONE - gate) * slope)
}
