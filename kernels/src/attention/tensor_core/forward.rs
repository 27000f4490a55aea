//! The forward kernel on tensor cores.

use super::super::Products;
use super::super::ROWS_PER_CTA;
use super::super::arguments::AttentionArguments;
use super::super::cta_tile::{CtaTile, View};
use super::super::problem::Axis;
use super::super::softmax::Softmax;
use super::product::{Sums, a_fragments, add_weighted, publish, scores, wait, zeros};
use super::tile::{Lines, Stationary, Tile};
use super::{Shape, THREADS, mask_scores};
use crate::assembler::{ArgumentFor, F32, Kernel, Ptx};

/// The largest head dim for which a warp keeps its queries in registers. Warpgroups read them from
/// shared memory.
const MAX_IN_REGISTERS: u32 = 128;

/// Computes `out` and `lse`.
pub(in super::super) fn forward(entry: String, lines: Lines) -> Ptx {
    let k = &Kernel::new(entry, lines.products.target(), THREADS);
    let given = AttentionArguments::declare(k, "", &());
    let call = given.problem;
    let cta = CtaTile::reporting(call, Axis::Queries, given.faults.map(Some));

    let (shape, head_dim) = (Shape::forward(lines), lines.head_dim);
    let stationary = Tile::new(k, lines, ROWS_PER_CTA, 1);
    let streamed = [(); 2].map(|()| Tile::new(k, lines, shape.streamed_rows, 2));
    k.if_(cta.first.lt(cta.queries), || {
        let kv_head = cta.head / call.group;
        let rows = given.q.rows(cta.batch, cta.queries, cta.head);
        let all = [cta.first, cta.queries];
        stationary.stream(rows, all).copy_next(k.constant(0));
        k.commit_copies();

        let [first, end] = cta.visible_keys(shape.streamed_rows);
        let [of_keys, of_values] =
            [(given.k, 0), (given.v, 1)].map(|(view, index): (View<'_>, usize)| {
                let rows = view.rows(cta.batch, cta.keys, kv_head);
                streamed[index].stream(rows, [first, end])
            });
        let buffer = k.var(0u32);
        let copy = || {
            of_keys.copy_next(*buffer);
            of_values.copy_next(*buffer);
            k.commit_copies();
        };
        copy();

        let warp_row = k.warp() * 16;
        let in_registers = lines.products == Products::Warps && head_dim <= MAX_IN_REGISTERS;
        let queries = match in_registers {
            true => {
                k.wait_for_copies(1);
                k.barrier();
                let queries = stationary.fragments(warp_row);
                Stationary::Registers((0..lines.steps()).map(|step| queries.load(step)).collect())
            }
            false => stationary.stationary(warp_row),
        };

        let row = cta.first + warp_row;
        let own_row = row + (k.lane() >> 2);
        let (seen, common) = ([0, 8].map(|down| cta.seen(own_row + down)), cta.common(row, 16));
        let softmax = Softmax::new(k, 2, 4);
        let sums = zeros(k, head_dim);
        let (keys, values) = (streamed[0].columns(), streamed[1].features(k.constant(0)));
        k.for_range(first, end, shape.streamed_rows, |key| {
            publish(k, lines);
            let current = buffer.get();
            buffer.set(k.constant(streamed[0].bytes()) - current);
            copy();

            let scores = scores(k, lines, &queries, keys.at(current), shape.streamed_rows);
            wait(k, lines);
            scale(&scores, call.scale * std::f32::consts::LOG2_E);
            mask_scores(&scores, key, seen, common, |score, visible| {
                score.set(visible.select(**score, f32::NEG_INFINITY));
            });

            for half in 0..2 {
                let of_row = scores.iter().flat_map(|s| [s[2 * half], s[2 * half + 1]]);
                let shrink = softmax.add(half, &of_row.collect::<Vec<_>>());
                for sums in &sums {
                    sums[2 * half].set(*sums[2 * half] * shrink);
                    sums[2 * half + 1].set(*sums[2 * half + 1] * shrink);
                }
            }
            add_weighted(k, &sums, &a_fragments(&scores), values.at(current), lines);
            wait(k, lines);
        });
        k.wait_for_copies(0);
        k.barrier();

        let totals = [0, 1].map(|half| softmax.total(half));
        let to = given.out.rows(cta.batch, cta.queries, cta.head);
        stationary.store(to, cta.first, k.constant(0), head_dim, |tile, half| {
            let sums = &sums[tile];
            [2 * half, 2 * half + 1].map(|i| *sums[i] * totals[half].reciprocal)
        });

        let lines = cta.of_queries(given.lse, cta.head);
        for (half, total) in (0..).zip(totals) {
            let row = own_row + 8 * half;
            let stores = row.lt(cta.queries) & (k.lane() & 3).equals(0);
            lines.element::<f32>(row).store_if(stores, total.lse);
        }
    });
    k.finish()
}

/// Multiplies the scores by `factor`, which includes log2(e), so that the softmax can use exp2.
#[track_caller]
fn scale<'k>(scores: &Sums<'k>, factor: F32<'k>) {
    for score in scores.iter().flatten() {
        score.set(**score * factor);
    }
}
