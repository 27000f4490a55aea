//! Row reductions, whose elements are contiguous: [O, R] to [O, P].

use super::{Call, Reduce};
use crate::assembler::{Kernel, Variable};
use crate::reduce_op::ReduceOp;
use crate::row::{Chunked, IN_FLIGHT, Part, PartTile};

pub(super) fn write<'k>(k: &'k Kernel, variant: &Reduce, tile: PartTile, call: &Call<'k>) {
    let of = Chunked { rows: call.outer, features: call.reduced, chunk: call.chunk };
    let part = Part::new(k, tile, call.x, of);

    // One accumulator per access in flight, so that additions do not wait for each other.
    let (op, neutral) = (variant.op, variant.op.identity());
    let folded: Vec<Variable<'_, f32>> = (0..IN_FLIGHT).map(|_| k.var(neutral)).collect();
    part.for_each(|access, loaded| {
        for value in loaded.values() {
            // Elements that do not exist are loaded as 0, which does not change a sum.
            let value = match op {
                ReduceOp::Add => value,
                ReduceOp::Max | ReduceOp::Min => loaded.exists.select(value, neutral),
            };
            op.accumulate(&folded[access], value);
        }
    });
    let others = folded[1..].iter();
    let of_thread = others.fold(*folded[0], |all, other| op.apply(all, **other));
    let of_row = part.fold(of_thread, |a, b| op.apply(a, b));

    let index = part.chunk(call.chunks);
    let to = call.y.byte_add(index * u64::from(variant.to.size()));
    variant.to.store_if(part.leads, to, of_row * call.scale);
}
