//! Launches of copies between layouts, casts and fills.

use meshgrad_kernels::copies::{
    Arange, ArangeArguments, At, Cast, CastArguments, Copy, CopyArguments, Fill, Format, Transpose,
    TransposeSpace, Unit,
};
use meshgrad_kernels::elementwise::IterationSpace;

use super::elementwise::Target;
use crate::launch::{Launcher, Operand, Plan, PlanError};
use crate::{DType, Element, Result, Signature, Tensor, UninitTensor};

pub(crate) static CONTIGUOUS: Signature =
    Signature::new("contiguous", "x: T[..] -> y: T[..]", 0).linear_in(&["x"]);

/// A row-major copy of `x`, which is on a GPU.
pub(crate) fn contiguous_copy(x: &Tensor) -> Result<Tensor> {
    let mut call = CONTIGUOUS.call(&[x])?;
    let mut y = call.output(0)?;
    match x.is_contiguous() {
        true => y.copy_from_gpu(x),
        false => call.launch(|gpu| copy(gpu, x, &Target::uninit(gpu, &y)?)),
    }?;
    Ok(y.finish())
}

/// y\[c\] = x\[c\], where x and y have the same dtype.
pub(crate) fn copy(gpu: &Launcher<'_>, x: &Tensor, y: &Target) -> Result<()> {
    let (from, to) = (gpu.ptr(x)?, y.address);
    let (x, y) = (Operand::of(x), &y.operand);
    let space = gpu.planned(space(&x, y))?;
    if let Some((kernel, transposed)) = transposing(&x, &space) {
        let arguments = kernel.variant.arguments(from, to, &transposed);
        return gpu.run(&kernel, &arguments);
    }

    let (kernel, space) = copying(&x, y, &space);
    let arguments = CopyArguments { x: from, y: to, space, at: None };
    gpu.run(&kernel, &arguments)
}

/// into\[b, at + t, ..\] = x\[b, t, ..\] with the position `at` in GPU memory. A position out of
/// range is reported, and nothing is copied.
pub(crate) fn copy_at(gpu: &Launcher<'_>, x: &Tensor, into: &Tensor, at: &Tensor) -> Result<()> {
    let extent = (into.shape()[1] + 1).saturating_sub(x.shape()[1]);
    let position = gpu.ptr(at)?;
    let (from, to) = (gpu.ptr(x)?, gpu.mut_ptr(into)?);
    let [x, into] = [x, into].map(Operand::of);
    let plan = gpu.planned(Positioned::plan(&x, &into))?;
    let arguments = CopyArguments {
        x: from,
        y: to,
        space: plan.space,
        at: Some(At {
            position,
            stride: plan.stride,
            extent: extent as u64,
            faults: gpu.fault_site(extent),
        }),
    };
    gpu.run(&plan.kernel, &arguments)
}

/// y\[c\] = x\[c\] in y's dtype.
pub(crate) fn cast(gpu: &Launcher<'_>, x: &Tensor, y: &Target) -> Result<()> {
    let plan = gpu.planned(casting(&Operand::of(x), &y.operand))?;
    let (kernel, space) = plan;
    let arguments = CastArguments { x: gpu.ptr(x)?, y: y.address, space };
    gpu.run(&kernel, &arguments)
}

/// y\[c\] = value.
pub(crate) fn fill<T: Element>(gpu: &Launcher<'_>, value: T, y: &Target) -> Result<()> {
    let elements = y.operand.layout.shape().elements() as u64;
    let variant = Fill::new(unit(T::DTYPE), y.operand.is_aligned());
    let bits = repeated(bytemuck::bytes_of(&value));
    let arguments = variant.arguments(y.address, elements, bits);
    let kernel = Plan::new(variant.launch(elements), variant);
    gpu.run(&kernel, &arguments)
}

/// y\[i\] = i, of an index dtype.
pub(crate) fn arange(gpu: &Launcher<'_>, y: &UninitTensor) -> Result<()> {
    let elements = y.shape().elements() as u64;
    let variant = Arange::new(y.dtype().bytes(1) == 8);
    let arguments = ArangeArguments { y: gpu.uninit_ptr(y)?, elements };
    let kernel = Plan::new(variant.launch(elements), variant);
    gpu.run(&kernel, &arguments)
}

/// The bits of 1, 2, 4 or 8 bytes, repeated to 8 bytes.
fn repeated(bytes: &[u8]) -> u64 {
    let mut repeated = [0; 8];
    for (to, from) in repeated.iter_mut().zip(bytes.iter().cycle()) {
        *to = *from;
    }
    u64::from_ne_bytes(repeated)
}

/// A copy through tiles in shared memory. `None` if the space is not a transpose, or if a dim is
/// too short for tiles.
fn transposing(x: &Operand, space: &IterationSpace) -> Option<(Plan<Transpose>, TransposeSpace)> {
    let (variant, transposed) = Transpose::new(unit(x.dtype), space)?;
    let launch = Some(variant.launch(&transposed)?);
    Some((Plan { variant, launch }, transposed))
}

/// A copy in the largest possible units.
fn copying(x: &Operand, y: &Operand, space: &IterationSpace) -> (Plan<Copy>, IterationSpace) {
    let (unit, space) = unit(x.dtype).largest(space, start(x) | start(y));
    let variant = Copy::new(unit, &space, false);
    let launch = variant.launch(space.elements());
    (Plan { variant, launch }, space)
}

/// A copy to a position in GPU memory.
#[derive(Debug)]
struct Positioned {
    kernel: Plan<Copy>,
    space: IterationSpace,
    /// Bytes between positions.
    stride: u64,
}

impl Positioned {
    fn plan(x: &Operand, into: &Operand) -> Result<Positioned, PlanError> {
        let stride = x.dtype.bytes(into.layout.shape()[2..].iter().product()) as u64;
        let space = space(x, into)?;
        let starts = start(x) | start(into) | stride;
        let (unit, space) = unit(x.dtype).largest(&space, starts);
        let variant = Copy::new(unit, &space, true);
        Ok(Positioned {
            kernel: Plan::new(variant.launch(space.elements()), variant),
            space,
            stride,
        })
    }
}

fn casting(x: &Operand, y: &Operand) -> Result<(Plan<Cast>, IterationSpace), PlanError> {
    let space = space(x, y)?;
    let variant = Cast::new(format(x.dtype), format(y.dtype), &space);
    let launch = variant.launch(space.elements());
    Ok((Plan { variant, launch }, space))
}

/// The iteration space of the elements of `x`, in the layouts of `x` and `y`.
fn space(x: &Operand, y: &Operand) -> Result<IterationSpace, PlanError> {
    let (x, y) = (&x.layout, &y.layout);
    Ok(IterationSpace::new(x.shape(), y.strides(), &[x.strides()])?)
}

/// The offset of its first element, in bytes.
fn start(x: &Operand) -> u64 {
    x.dtype.bytes(x.layout.offset()) as u64
}

/// The copy unit of an element.
pub(super) fn unit(dtype: DType) -> Unit {
    match dtype {
        DType::F64 | DType::I64 => Unit::B8,
        DType::F32 | DType::I32 | DType::U32 => Unit::B4,
        DType::BF16 | DType::F16 => Unit::B2,
        DType::U8 | DType::Bool => Unit::B1,
    }
}

pub(super) fn format(dtype: DType) -> Format {
    match dtype {
        DType::F64 => Format::F64,
        DType::F32 => Format::F32,
        DType::BF16 => Format::Bf16,
        DType::F16 => Format::F16,
        DType::I64 => Format::I64,
        DType::I32 => Format::I32,
        DType::U32 => Format::U32,
        DType::U8 => Format::U8,
        DType::Bool => Format::Bool,
    }
}

#[cfg(test)]
mod tests {
    use meshgrad_kernels::Variant;

    use super::*;
    use crate::{Layout, Shape};

    fn operand(dtype: DType, shape: &[usize], offset: usize) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), offset);
        Operand { dtype, layout }
    }

    fn transposed(x: Operand) -> Operand {
        Operand { layout: x.layout.transpose(0, 1).unwrap(), ..x }
    }

    fn name(x: &Operand, y: &Operand) -> String {
        let space = space(x, y).unwrap();
        match transposing(x, &space) {
            Some((kernel, _)) => kernel.variant.entry(),
            None => copying(x, y, &space).0.variant.entry(),
        }
    }

    #[test]
    fn layouts_choose_the_kernel() {
        let y = operand(DType::BF16, &[32, 64], 0);
        assert_eq!(name(&operand(DType::BF16, &[32, 64], 8), &y), "copy_b16_strided1");
        assert_eq!(name(&operand(DType::BF16, &[32, 64], 2), &y), "copy_b4_strided1");
        assert_eq!(name(&operand(DType::BF16, &[32, 64], 1), &y), "copy_b2_strided1");
        let x = transposed(operand(DType::BF16, &[64, 32], 3));
        assert_eq!(name(&x, &y), "transpose_b2_outer0");
        let few = transposed(operand(DType::I64, &[2, 32], 0));
        assert_eq!(name(&few, &operand(DType::I64, &[32, 2], 0)), "copy_b8_strided2");
    }

    #[test]
    fn without_elements_nothing_is_launched() {
        let none = operand(DType::U8, &[0, 64], 0);
        let x = transposed(operand(DType::U8, &[64, 0], 0));
        let space = space(&x, &none).unwrap();
        assert!(transposing(&x, &space).is_none());
        assert_eq!(copying(&x, &none, &space).0.launch, None);
    }

    #[test]
    fn positions_are_multiples_of_the_unit() {
        let x = operand(DType::BF16, &[2, 4, 24], 0);
        let unit = |inner| {
            let x = operand(DType::BF16, &[2, 4, inner], 0);
            let into = operand(DType::BF16, &[2, 9, inner], 0);
            Positioned::plan(&x, &into).unwrap().kernel.variant
        };
        let space = space(&x, &operand(DType::BF16, &[2, 9, 24], 0)).unwrap();
        assert_eq!(unit(24), Copy::new(Unit::B16, &space, true));
        assert_eq!(unit(20), Copy::new(Unit::B8, &space, true));
        assert_eq!(unit(7), Copy::new(Unit::B2, &space, true));
    }

    #[test]
    fn bits_are_repeated() {
        assert_eq!(repeated(&[0x5a]), 0x5a5a_5a5a_5a5a_5a5a);
        assert_eq!(repeated(&1.0f32.to_ne_bytes()), 0x3f80_0000_3f80_0000);
        assert_eq!(repeated(&7u64.to_ne_bytes()), 7);
    }
}
