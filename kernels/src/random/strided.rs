//! The form for arbitrary strides. The coordinates of an element give both its address and its
//! global index.

use super::{Parameters, Random, THREADS};
use crate::assembler::{F32, GlobalAddress, Integer, Kernel, Pred, Register, U64};
use crate::elementwise::Element;
use crate::elementwise::strided::{Index, PER_THREAD, Strides};

use crate::philox::Key;

pub(super) use crate::elementwise::strided::TILE;

/// An element whose operand is loaded.
struct LoadedElement<'k> {
    exists: Pred<'k>,
    index: U64<'k>,
    operand: Option<F32<'k>>,
    result: GlobalAddress<'k>,
}

pub(super) fn write<'k, I: Index<O>, O: Integer>(
    k: &'k Kernel,
    variant: &Random,
    parameters: &Parameters<'k>,
    walk: &Strides<'k, I, O>,
) {
    let (format, key) = (variant.format, Key(parameters.key));
    let thread = k.thread();
    let elements: Vec<LoadedElement<'_>> = (0..PER_THREAD)
        .map(|i| {
            let index = I::of_element(k, thread + i * THREADS);
            load(format, parameters, walk, index)
        })
        .collect();
    for element in elements {
        let word = key.word(element.index);
        let value = parameters.values.value(format, word, element.operand);
        format.store_if(element.exists, element.result, value);
    }
}

/// In `walk`, tensor 0 is the result, tensor 1 the global indices, and tensor 2 the operand.
fn load<'k, I: Index<O>, O: Integer>(
    format: Element,
    parameters: &Parameters<'k>,
    walk: &Strides<'k, I, O>,
    index: Register<'k, I>,
) -> LoadedElement<'k> {
    let exists = I::is_below(index, walk.elements);
    let coordinates = walk.coordinates(index);
    let size = format.size();
    LoadedElement {
        exists,
        index: parameters.space.first + I::bytes(walk.offset(1, &coordinates), 1),
        operand: parameters.operand.map(|x| {
            let address = walk.address(2, x, size, &coordinates);
            format.load_if(exists, address)
        }),
        result: walk.address(0, parameters.result, size, &coordinates),
    }
}
