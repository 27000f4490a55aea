//! The forward kernel on CUDA cores.

use super::super::ROWS_PER_CTA;
use super::super::arguments::AttentionArguments;
use super::super::cta_tile::CtaTile;
use super::super::problem::Axis;
use super::super::softmax::Softmax;
use super::product::Products;
use super::{COLUMNS, THREADS};
use crate::assembler::{ArgumentFor, Kernel, Ptx, Target};
use crate::dtype::Dtype;

/// Computes `out` and `lse`.
pub(in super::super) fn forward(entry: String, dtype: Dtype) -> Ptx {
    let k = &Kernel::new(entry, Target::Sm80, THREADS).ctas_per_sm(2);
    let given = AttentionArguments::declare(k, "", &());
    let call = given.problem;
    let cta = CtaTile::reporting(call, Axis::Queries, given.faults.map(Some));
    let products = Products::new(k, dtype, call.head_dim);

    k.if_(cta.first.lt(cta.queries), || {
        let kv_head = cta.head / call.group;
        let q = given.q.rows(cta.batch, cta.queries, cta.head);
        let [keys, values] = [given.k, given.v].map(|view| view.rows(cta.batch, cta.keys, kv_head));

        let softmax = Softmax::new(k, 4, 16);
        let sums = products.zeros();
        let factor = call.scale * std::f32::consts::LOG2_E;
        let [first, end] = cta.visible_keys(ROWS_PER_CTA);
        let common = cta.common(cta.first, ROWS_PER_CTA);
        k.for_range(first, end, ROWS_PER_CTA, |key| {
            let scores = products.scores((q, cta.first), (keys, key));
            for score in scores.iter().flatten() {
                score.set(**score * factor);
            }
            products.hide(&cta, common, [cta.first, key], false, |i, j, visible| {
                let score = &scores[i][j];
                score.set(visible.select(**score, f32::NEG_INFINITY));
            });
            for (row, (scores, sums)) in scores.iter().zip(&sums).enumerate() {
                let shrink = softmax.add(row, scores);
                for sum in sums {
                    sum.set(**sum * shrink);
                }
            }
            products.set_weights(&scores);
            products.add_weighted(&sums, (values, key), cta.block * COLUMNS);
        });

        let totals = [0, 1, 2, 3].map(|row| softmax.total(row));
        let to = given.out.rows(cta.batch, cta.queries, cta.head);
        let corner = [cta.first, cta.block * COLUMNS];
        products.store(to, corner, |i, j| *sums[i][j] * totals[i].reciprocal);

        let lines = cta.of_queries(given.lse, cta.head);
        let leads = products.x.equals(0) & cta.block.equals(0);
        let row = cta.first + products.row();
        for (i, total) in (0..).zip(totals) {
            let exists = (row + i).lt(cta.queries);
            lines.element::<f32>(row + i).store_if(leads & exists, total.lse);
        }
    });
    k.finish()
}
