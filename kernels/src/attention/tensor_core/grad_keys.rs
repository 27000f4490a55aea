//! The gradients of keys and values on tensor cores.

use super::super::ROWS_PER_CTA;
use super::super::arguments::AttentionGradKeysArguments;
use super::super::cta_tile::{CtaTile, Limits, staged_limits};
use super::super::problem::Axis;
use super::product::{a_fragments, add_weighted, publish, scores, wait, zeros};
use super::tile::{Lines, Tile};
use super::{Shape, THREADS, mask_transposed};
use crate::assembler::{ArgumentFor, F32, Kernel, Ptx, SharedAddress};

/// Computes `dk` and `dv`.
pub(in super::super) fn grad_keys(entry: String, lines: Lines) -> Ptx {
    let k = &Kernel::new(entry, lines.products.target(), THREADS).ctas_per_sm(2);
    let given = AttentionGradKeysArguments::declare(k, "", &());
    let call = given.problem;
    let cta = CtaTile::of_cta(call, Axis::Keys);

    let shape = Shape::backward(lines);
    let stationary = [(); 2].map(|()| Tile::new(k, lines, ROWS_PER_CTA, 1));
    let streamed = [(); 2].map(|()| Tile::new(k, lines, shape.streamed_rows, 2));
    let numbers = [(); 2].map(|()| k.shared::<f32>(2 * shape.streamed_rows));
    let limits = [(); 2].map(|()| k.shared::<i32>(2 * shape.streamed_rows));
    k.if_(cta.first.lt(cta.all_keys), || {
        for (tile, view) in stationary.into_iter().zip([given.k, given.v]) {
            let rows = view.rows(cta.batch, cta.keys, cta.head);
            let all = [cta.first, cta.keys];
            tile.stream(rows, all).copy_next(k.constant(0));
        }
        let columns = shape.columns();
        let first_column = cta.block * columns;
        let (key_sums, value_sums) = (zeros(k, columns), zeros(k, columns));

        let warp_row = k.warp() * 16;
        let row = cta.first + warp_row;
        let own = stationary.map(|tile| tile.stationary(warp_row));
        let others = streamed.map(|tile| tile.columns());
        let of_block = streamed.map(|tile| tile.features(first_column));
        let [first, end] = cta.visible_queries(shape.streamed_rows);
        let factor = call.scale * std::f32::consts::LOG2_E;
        let first_head = cta.head * call.group;
        k.for_range(first_head, first_head + call.group, 1, |head| {
            // No thread still reads the tiles of the previous head.
            k.barrier();
            let streams =
                [(given.q, streamed[0]), (given.dout, streamed[1])].map(|(view, tile)| {
                    let rows = view.rows(cta.batch, cta.queries, head);
                    tile.stream(rows, [first, end])
                });
            let of_head = [given.lse, given.delta].map(|base| cta.of_queries(base, head));
            let (next, buffer) = (k.var(first), k.var(0u32));
            let copy = || {
                streams.iter().for_each(|stream| {
                    stream.copy_next(*buffer * streamed[0].bytes());
                });
                k.if_(k.thread().lt(shape.streamed_rows), || {
                    let query = *next + k.thread();
                    let exists = query.lt(end);
                    let at = *buffer * shape.streamed_rows + k.thread();
                    for (line, numbers) in of_head.iter().zip(numbers) {
                        let to = numbers.element::<f32>(at);
                        to.copy_async::<4>(line.element::<f32>(query), exists);
                    }
                    cta.stage_limits(query, exists, limits.map(|it| it.element::<i32>(at)));
                });
                next.add(shape.streamed_rows);
                k.commit_copies();
            };
            copy();
            k.for_range(first, end, shape.streamed_rows, |query| {
                publish(k, lines);
                let current = buffer.get();
                buffer.set(current ^ 1);
                copy();

                let tile = current * streamed[0].bytes();
                let [weights, slopes] = [0, 1].map(|i: usize| {
                    let others = others[i].at(tile);
                    scores(k, lines, &own[i], others, shape.streamed_rows)
                });
                wait(k, lines);
                let of_lane = current * shape.streamed_rows + (k.lane() & 3) * 2;
                let [lse, delta] = numbers.map(|numbers| numbers.element::<f32>(of_lane));
                for (columns, weights) in (0..).zip(&weights) {
                    let lse = pair(lse, columns).map(|lse| lse * std::f32::consts::LOG2_E);
                    for (i, weight) in weights.iter().enumerate() {
                        weight.set(weight.fma(factor, -lse[i % 2]).exp2_approx());
                    }
                }
                let first = limits.map(|it| it.element::<i32>(current * shape.streamed_rows));
                let last = (end - query).min(shape.streamed_rows) - 1;
                let last = first.map(|it| it.element::<i32>(last));
                let common = cta.common_within(staged_limits(first), staged_limits(last));
                let of_lane = limits.map(|it| it.element::<i32>(of_lane));
                let seen = |i| limits_of_pair(of_lane, i).map(|it| cta.seen_within(it));
                mask_transposed(&weights, row, seen, common, |weight, visible| {
                    weight.set(visible.select(**weight, 0.0));
                });
                let features = of_block[1].at(tile);
                let rounded = a_fragments(&weights);
                add_weighted(k, &value_sums, &rounded, features, lines);

                for (columns, (weights, slopes)) in (0..).zip(weights.iter().zip(&slopes)) {
                    let delta = pair(delta, columns);
                    for (i, (weight, slope)) in weights.iter().zip(slopes).enumerate() {
                        slope.set(**weight * (**slope - delta[i % 2]));
                    }
                }
                let features = of_block[0].at(tile);
                add_weighted(k, &key_sums, &a_fragments(&slopes), features, lines);
                wait(k, lines);
            });
            k.wait_for_copies(0);
        });
        k.wait_for_copies(0);
        k.barrier();

        let results = [(given.dk, &key_sums, call.scale), (given.dv, &value_sums, k.constant(1.0))];
        for ((to, sums, factor), tile) in results.into_iter().zip(stationary) {
            let to = to.rows(cta.batch, cta.all_keys, cta.head);
            tile.store(to, cta.first, first_column, columns, |tile, half| {
                [2 * half, 2 * half + 1].map(|i| *sums[tile][i] * factor)
            });
        }
    });
    k.finish()
}

/// The values for this lane's two columns of the i-th eight.
#[track_caller]
fn pair<'k>(of_lane: SharedAddress<'k>, i: u32) -> [F32<'k>; 2] {
    of_lane.offset(32 * i).load_vector::<f32, 2>()
}

/// The limits of this lane's two columns of the i-th eight.
#[track_caller]
fn limits_of_pair<'k>(of_lane: [SharedAddress<'k>; 2], i: u32) -> [Limits<'k>; 2] {
    let [first, end] = of_lane.map(|it| it.offset(32 * i).load_vector::<i32, 2>());
    [0, 1].map(|at| Limits { first: first[at], end: end[at] })
}
