//! The strided form: an index is decomposed into coordinates by division.

use super::evaluate::evaluate;
use super::{Elementwise, IterationSpace, Parameters, THREADS};
use crate::assembler::{
    Arguments, F32, GlobalAddress, Integer, Kernel, Launch, Pred, Ptx, Register, S32, S64, U32, U64,
};

/// Elements per thread, whose loads are in flight together. They are [`THREADS`] apart.
pub(crate) const PER_THREAD: u32 = 4;

/// Elements per CTA.
pub(crate) const TILE: u32 = THREADS * PER_THREAD;

/// Pushes the extents, outermost first, and the strides of the result and each operand.
pub(crate) fn push_space(arguments: &mut Arguments, space: &IterationSpace, wide: bool) {
    arguments.push_u64(space.elements());
    for extent in space.extents() {
        match wide {
            true => arguments.push_u64(*extent),
            false => arguments.push_u32(*extent as u32),
        };
    }
    for stride in space.strides().flatten() {
        match wide {
            true => arguments.push_i64(*stride),
            false => arguments.push_i32(*stride as i32),
        };
    }
}

/// An unsigned index with the signed offset type `O` of the same width: 32 or 64 bits.
pub(crate) trait Index<O: Integer>: Integer {
    /// Declares a parameter for an extent.
    fn extent<'k>(k: &'k Kernel, name: &str) -> Register<'k, Self>;
    /// Declares a parameter for a stride.
    fn stride<'k>(k: &'k Kernel, name: &str) -> Register<'k, O>;
    /// The index of element `in_tile` of this CTA.
    fn of_element<'k>(k: &'k Kernel, in_tile: U32<'k>) -> Register<'k, Self>;
    /// Whether the index is less than a 64-bit count.
    fn is_below<'k>(index: Register<'k, Self>, count: U64<'k>) -> Pred<'k>;
    /// The same bits, signed.
    fn signed(index: Register<'_, Self>) -> Register<'_, O>;
    /// Converts an offset in elements to bytes.
    fn bytes(offset: Register<'_, O>, size: u32) -> U64<'_>;
}

impl Index<i32> for u32 {
    fn extent<'k>(k: &'k Kernel, name: &str) -> U32<'k> {
        k.u32_param(name)
    }

    fn stride<'k>(k: &'k Kernel, name: &str) -> S32<'k> {
        k.i32_param(name)
    }

    fn of_element<'k>(k: &'k Kernel, in_tile: U32<'k>) -> U32<'k> {
        k.cta().mad(TILE, in_tile)
    }

    fn is_below<'k>(index: U32<'k>, count: U64<'k>) -> Pred<'k> {
        index.lt(count.low())
    }

    fn signed(index: U32<'_>) -> S32<'_> {
        index.signed()
    }

    fn bytes(offset: S32<'_>, size: u32) -> U64<'_> {
        offset.mul_wide(size as i32).unsigned()
    }
}

impl Index<i64> for u64 {
    fn extent<'k>(k: &'k Kernel, name: &str) -> U64<'k> {
        k.u64_param(name)
    }

    fn stride<'k>(k: &'k Kernel, name: &str) -> S64<'k> {
        k.i64_param(name)
    }

    fn of_element<'k>(k: &'k Kernel, in_tile: U32<'k>) -> U64<'k> {
        k.cta().mul_wide(TILE) + in_tile.wide()
    }

    fn is_below<'k>(index: U64<'k>, count: U64<'k>) -> Pred<'k> {
        index.lt(count)
    }

    fn signed(index: U64<'_>) -> S64<'_> {
        index.signed()
    }

    fn bytes(offset: S64<'_>, size: u32) -> U64<'_> {
        (offset * i64::from(size)).unsigned()
    }
}

/// The indices of the elements of a thread.
#[track_caller]
pub(crate) fn indices<'k, I: Index<O>, O: Integer>(k: &'k Kernel) -> Vec<Register<'k, I>> {
    let thread = k.thread();
    let index = |i| I::of_element(k, thread + i * THREADS);
    (0..PER_THREAD).map(index).collect()
}

/// The launch over `elements` elements; `None` if there are none.
pub(crate) fn launch(elements: u64) -> Option<Launch> {
    let ctas = u32::try_from(elements.div_ceil(u64::from(TILE)));
    Launch::new([ctas.unwrap_or(u32::MAX), 1, 1], THREADS)
}

/// An iteration space in registers.
pub(crate) struct Strides<'k, I, O> {
    pub(crate) elements: U64<'k>,
    extents: Vec<Register<'k, I>>,
    /// Strides of the result, then of each operand.
    strides: Vec<Vec<Register<'k, O>>>,
}

impl<'k, I: Index<O>, O: Integer> Strides<'k, I, O> {
    /// Declares the parameters for `dims` extents and the strides of `tensors` tensors.
    pub(crate) fn parameters(k: &'k Kernel, dims: usize, tensors: usize) -> Self {
        let elements = k.u64_param("elements");
        let extents = (0..dims).map(|dim| I::extent(k, &format!("extent{dim}")));
        let extents = extents.collect();
        let of_tensor = |tensor: usize| {
            let stride = |dim| I::stride(k, &format!("stride{tensor}_{dim}"));
            (0..dims).map(stride).collect()
        };
        Strides {
            elements,
            extents,
            strides: (0..tensors).map(of_tensor).collect(),
        }
    }

    /// The coordinates of an index in row-major order, outermost first.
    pub(crate) fn coordinates(&self, index: Register<'k, I>) -> Vec<Register<'k, I>> {
        let mut rest = index;
        let mut inner_first = Vec::with_capacity(self.extents.len());
        for extent in self.extents[1..].iter().rev() {
            let quotient = rest / *extent;
            inner_first.push(rest - quotient * *extent);
            rest = quotient;
        }
        inner_first.push(rest);
        inner_first.reverse();
        inner_first
    }

    /// The address of the element with these coordinates in one of the tensors.
    pub(crate) fn address(
        &self,
        tensor: usize,
        start: GlobalAddress<'k>,
        size: u32,
        coordinates: &[Register<'k, I>],
    ) -> GlobalAddress<'k> {
        start.byte_add(self.bytes(tensor, size, coordinates))
    }

    /// The element's offset from the first one, in bytes.
    pub(crate) fn bytes(
        &self,
        tensor: usize,
        size: u32,
        coordinates: &[Register<'k, I>],
    ) -> U64<'k> {
        I::bytes(self.offset(tensor, coordinates), size)
    }

    /// The element's offset from the first one, in elements.
    pub(crate) fn offset(&self, tensor: usize, coordinates: &[Register<'k, I>]) -> Register<'k, O> {
        let terms = self.strides[tensor].iter().zip(coordinates);
        let mut terms = terms.map(|(stride, x)| (*stride, I::signed(*x)));
        match terms.next() {
            Some((stride, x)) => terms.fold(x * stride, |sum, (stride, x)| x.mad(stride, sum)),
            None => I::signed(coordinates[0]),
        }
    }
}

pub(super) fn ptx<I: Index<O>, O: Integer>(variant: &Elementwise, dims: usize) -> Ptx {
    let k = &variant.kernel();
    let parameters = variant.parameters(k);
    let tensors = 1 + parameters.operands.len();
    let space = Strides::<I, O>::parameters(k, dims, tensors);

    let indices = indices(k).into_iter();
    let loaded: Vec<LoadedElement<'_>> = indices
        .map(|index| load(variant, &parameters, &space, index))
        .collect();
    for element in loaded {
        let value = evaluate(
            k,
            &variant.expression,
            &element.operands,
            &parameters.scalars,
        );
        variant
            .result
            .store_if(element.exists, element.result, value);
    }
    k.finish()
}

/// One of a thread's elements, with its operands loaded.
struct LoadedElement<'k> {
    exists: Pred<'k>,
    operands: Vec<F32<'k>>,
    result: GlobalAddress<'k>,
}

fn load<'k, I: Index<O>, O: Integer>(
    variant: &Elementwise,
    parameters: &Parameters<'k>,
    space: &Strides<'k, I, O>,
    index: Register<'k, I>,
) -> LoadedElement<'k> {
    let exists = I::is_below(index, space.elements);
    let coordinates = space.coordinates(index);
    let operand = |(i, (format, start)): (usize, &(super::Element, GlobalAddress<'k>))| {
        let address = space.address(1 + i, *start, format.size(), &coordinates);
        format.load_if(exists, address)
    };
    let operands = parameters
        .operands
        .iter()
        .enumerate()
        .map(operand)
        .collect();
    let size = variant.result.size();
    let result = space.address(0, parameters.result, size, &coordinates);
    LoadedElement {
        exists,
        operands,
        result,
    }
}
