//! Column reductions, whose elements are strided: [O, R, I] to [O, P, I].

use super::{Call, Reduce};
use crate::assembler::{F32, GlobalAddress, Kernel, Pred};
use crate::columns::{ColumnTile, Columns};
use crate::dtype::{Dtype, Loaded};
use crate::reduce_op::ReduceOp;

pub(super) fn write<'k>(k: &'k Kernel, variant: &Reduce, tile: ColumnTile, call: &Call<'k>) {
    let inner = call.inner.low();
    let columns = Columns::new(k, tile, call.outer.low() * inner);
    let outer = columns.first / inner;
    let column = (columns.first - outer * inner).wide();

    let start = call.first(k);
    let end = (start + call.chunk).min(call.reduced);
    let line = outer.wide() * call.reduced;
    let folded = columns.fold(
        [start, end],
        variant.op,
        |row, exists| {
            let element = (line + row) * call.inner + column;
            let from = call.x.byte_add(element * u64::from(variant.from.size()));
            Loaded::new(variant.from, tile.width, exists, from)
        },
        |loaded, exists| values(variant.op, &loaded, exists),
    );

    let line = outer.wide() * call.chunks.wide() + k.cta_y().wide();
    let index = line * call.inner + column;
    let to = call.y.byte_add(index * u64::from(variant.to.size()));
    let scaled: Vec<F32<'_>> = folded.into_iter().map(|it| it * call.scale).collect();
    store(variant.to, to, columns.lead(), &scaled);
}

/// The elements of an access, or the identity of `op` if they do not exist.
#[track_caller]
fn values<'k>(op: ReduceOp, loaded: &Loaded<'k>, exists: Pred<'k>) -> Vec<F32<'k>> {
    let (values, neutral) = (loaded.widen(), op.identity());
    match op {
        ReduceOp::Add => values, // zeros if they do not exist
        ReduceOp::Max | ReduceOp::Min => {
            let values = values.into_iter();
            values.map(|value| exists.select(value, neutral)).collect()
        }
    }
}

/// Rounds and stores one value, or adjacent values in vectors of four.
#[track_caller]
fn store<'k>(dtype: Dtype, to: GlobalAddress<'k>, condition: Pred<'k>, values: &[F32<'k>]) {
    if let [value] = values {
        return dtype.store_if(condition, to, *value);
    }
    for (four, values) in (0..).zip(values.as_chunks::<4>().0) {
        let to = to.offset(4 * four * i64::from(dtype.size()));
        match dtype {
            Dtype::F32 => to.store_vector_if(condition, *values),
            Dtype::Bf16 => {
                let [a, b, c, d] = *values;
                to.store_vector_if(condition, [a.pack(b), c.pack(d)]);
            }
        }
    }
}
