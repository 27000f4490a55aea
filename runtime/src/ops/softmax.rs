//! Softmax and log-softmax along the last dim, and their gradients, computed from the results.
//!
//! As in PyTorch, the result of a row of minus infinities is NaN. Use a large negative finite
//! number as the mask if a whole row may be masked.

use super::dense_rows;
use super::row_function::map_rows;
use crate::cpu::softmax as kernels;
use crate::launch::softmax::{self as launch, Function};
use crate::{Number, Result, RowFunction, Signature, Tensor, for_float};

/// Operands y and dy; the number of a row is sum(y dy).
struct SoftmaxGrad;

impl RowFunction<2, 1> for SoftmaxGrad {
    #[inline(always)]
    fn summand<W: Number>(&self, _: usize, [y, dy]: [W; 2], _: [W; 1]) -> W {
        y * dy
    }

    #[inline(always)]
    fn value<W: Number>(&self, [y, dy]: [W; 2], [dot]: [W; 1]) -> W {
        y * (dy - dot)
    }
}

/// Operands y and dy; the number of a row is sum(dy).
struct LogSoftmaxGrad;

impl RowFunction<2, 1> for LogSoftmaxGrad {
    #[inline(always)]
    fn summand<W: Number>(&self, _: usize, [_, dy]: [W; 2], _: [W; 1]) -> W {
        dy
    }

    #[inline(always)]
    fn value<W: Number>(&self, [y, dy]: [W; 2], [total]: [W; 1]) -> W {
        dy - y.exp() * total
    }
}

/// Defines an op on whole rows and its gradient op.
macro_rules! row_ops {
    ($(
        $(#[$doc:meta])*
        $name:ident, $function:ident, flops $flops:literal;
        $(#[$grad_doc:meta])*
        $grad:ident, $grad_function:ident, flops $grad_flops:literal;
    )+) => {
        $(
            $(#[$doc])*
            ///
            /// # Shapes
            /// `x` [.., D], float; returns the same.
            pub fn $name(x: &Tensor) -> Result<Tensor> {
                let mut call = signature_of::$name.call(&[x])?;
                let x = dense_rows(x)?;
                let mut y = call.output(0)?;
                let columns = call.extent("d");
                match call.device().is_gpu() {
                    true => call.launch(|gpu| launch::softmax(gpu, Function::$function, &x, &y)),
                    false => call.compute(|| {
                        for_float!(x.dtype(), T => kernels::$name::<T>(&x, columns, y.slice()?))
                    }),
                }?;
                Ok(y.finish())
            }

            $(#[$grad_doc])*
            ///
            /// # Shapes
            /// `y` (the result) and `dy` [.., D] of one float dtype; returns the same.
            pub fn $grad(y: &Tensor, dy: &Tensor) -> Result<Tensor> {
                let mut call = signature_of::$grad.call(&[y, dy])?;
                let mut dx = call.output(0)?;
                map_rows(&call, &$grad_function, [y, dy], [], &mut dx, &mut [])?;
                Ok(dx.finish())
            }
        )+

        /// A static per op, named like the op.
        #[allow(non_upper_case_globals)]
        mod signature_of {
            use super::Signature;

            $(
                pub(super) static $name: Signature =
                    Signature::new(stringify!($name), "x: F[.. d!] -> y: F[.. d]", $flops);
                pub(super) static $grad: Signature = Signature::new(
                    stringify!($grad),
                    "y: F[.. d!], dy: F[.. d!] -> dx: F[.. d]",
                    $grad_flops,
                ).linear_in(&["dy"]);
            )+
        }

        pub(super) static SIGNATURES: &[&Signature] =
            &[$(&signature_of::$name, &signature_of::$grad),+];
    };
}

row_ops! {
    /// e^(x - m) / sum(e^(x - m)) with m = max(x), per row.
    softmax, Softmax, flops 5;
    /// The gradient of [`softmax`]: y (dy - sum(y dy)).
    softmax_grad, SoftmaxGrad, flops 4;

    /// x - m - ln(sum(e^(x - m))) with m = max(x), per row.
    log_softmax, LogSoftmax, flops 4;
    /// The gradient of [`log_softmax`]: dy - e^y sum(dy).
    log_softmax_grad, LogSoftmaxGrad, flops 4;
}
