//! Elementwise ops of one operand, and their gradients.

use super::elementwise::map;
use crate::Function;
use crate::{Number, Result, Signature, Tensor};

/// Defines an op, its gradient op and their signatures for each function of the number type `W`.
///
/// The gradient op takes the tensor that makes the derivative cheapest: the operand (`of x`) or the
/// result (`of y`).
macro_rules! unary_ops {
    ($(
        $(#[$doc:meta])*
        $name:ident = |$x:ident| $value:expr, flops $flops:literal $(, linear in $linear:literal)?;
        $grad:ident of $kept:ident = |$k:ident, $dy:ident| $slope:expr;
    )+) => {
        $(
            $(#[$doc])*
            ///
            /// # Shapes
            /// `x` any shape, f64, f32 or bf16; returns the same.
            ///
            /// # Errors
            /// [`Error::Signature`](crate::Error::Signature) for another dtype.
            pub fn $name(x: &Tensor) -> Result<Tensor> {
                let mut call = signature_of::$name.call(&[x])?;
                let mut y = call.output(0)?;

                struct Value;

                impl Function<1> for Value {
                    #[inline(always)]
                    fn value<W: Number>(&self, [$x]: [W; 1]) -> W {
                        $value
                    }
                }

                map(&call, &Value, [x], &mut y)?;
                Ok(y.finish())
            }

            #[doc = concat!(
                "The gradient of [`", stringify!($name), "`] with respect to its operand, from `",
                stringify!($kept), "`."
            )]
            ///
            /// # Shapes
            /// Both operands of one shape and float dtype; returns the same.
            ///
            /// # Errors
            /// [`Error::Signature`](crate::Error::Signature).
            pub fn $grad($kept: &Tensor, dy: &Tensor) -> Result<Tensor> {
                let mut call = signature_of::$grad.call(&[$kept, dy])?;
                let mut dx = call.output(0)?;

                struct Slope;

                impl Function<2> for Slope {
                    #[inline(always)]
                    fn value<W: Number>(&self, [$k, $dy]: [W; 2]) -> W {
                        $slope
                    }
                }

                map(&call, &Slope, [$kept, dy], &mut dx)?;
                Ok(dx.finish())
            }
        )+

        /// A static per op, named like the op.
        #[allow(non_upper_case_globals)]
        mod signature_of {
            use super::Signature;

            $(
                pub(super) static $name: Signature =
                    Signature::new(stringify!($name), "x: F[..] -> y: F[..]", $flops)
                        $(.linear_in(&[$linear]))?;
                pub(super) static $grad: Signature = Signature::new(
                    stringify!($grad),
                    concat!(stringify!($kept), ": F[..], dy: F[..] -> dx: F[..]"),
                    $flops + 1,
                ).linear_in(&["dy"]);
            )+
        }

        pub(super) static SIGNATURES: &[&Signature] =
            &[$(&signature_of::$name, &signature_of::$grad),+];
    };
}

unary_ops! {
    /// -x.
    neg = |x| -x, flops 1, linear in "x";
    neg_grad of y = |_y, dy| -dy;

    /// |x|; its derivative at 0 is 0.
    abs = |x| x.abs(), flops 1;
    abs_grad of x = |x, dy| dy * sign(x);

    /// x^2.
    square = |x| x * x, flops 1;
    square_grad of x = |x, dy| dy * (x + x);

    /// The square root.
    sqrt = |x| x.sqrt(), flops 1;
    sqrt_grad of y = |y, dy| dy / (y + y);

    /// 1 / sqrt(x).
    rsqrt = |x| W::ONE / x.sqrt(), flops 2;
    rsqrt_grad of y = |y, dy| dy * W::constant(-0.5) * y * y * y;

    /// 1 / x.
    reciprocal = |x| W::ONE / x, flops 1;
    reciprocal_grad of y = |y, dy| -dy * y * y;

    /// e^x.
    exp = |x| x.exp(), flops 1;
    exp_grad of y = |y, dy| dy * y;

    /// The natural logarithm.
    ln = |x| x.ln(), flops 1;
    ln_grad of x = |x, dy| dy / x;

    /// The sine of an angle in radians.
    sin = |x| x.sin(), flops 1;
    sin_grad of x = |x, dy| dy * x.cos();

    /// The cosine of an angle in radians.
    cos = |x| x.cos(), flops 1;
    cos_grad of x = |x, dy| -dy * x.sin();

    /// The hyperbolic tangent.
    tanh = |x| x.tanh(), flops 1;
    tanh_grad of y = |y, dy| dy * (W::ONE - y * y);

    /// 1 / (1 + e^-x).
    sigmoid = |x| x.sigmoid(), flops 3;
    sigmoid_grad of y = |y, dy| dy * y * (W::ONE - y);

    /// x * sigmoid(x), also called swish (Ramachandran et al. 2017).
    silu = |x| x * x.sigmoid(), flops 4;
    silu_grad of x = |x, dy| dy * silu_slope(x);

    /// max(x, 0); its derivative at 0 is 0.
    relu = |x| x.if_le(W::ZERO, W::ZERO, x), flops 1;
    relu_grad of x = |x, dy| W::ZERO.if_lt(x, dy, W::ZERO);
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
