//! Elementwise functions on any device.

use meshgrad_error::bail;

use crate::Function;
use crate::cpu::elementwise as cpu;
use crate::launch::elementwise::{self as launch, Target};
use crate::launch::symbol::{self, Trace};
use crate::{Call, Result, Tensor, UninitTensor};

/// `y[i] = f(inputs[0][i], inputs[1][i], ..)`, on any device. Use it to implement an elementwise
/// op.
///
/// ```
/// use meshgrad_runtime::{Device, Function, Number, Result, Signature, Tensor, ops};
///
/// static SOFTPLUS: Signature = Signature::new("softplus", "x: F[..] -> y: F[..]", 3);
///
/// /// ln(1 + e^x).
/// struct Softplus;
///
/// impl Function<1> for Softplus {
///     #[inline(always)]
///     fn value<W: Number>(&self, [x]: [W; 1]) -> W {
///         (W::ONE + x.exp()).ln()
///     }
/// }
///
/// fn softplus(x: &Tensor) -> Result<Tensor> {
///     let mut call = SOFTPLUS.call(&[x])?;
///     let mut y = call.output(0)?;
///     ops::map(&call, &Softplus, [x], &mut y)?;
///     Ok(y.finish())
/// }
///
/// # fn main() -> Result<()> {
/// let x = Tensor::from_slice(&Device::cpu(), &[2], &[0.0f64, 30.0])?;
/// assert_eq!(softplus(&x)?.to_vec::<f64>()?[0], 2f64.ln());
/// # Ok(())
/// # }
/// ```
///
/// # Shapes
/// `inputs` of `y`'s shape and dtype, f64, f32 or bf16. Broadcast them with
/// [`Tensor::broadcast_to`].
///
/// # Errors
/// For other shapes or dtypes; on a GPU when `f` has too many operations or constants.
pub fn map<const N: usize>(
    call: &Call,
    f: &impl Function<N>,
    inputs: [&Tensor; N],
    y: &mut UninitTensor,
) -> Result<()> {
    check(call, &inputs, y)?;
    run(call, &|| symbol::trace(f), inputs, y, &|y| cpu::map(f, inputs, y))
}

fn check(call: &Call, inputs: &[&Tensor], y: &UninitTensor) -> Result<()> {
    let fits = |x: &&&Tensor| x.shape() == y.shape() && x.dtype() == y.dtype();
    let Some(other) = inputs.iter().find(|x| !fits(x)) else {
        return Ok(());
    };
    let (dtype, shape) = (y.dtype(), y.shape());
    bail!(
        Invalid,
        "{}: cannot map {other:?} to {dtype}{shape}; cast and broadcast it first",
        call.name()
    )
}

/// `y[i] = (f(inputs[0][i], inputs[1][i], ..) == 1)`, for an `f` that returns 0 or 1.
pub(super) fn test<const N: usize>(
    call: &Call,
    f: &impl Function<N>,
    inputs: [&Tensor; N],
    y: &mut UninitTensor,
) -> Result<()> {
    run(call, &|| symbol::trace(f), inputs, y, &|y| cpu::predicate(f, inputs, y))
}

/// Runs `f` on a GPU, or `on_cpu` on a CPU. Compiled once per number of inputs, not per function.
fn run<const N: usize>(
    call: &Call,
    f: Trace<'_>,
    inputs: [&Tensor; N],
    y: &mut UninitTensor,
    on_cpu: &dyn Fn(&mut UninitTensor) -> Result<()>,
) -> Result<()> {
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::map(gpu, f, inputs, &Target::uninit(gpu, y)?)),
        false => call.compute(|| on_cpu(y)),
    }
}
