//! The gradient of queries on tensor cores.

use super::super::ROWS_PER_CTA;
use super::super::arguments::AttentionGradQueriesArguments;
use super::super::cta_tile::CtaTile;
use super::super::problem::Axis;
use super::product::{a_fragments, add_weighted, publish, scores, wait, zeros};
use super::tile::{Lines, Tile};
use super::{Shape, THREADS, mask_scores};
use crate::assembler::{ArgumentFor, Kernel, Ptx};

/// Computes `dq`.
pub(in super::super) fn grad_queries(entry: String, lines: Lines) -> Ptx {
    let k = &Kernel::new(entry, lines.products.target(), THREADS).ctas_per_sm(2);
    let given = AttentionGradQueriesArguments::declare(k, "", &());
    let call = given.problem;
    let cta = CtaTile::of_cta(call, Axis::Queries);

    let (shape, head_dim) = (Shape::backward(lines), lines.head_dim);
    let stationary = [(); 2].map(|()| Tile::new(k, lines, ROWS_PER_CTA, 1));
    let streamed = [(); 2].map(|()| Tile::new(k, lines, shape.streamed_rows, 2));
    k.if_(cta.first.lt(cta.queries), || {
        for (tile, view) in stationary.into_iter().zip([given.q, given.dout]) {
            let rows = view.rows(cta.batch, cta.queries, cta.head);
            let all = [cta.first, cta.queries];
            tile.stream(rows, all).copy_next(k.constant(0));
        }
        let [first, end] = cta.visible_keys(shape.streamed_rows);
        let kv_head = cta.head / call.group;
        let streams = [(given.k, streamed[0]), (given.v, streamed[1])].map(|(view, tile)| {
            let rows = view.rows(cta.batch, cta.keys, kv_head);
            tile.stream(rows, [first, end])
        });
        let buffer = k.var(0u32);
        let copy = || {
            streams.iter().for_each(|stream| stream.copy_next(*buffer));
            k.commit_copies();
        };
        copy();

        let warp_row = k.warp() * 16;
        let row = cta.first + warp_row;
        let own_row = row + (k.lane() >> 2);
        let of_rows = [given.lse, given.delta].map(|base| {
            let line = cta.of_queries(base, cta.head);
            [0, 8].map(|down| {
                let row = own_row + down;
                let exists = row.lt(cta.queries);
                line.element::<f32>(row).load_if::<f32>(exists)
            })
        });
        let [lse, delta] = of_rows;
        let lse = lse.map(|lse| lse * std::f32::consts::LOG2_E);

        let (seen, common) = ([0, 8].map(|down| cta.seen(own_row + down)), cta.common(row, 16));
        let own = stationary.map(|tile| tile.stationary(warp_row));
        let others = streamed.map(|tile| tile.columns());
        let keys = streamed[0].features(k.constant(0));
        let sums = zeros(k, head_dim);
        let factor = call.scale * std::f32::consts::LOG2_E;
        k.for_range(first, end, shape.streamed_rows, |key| {
            publish(k, lines);
            let current = buffer.get();
            buffer.set(k.constant(streamed[0].bytes()) - current);
            copy();

            let [weights, slopes] = [0, 1].map(|i: usize| {
                let others = others[i].at(current);
                scores(k, lines, &own[i], others, shape.streamed_rows)
            });
            wait(k, lines);
            for weight in &weights {
                for (i, weight) in weight.iter().enumerate() {
                    weight.set(weight.fma(factor, -lse[i / 2]).exp2_approx());
                }
            }
            mask_scores(&weights, key, seen, common, |weight, visible| {
                weight.set(visible.select(**weight, 0.0));
            });
            for (weights, slopes) in weights.iter().zip(&slopes) {
                for (i, (weight, slope)) in weights.iter().zip(slopes).enumerate() {
                    slope.set(**weight * (**slope - delta[i / 2]));
                }
            }
            add_weighted(k, &sums, &a_fragments(&slopes), keys.at(current), lines);
            wait(k, lines);
        });
        k.wait_for_copies(0);
        k.barrier();

        let to = given.dq.rows(cta.batch, cta.queries, cta.head);
        stationary[0].store(to, cta.first, k.constant(0), head_dim, |tile, half| {
            let sums = &sums[tile];
            [2 * half, 2 * half + 1].map(|i| *sums[i] * call.scale)
        });
    });
    k.finish()
}
