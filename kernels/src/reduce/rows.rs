//! Rows, whose elements lie side by side: [O, R] to [O, P].

use super::{Call, Reduce};
use crate::assembler::{Kernel, Variable};
use crate::merge::Merge;
use crate::row::{Chunked, IN_FLIGHT, Part, PartTile};

pub(super) fn write(k: &Kernel, variant: &Reduce, tile: PartTile) {
    let call = Call::new(k);
    let of = Chunked {
        rows: call.outer,
        features: call.reduced,
        chunk: call.chunk,
    };
    let part = Part::new(k, tile, call.x, of);

    // One for each access in flight: additions need not wait for each other.
    let (merge, neutral) = (variant.merge, variant.merge.neutral());
    let folded: Vec<Variable<'_, f32>> = (0..IN_FLIGHT).map(|_| k.var(neutral)).collect();
    part.for_each(|access, loaded| {
        for value in loaded.values() {
            // What was not loaded is 0, which changes no sum.
            let value = match merge {
                Merge::Add => value,
                Merge::Max | Merge::Min => loaded.exists.select(value, neutral),
            };
            merge.into(&folded[access], value);
        }
    });
    let others = folded[1..].iter();
    let of_thread = others.fold(*folded[0], |all, other| merge.of(all, **other));
    let of_row = part.fold(of_thread, |a, b| merge.of(a, b));

    let index = part.chunk(call.chunks);
    let to = call.y.moved(index * u64::from(variant.to.size()));
    variant.to.store_if(part.leads, to, of_row * call.scale);
}
