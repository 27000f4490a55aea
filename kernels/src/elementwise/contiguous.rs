//! The contiguous form: 16 bytes per thread and access.

use super::element::Loaded;
use super::evaluate::evaluate;
use super::{Element, Elementwise, Parameters, THREADS};
use crate::assembler::{F32, GlobalAddress, Kernel, U32, U64};
use crate::dtype::Dtype;

/// Elements per CTA. Each thread processes [`vectors`] vectors of [`per_vector`] elements.
/// Consecutive threads access consecutive vectors, so accesses are coalesced.
pub(super) fn tile(variant: &Elementwise) -> u32 {
    THREADS * per_vector(variant) * vectors(variant)
}

/// Elements per vector: 16 bytes of the smallest float dtype. Larger dtypes need two accesses.
fn per_vector(variant: &Elementwise) -> u32 {
    let mut formats = variant.operands().chain([variant.result]);
    if formats.any(|format| format == Element::Float(Dtype::Bf16)) { 8 } else { 4 }
}

/// Vectors per thread and operand. There are several if the expression is short, so that enough
/// bytes are in flight even with few operands. A long expression needs the registers.
fn vectors(variant: &Elementwise) -> u32 {
    let long = variant.expression.instructions() > 16;
    match (long, variant.operands().count()) {
        (true, _) => 1,
        (false, 0 | 1) => 4,
        (false, _) => 2,
    }
}

pub(super) fn write<'k>(
    k: &'k Kernel,
    variant: &Elementwise,
    parameters: &Parameters<'k>,
    elements: U64<'k>,
) {
    let tile = tile(variant);
    let first = k.cta().mul_wide(tile);
    let remaining = elements - first;
    k.if_else(
        remaining.ge(u64::from(tile)),
        || whole_tile(k, variant, parameters, first),
        || last_tile(k, variant, parameters, first, remaining.low()),
    );
}

fn whole_tile<'k>(
    k: &'k Kernel,
    variant: &Elementwise,
    parameters: &Parameters<'k>,
    first: U64<'k>,
) {
    let per_vector = per_vector(variant);
    let element = first + (k.thread() * per_vector).wide();
    let place = |format: Element, vector: u32| {
        let elements = vector * THREADS * per_vector;
        i64::from(elements * format.size())
    };

    let at = |(format, start): (Element, GlobalAddress<'k>)| {
        (format, start.byte_add(element * u64::from(format.size())))
    };
    let operands: Vec<_> = variant.formatted(&parameters.operands).map(at).collect();
    let load = |vector: u32| -> Vec<Loaded<'k>> {
        let operands = operands.iter();
        operands
            .map(|(format, start)| {
                let from = start.offset(place(*format, vector));
                format.load_vector(from, per_vector)
            })
            .collect()
    };
    let loaded: Vec<_> = (0..vectors(variant)).map(load).collect();

    let format = variant.result;
    let result = parameters.result.byte_add(element * u64::from(format.size()));
    for (vector, loaded) in loaded.iter().enumerate() {
        let widened: Vec<Vec<F32<'k>>> = loaded.iter().map(|operand| operand.widen()).collect();
        let value = |i: usize| {
            let operands: Vec<F32<'k>> = widened.iter().map(|operand| operand[i]).collect();
            evaluate(k, &variant.expression, &operands, &parameters.scalars)
        };
        let values: Vec<F32<'k>> = (0..per_vector as usize).map(value).collect();
        format.store_vector(result.offset(place(format, vector as u32)), &values);
    }
}

/// Processes the elements of a partial tile one by one.
fn last_tile<'k>(
    k: &'k Kernel,
    variant: &Elementwise,
    parameters: &Parameters<'k>,
    first: U64<'k>,
    remaining: U32<'k>,
) {
    k.for_range(k.thread(), remaining, THREADS, |i| {
        let element = first + i.wide();
        let operands: Vec<F32<'k>> = variant
            .formatted(&parameters.operands)
            .map(|(format, start)| format.load(start.byte_add(element * u64::from(format.size()))))
            .collect();
        let value = evaluate(k, &variant.expression, &operands, &parameters.scalars);
        let format = variant.result;
        format.store(parameters.result.byte_add(element * u64::from(format.size())), value);
    });
}
