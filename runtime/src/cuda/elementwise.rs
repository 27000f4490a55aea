//! Plans of the elementwise ops.

use meshgrad_kernels::elementwise::{Element, Elementwise, ElementwiseArguments, Walk};

use crate::cpu::elementwise::Function;
use crate::plan::{Launcher, Plan, aligned};
use crate::{DType, Fresh, Layout, Number, Result, Tensor, symbol};

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

/// y\[i\] = x\[i\] in y's dtype.
pub(crate) fn copy(gpu: &Launcher<'_>, x: &Tensor, y: &Target) -> Result<()> {
    struct Same;

    impl Function<1> for Same {
        fn value<W: Number>(&self, [x]: [W; 1]) -> W {
            x
        }
    }

    map(gpu, &Same, [x], y)
}

/// y\[i\] = value.
pub(crate) fn fill(gpu: &Launcher<'_>, value: f64, y: &Target) -> Result<()> {
    struct Fill(f64);

    impl Function<0> for Fill {
        fn value<W: Number>(&self, []: [W; 0]) -> W {
            W::constant(self.0)
        }
    }

    map(gpu, &Fill(value), [], y)
}

/// y\[i\] is a\[i\] where condition\[i\] holds, else b\[i\].
pub(crate) fn select(gpu: &Launcher<'_>, operands: [&Tensor; 3], y: &Target) -> Result<()> {
    struct Select;

    impl Function<3> for Select {
        fn value<W: Number>(&self, [condition, a, b]: [W; 3]) -> W {
            condition.if_eq(W::ZERO, b, a)
        }
    }

    map(gpu, &Select, operands, y)
}

/// into\[i\] += x\[i\], or into\[i\] = x\[i\] where `into` is `empty`; `to` is where `into` lies.
pub(crate) fn accumulate(
    gpu: &Launcher<'_>,
    x: &Tensor,
    into: &Tensor,
    empty: bool,
    to: &Target,
) -> Result<()> {
    struct Sum;

    impl Function<2> for Sum {
        fn value<W: Number>(&self, [into, x]: [W; 2]) -> W {
            into + x
        }
    }

    match empty {
        true => copy(gpu, x, to),
        false => map(gpu, &Sum, [into, x], to),
    }
}

/// y\[i\] = f(inputs\[..\]\[i\]), inputs read in row-major order.
pub(crate) fn map<const N: usize>(
    gpu: &Launcher<'_>,
    f: &impl Function<N>,
    inputs: [&Tensor; N],
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
    let (expression, constants) = symbol::write_down(f);
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
        scalars: &constants,
    };
    gpu.launch(&plan, &arguments.arguments(&plan.variant))
}

/// How a kernel sees elements of `dtype`.
fn element(gpu: &Launcher<'_>, dtype: DType) -> Result<Element> {
    match dtype {
        DType::Bool => Ok(Element::Bool),
        other => Ok(Element::Float(gpu.float(other)?)),
    }
}
