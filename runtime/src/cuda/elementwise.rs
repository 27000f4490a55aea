//! Plans of the elementwise ops.

use meshgrad_kernels::elementwise::{Element, Elementwise, ElementwiseArguments, Walk};
use meshgrad_kernels::expression::Expression;

use crate::cpu::elementwise::Function;
use crate::plan::{Launcher, Plan, aligned};
use crate::{DType, Fresh, Layout, Result, Tensor, symbol};

/// Where a kernel writes.
pub(crate) struct Target {
    dtype: DType,
    layout: Layout,
    address: u64,
}

impl Target {
    /// The whole of a tensor in the making.
    pub(crate) fn fresh(y: &Fresh) -> Result<Target> {
        Ok(Target {
            dtype: y.dtype(),
            layout: Layout::contiguous(*y.shape(), 0),
            address: y.address()?,
        })
    }

    /// The elements of a tensor that `op` changes.
    pub(crate) fn changed(op: &'static str, into: &Tensor) -> Result<Target> {
        Ok(Target {
            dtype: into.dtype(),
            layout: *into.layout(),
            address: into.address_to_write(op)?,
        })
    }
}

/// y\[i\] = f(inputs\[..\]\[i\]), inputs read in row-major order.
pub(crate) fn map<const N: usize>(
    gpu: &Launcher<'_>,
    f: &impl Function<N>,
    inputs: [&Tensor; N],
    y: &Target,
) -> Result<()> {
    let (expression, constants) = symbol::write_down(f);
    compute(gpu, expression, inputs, &constants, y)
}

/// y\[i\] = x\[i\] in y's dtype.
pub(crate) fn copy(gpu: &Launcher<'_>, x: &Tensor, y: &Target) -> Result<()> {
    compute(gpu, Expression::operand(0), [x], &[], y)
}

/// y\[i\] = value.
pub(crate) fn fill(gpu: &Launcher<'_>, value: f32, y: &Target) -> Result<()> {
    compute(gpu, Expression::scalar(0), [], &[value], y)
}

/// y\[i\] is a\[i\] where condition\[i\] holds, else b\[i\].
pub(crate) fn select(
    gpu: &Launcher<'_>,
    [condition, a, b]: [&Tensor; 3],
    y: &Target,
) -> Result<()> {
    let [holds, then, otherwise] = [0, 1, 2].map(Expression::operand);
    compute(
        gpu,
        holds.select(then, otherwise),
        [condition, a, b],
        &[],
        y,
    )
}

/// into\[i\] += x\[i\], or into\[i\] = x\[i\] where `into` is `empty`.
pub(crate) fn accumulate(
    gpu: &Launcher<'_>,
    x: &Tensor,
    into: &Tensor,
    empty: bool,
    to: &Target,
) -> Result<()> {
    match empty {
        true => copy(gpu, x, to),
        false => {
            let sum = Expression::operand(0) + Expression::operand(1);
            compute(gpu, sum, [into, x], &[], to)
        }
    }
}

/// Launches the kernel of `expression`.
fn compute<const N: usize>(
    gpu: &Launcher<'_>,
    expression: Expression,
    inputs: [&Tensor; N],
    scalars: &[f32],
    y: &Target,
) -> Result<()> {
    let result = element(gpu, y.dtype)?;
    let (mut formats, mut addresses) = ([result; N], [0; N]);
    for (at, input) in inputs.iter().enumerate() {
        formats[at] = element(gpu, input.dtype())?;
        addresses[at] = input.address()?;
    }

    let strides = inputs.map(|input| input.layout().strides());
    let walk = Walk::new(y.layout.shape(), y.layout.strides(), &strides);
    let walk = walk.map_err(|reason| gpu.refused(reason))?;
    let layout = walk.layout(aligned(&addresses) && aligned(&[y.address]));
    let variant = Elementwise::new(expression, &formats, result, layout);
    let variant = variant.map_err(|reason| gpu.refused(reason))?;

    let plan = Plan {
        launch: variant.launch(walk.elements()),
        variant,
    };
    let arguments = ElementwiseArguments {
        operands: &addresses,
        result: y.address,
        walk: &walk,
        scalars,
    };
    gpu.launch(&plan, &arguments.arguments(&plan.variant))
}

/// How a kernel sees elements of `dtype`.
fn element(gpu: &Launcher<'_>, dtype: DType) -> Result<Element> {
    match dtype {
        DType::F32 => Ok(Element::F32),
        DType::BF16 => Ok(Element::Bf16),
        DType::Bool => Ok(Element::Bool),
        other => Err(gpu.no_kernel_for(other)),
    }
}
