//! Launches of elementwise ops.

use std::ops::Range;

use meshgrad_kernels::assembler::List;
use meshgrad_kernels::elementwise::{Element, Elementwise, ElementwiseArguments, IterationSpace};
use meshgrad_kernels::{In, Out};

use super::symbol::{self, Constants, Trace};
use crate::Function;
use crate::launch::{Launcher, Operand, Plan, PlanError, float};
use crate::{DType, Number, Result, Tensor, UninitTensor};

/// The output of a kernel.
pub(crate) struct Target {
    pub(super) operand: Operand,
    /// The address of the first element.
    pub(super) address: Out,
}

impl Target {
    /// A whole uninitialized tensor.
    pub(crate) fn uninit(gpu: &Launcher<'_>, y: &UninitTensor) -> Result<Target> {
        Ok(Target { operand: Operand::uninit(y), address: gpu.uninit_ptr(y)? })
    }

    /// A range of one dim of an uninitialized tensor.
    pub(crate) fn part(
        gpu: &Launcher<'_>,
        y: &UninitTensor,
        dim: usize,
        range: Range<usize>,
    ) -> Result<Target> {
        let whole = Target::uninit(gpu, y)?;
        let layout = whole.operand.layout.slice(dim, range)?;
        Ok(Target {
            operand: Operand { layout, ..whole.operand },
            address: whole.address.byte_add(y.dtype().bytes(layout.offset()) as u64),
        })
    }

    /// A tensor that the op changes.
    pub(crate) fn changed(gpu: &Launcher<'_>, into: &Tensor) -> Result<Target> {
        Ok(Target { operand: Operand::of(into), address: gpu.mut_ptr(into)? })
    }

    /// An output with the dtype and layout of `operand` at `address`.
    pub(crate) fn at(operand: Operand, address: Out) -> Target {
        Target { operand, address }
    }
}

struct Same;

impl Function<1> for Same {
    fn value<W: Number>(&self, [x]: [W; 1]) -> W {
        x
    }
}

/// y\[i\] = x\[i\] in y's dtype, for f32, bf16 and bool.
pub(crate) fn cast(gpu: &Launcher<'_>, x: &Tensor, y: &Target) -> Result<()> {
    map(gpu, &|| symbol::trace(&Same), [x], y)
}

/// y\[i\] = x\[i\] in y's dtype, from elements at `from` with the layout of `x`.
pub(crate) fn cast_from(gpu: &Launcher<'_>, x: Operand, from: In, y: &Target) -> Result<()> {
    let plan = gpu.planned(plan(&|| symbol::trace(&Same), [x], y.operand))?;
    launch(gpu, &plan, &[from], y)
}

/// y\[i\] = a\[i\] if condition\[i\], else b\[i\].
pub(crate) fn where_(gpu: &Launcher<'_>, operands: [&Tensor; 3], y: &Target) -> Result<()> {
    struct Where;

    impl Function<3> for Where {
        fn value<W: Number>(&self, [condition, a, b]: [W; 3]) -> W {
            condition.if_eq(W::ZERO, b, a)
        }
    }

    map(gpu, &|| symbol::trace(&Where), operands, y)
}

/// to\[i\] += x\[i\], or to\[i\] = x\[i\] if `to` is `empty`.
pub(crate) fn accumulate(gpu: &Launcher<'_>, x: &Tensor, to: &Target, empty: bool) -> Result<()> {
    struct Sum;

    impl Function<2> for Sum {
        fn value<W: Number>(&self, [into, x]: [W; 2]) -> W {
            into + x
        }
    }

    if empty {
        return cast(gpu, x, to);
    }
    let operands = [to.operand, Operand::of(x)];
    let plan = gpu.planned(plan(&|| symbol::trace(&Sum), operands, to.operand))?;
    // Updating in place is safe: the thread that writes an element is the only one that reads it.
    launch(gpu, &plan, &[to.address.written(), gpu.ptr(x)?], to)
}

/// y\[i\] = f(inputs\[..\]\[i\]), inputs read in row-major order.
pub(crate) fn map<const N: usize>(
    gpu: &Launcher<'_>,
    f: Trace<'_>,
    inputs: [&Tensor; N],
    y: &Target,
) -> Result<()> {
    let plan = gpu.planned(plan(f, inputs.map(Operand::of), y.operand))?;
    let mut addresses = [In(0); N];
    for (address, input) in addresses.iter_mut().zip(inputs) {
        *address = gpu.ptr(input)?;
    }
    launch(gpu, &plan, &addresses, y)
}

/// The plan of an elementwise op.
struct Elements {
    kernel: Plan<Elementwise>,
    space: IterationSpace,
    constants: Constants,
}

/// y\[i\] = f(inputs\[..\]\[i\]) in one kernel.
fn plan<const N: usize>(
    f: Trace<'_>,
    inputs: [Operand; N],
    y: Operand,
) -> Result<Elements, PlanError> {
    let result = element(y.dtype)?;
    let mut formats = [result; N];
    for (format, input) in formats.iter_mut().zip(&inputs) {
        *format = element(input.dtype)?;
    }

    let strides = inputs.each_ref().map(|input| input.layout.strides());
    let space = IterationSpace::new(y.layout.shape(), y.layout.strides(), &strides)?;
    let aligned = y.is_aligned() && inputs.iter().all(Operand::is_aligned);
    let (expression, constants) = f()?;
    let variant = Elementwise::new(expression, &formats, result, space.layout(aligned))?;
    Ok(Elements { kernel: Plan::new(variant.launch(space.elements()), variant), space, constants })
}

fn launch(gpu: &Launcher<'_>, plan: &Elements, operands: &[In], y: &Target) -> Result<()> {
    let arguments = ElementwiseArguments {
        operands: List::new(operands),
        result: y.address,
        scalars: List::new(&plan.constants),
        space: plan.space,
    };
    gpu.run(&plan.kernel, &arguments)
}

/// The kernels' element type of `dtype`.
fn element(dtype: DType) -> Result<Element, PlanError> {
    match dtype {
        DType::Bool => Ok(Element::Bool),
        other => Ok(Element::Float(float(other)?)),
    }
}

#[cfg(test)]
mod tests {
    use meshgrad_kernels::elementwise::Layout as Form;

    use super::*;
    use crate::{Layout, Shape};

    struct Twice;

    impl Function<1> for Twice {
        fn value<W: Number>(&self, [x]: [W; 1]) -> W {
            x + x
        }
    }

    fn operand(dtype: DType, shape: &[usize], offset: usize) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), offset);
        Operand { dtype, layout }
    }

    fn form(x: Operand, y: Operand) -> Form {
        plan(&|| symbol::trace(&Twice), [x], y).unwrap().kernel.variant.layout()
    }

    #[test]
    fn the_layouts_choose_the_kernel() {
        let y = operand(DType::BF16, &[4, 8], 0);
        assert_eq!(form(y, y), Form::Contiguous);
        // Element 8 of bf16 is at byte 16; element 1 is not aligned.
        assert_eq!(form(operand(DType::BF16, &[4, 8], 8), y), Form::Contiguous);
        let strided = |dims| Form::Strided { dims, wide: false };
        assert_eq!(form(operand(DType::BF16, &[4, 8], 1), y), strided(1));

        let transposed = operand(DType::BF16, &[8, 4], 0);
        let transposed =
            Operand { layout: transposed.layout.transpose(0, 1).unwrap(), ..transposed };
        assert_eq!(form(transposed, y), strided(2));
    }

    #[test]
    fn empty_inputs_launch_nothing_and_f64_is_rejected() {
        let none = operand(DType::F32, &[0, 3], 0);
        assert_eq!(plan(&|| symbol::trace(&Twice), [none], none).unwrap().kernel.launch, None);
        let double = operand(DType::F64, &[3], 0);
        let refused = plan(&|| symbol::trace(&Twice), [double], double).err();
        assert_eq!(refused, Some(PlanError::DType(DType::F64)));
    }
}
