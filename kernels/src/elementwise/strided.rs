//! The strided form: an index is decomposed into coordinates by division.

use super::evaluate::evaluate;
use super::{Elementwise, IterationSpace, Parameters, THREADS};
use crate::assembler::{
    Argument, ArgumentFor, Arguments, F32, GlobalAddress, Integer, Kernel, Launch, ParameterKind,
    Pred, Register, S32, S64, U32, U64,
};

/// Elements per thread, whose loads are in flight together. They are [`THREADS`] apart.
pub(crate) const PER_THREAD: u32 = 4;

/// Elements per CTA.
pub(crate) const TILE: u32 = THREADS * PER_THREAD;

/// The form of an iteration space's parameters.
#[derive(Clone, Copy)]
pub struct SpaceForm {
    /// Number of dims.
    pub dims: u8,
    /// Whether indices and offsets need 64 bits.
    pub wide: bool,
    /// Number of tensors.
    pub tensors: usize,
}

/// An iteration space in registers.
#[derive(Clone)]
pub enum Space<'k> {
    /// With 32-bit indices and offsets.
    Narrow(Strides<'k, u32, i32>),
    /// With 64-bit indices and offsets.
    Wide(Strides<'k, u64, i64>),
}

impl Argument for IterationSpace {
    type InKernel<'k> = Space<'k>;
}

/// The number of elements, the extents, outermost first, and the strides of the result and each
/// operand. Without dims, only the number of elements.
impl ArgumentFor<SpaceForm> for IterationSpace {
    #[track_caller]
    fn declare<'k>(k: &'k Kernel, _: &str, form: &SpaceForm) -> Space<'k> {
        match form.wide {
            false => Space::Narrow(Strides::declare(k, form)),
            true => Space::Wide(Strides::declare(k, form)),
        }
    }

    fn push(&self, form: &SpaceForm, arguments: &mut Arguments) {
        self.elements().push(&(), arguments);
        if form.dims == 0 {
            return;
        }
        for extent in self.extents() {
            match form.wide {
                true => extent.push(&(), arguments),
                false => (*extent as u32).push(&(), arguments),
            }
        }
        for stride in self.strides().flatten() {
            match form.wide {
                true => stride.push(&(), arguments),
                false => (*stride as i32).push(&(), arguments),
            }
        }
    }
}

/// An unsigned index with the signed offset type `O` of the same width: 32 or 64 bits.
pub trait Index<O: Integer>: Integer {
    /// The types of an extent and a stride.
    const KINDS: [ParameterKind; 2];
    /// The index of element `in_tile` of this CTA.
    fn of_element<'k>(k: &'k Kernel, in_tile: U32<'k>) -> Register<'k, Self>;
    /// Whether the index is less than a 64-bit count.
    fn is_below<'k>(index: Register<'k, Self>, count: U64<'k>) -> Pred<'k>;
    /// A number that fits.
    fn narrowed(number: U64<'_>) -> Register<'_, Self>;
    /// The same bits, signed.
    fn signed(index: Register<'_, Self>) -> Register<'_, O>;
    /// Converts an offset in elements to bytes.
    fn bytes(offset: Register<'_, O>, size: u32) -> U64<'_>;
}

impl Index<i32> for u32 {
    const KINDS: [ParameterKind; 2] = [ParameterKind::U32, ParameterKind::I32];

    fn of_element<'k>(k: &'k Kernel, in_tile: U32<'k>) -> U32<'k> {
        k.cta().mad(TILE, in_tile)
    }

    fn is_below<'k>(index: U32<'k>, count: U64<'k>) -> Pred<'k> {
        index.lt(count.low())
    }

    fn narrowed(number: U64<'_>) -> U32<'_> {
        number.low()
    }

    fn signed(index: U32<'_>) -> S32<'_> {
        index.signed()
    }

    fn bytes(offset: S32<'_>, size: u32) -> U64<'_> {
        offset.mul_wide(size as i32).unsigned()
    }
}

impl Index<i64> for u64 {
    const KINDS: [ParameterKind; 2] = [ParameterKind::U64, ParameterKind::I64];

    fn of_element<'k>(k: &'k Kernel, in_tile: U32<'k>) -> U64<'k> {
        k.cta().mul_wide(TILE) + in_tile.wide()
    }

    fn is_below<'k>(index: U64<'k>, count: U64<'k>) -> Pred<'k> {
        index.lt(count)
    }

    fn narrowed(number: U64<'_>) -> U64<'_> {
        number
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

/// Extents and strides in registers.
#[derive(Clone)]
pub struct Strides<'k, I, O> {
    pub(crate) elements: U64<'k>,
    extents: Vec<Register<'k, I>>,
    /// Strides of the result, then of each operand.
    strides: Vec<Vec<Register<'k, O>>>,
}

impl<'k, I: Index<O>, O: Integer> Strides<'k, I, O> {
    #[track_caller]
    fn declare(k: &'k Kernel, form: &SpaceForm) -> Self {
        let [of_extent, of_stride] = I::KINDS;
        let elements = k.parameter("elements", ParameterKind::U64);
        let (mut extents, mut strides) = (Vec::new(), vec![Vec::new(); form.tensors]);
        for dim in 0..form.dims {
            extents.push(k.parameter(&format!("extent{dim}"), of_extent));
        }
        for (tensor, strides) in strides.iter_mut().enumerate() {
            for dim in 0..form.dims {
                strides.push(k.parameter(&format!("stride{tensor}_{dim}"), of_stride));
            }
        }
        Strides { elements, extents, strides }
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

pub(super) fn write<'k, I: Index<O>, O: Integer>(
    k: &'k Kernel,
    variant: &Elementwise,
    parameters: &Parameters<'k>,
    space: &Strides<'k, I, O>,
) {
    let indices = indices(k).into_iter();
    let loaded: Vec<LoadedElement<'_>> =
        indices.map(|index| load(variant, parameters, space, index)).collect();
    for element in loaded {
        let value = evaluate(k, &variant.expression, &element.operands, &parameters.scalars);
        variant.result.store_if(element.exists, element.result, value);
    }
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
    let operand = |(i, (format, start)): (usize, (super::Element, GlobalAddress<'k>))| {
        let address = space.address(1 + i, start, format.size(), &coordinates);
        format.load_if(exists, address)
    };
    let operands = variant.formatted(&parameters.operands).enumerate();
    let operands = operands.map(operand).collect();
    let size = variant.result.size();
    let result = space.address(0, parameters.result, size, &coordinates);
    LoadedElement { exists, operands, result }
}
