//! The form for contiguous elements whose global indices are consecutive from a multiple of 4.

use super::{Distribution, Parameters, Random, THREADS};
use crate::assembler::{F32, Kernel, U32, U64};
use crate::elementwise::Element;
use crate::philox::Key;

/// Elements per CTA. The vectors of one thread are [`THREADS`] vectors apart.
pub(super) fn tile(variant: &Random) -> u32 {
    THREADS * per_vector(variant) * vectors(variant)
}

/// Elements per access: 16 bytes of floats, or 8 bytes of bools.
fn per_vector(variant: &Random) -> u32 {
    match variant.format {
        Element::Float(dtype) => dtype.per_vector(),
        Element::Bool => 8,
    }
}

/// Vectors per thread. Dropout loads its operand, so it has two loads in flight.
fn vectors(variant: &Random) -> u32 {
    match variant.distribution {
        Distribution::Dropout => 2,
        _ => 1,
    }
}

pub(super) fn write<'k>(
    k: &'k Kernel,
    variant: &Random,
    parameters: &Parameters<'k>,
    elements: U64<'k>,
) {
    let place = parameters.space.first;
    let tile = tile(variant);
    let first = k.cta().mul_wide(tile);
    let remaining = elements - first;
    k.if_else(
        remaining.ge(u64::from(tile)),
        || whole_tile(k, variant, parameters, first, place),
        || last_tile(k, variant.format, parameters, first, place, remaining.low()),
    );
}

fn whole_tile<'k>(
    k: &'k Kernel,
    variant: &Random,
    parameters: &Parameters<'k>,
    first: U64<'k>,
    place: U64<'k>,
) {
    let (format, per_vector) = (variant.format, per_vector(variant));
    let key = Key(parameters.key);
    let element = first + (k.thread() * per_vector).wide();
    let bytes = element * u64::from(format.size());
    let apart = |vector: u32| i64::from(vector * THREADS * per_vector * format.size());

    let operand = parameters.operand.map(|x| x.byte_add(bytes));
    let loaded: Vec<_> = (0..vectors(variant))
        .map(|vector| operand.map(|x| format.load_vector(x.offset(apart(vector)), per_vector)))
        .collect();

    let result = parameters.result.byte_add(bytes);
    let block = (place + element) >> 2;
    for (vector, loaded) in (0..).zip(loaded) {
        let blocks_before = u64::from(vector * THREADS * per_vector / 4);
        let words: Vec<U32<'k>> = (0..u64::from(per_vector / 4))
            .flat_map(|i| key.block(block + (blocks_before + i)))
            .collect();
        let x = loaded.map(|vector| vector.widen());
        let value = |(i, word): (usize, &U32<'k>)| {
            let x = x.as_ref().map(|x| x[i]);
            parameters.values.value(format, *word, x)
        };
        let values: Vec<F32<'k>> = words.iter().enumerate().map(value).collect();
        format.store_vector(result.offset(apart(vector)), &values);
    }
}

/// Processes the elements of a partial tile one by one.
fn last_tile<'k>(
    k: &'k Kernel,
    format: Element,
    parameters: &Parameters<'k>,
    first: U64<'k>,
    place: U64<'k>,
    remaining: U32<'k>,
) {
    let key = Key(parameters.key);
    k.for_range(k.thread(), remaining, THREADS, |i| {
        let element = first + i.wide();
        let bytes = element * u64::from(format.size());
        let x = parameters.operand.map(|x| format.load(x.byte_add(bytes)));
        let word = key.word(place + element);
        let value = parameters.values.value(format, word, x);
        format.store(parameters.result.byte_add(bytes), value);
    });
}
