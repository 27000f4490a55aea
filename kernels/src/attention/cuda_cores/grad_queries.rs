//! The gradient of queries on CUDA cores.

use super::super::ROWS_PER_CTA;
use super::super::arguments::AttentionGradQueriesArguments;
use super::super::cta_tile::CtaTile;
use super::super::problem::Axis;
use super::product::Products;
use super::{COLUMNS, THREADS};
use crate::assembler::{ArgumentFor, Kernel, Ptx, Target};
use crate::dtype::Dtype;

/// Computes `dq`.
pub(in super::super) fn grad_queries(entry: String, dtype: Dtype) -> Ptx {
    let k = &Kernel::new(entry, Target::Sm80, THREADS).ctas_per_sm(2);
    let given = AttentionGradQueriesArguments::declare(k, "", &());
    let call = given.problem;
    let cta = CtaTile::of_cta(call, Axis::Queries);
    let products = Products::new(k, dtype, call.head_dim);

    k.if_(cta.first.lt(cta.queries), || {
        let kv_head = cta.head / call.group;
        let [q, dout] =
            [given.q, given.dout].map(|view| view.rows(cta.batch, cta.queries, cta.head));
        let [keys, values] = [given.k, given.v].map(|view| view.rows(cta.batch, cta.keys, kv_head));
        let lines = [given.lse, given.delta].map(|base| cta.of_queries(base, cta.head));

        let sums = products.zeros();
        let factor = call.scale * std::f32::consts::LOG2_E;
        let [first, end] = cta.visible_keys(ROWS_PER_CTA);
        let common = cta.common(cta.first, ROWS_PER_CTA);
        k.for_range(first, end, ROWS_PER_CTA, |key| {
            let weights = products.scores((q, cta.first), (keys, key));
            let slopes = products.scores((dout, cta.first), (values, key));
            // Sixteen threads load the same values. They are reloaded per tile, from the cache, to
            // save registers.
            let [lse, delta] = lines.map(|line| {
                let row = cta.first + products.row();
                [0, 1, 2, 3].map(|i| {
                    let exists = (row + i).lt(cta.queries);
                    line.element::<f32>(row + i).load_if::<f32>(exists)
                })
            });
            let lse = lse.map(|lse| lse * std::f32::consts::LOG2_E);
            for (weights, lse) in weights.iter().zip(lse) {
                for weight in weights {
                    weight.set(weight.fma(factor, -lse).exp2_approx());
                }
            }
            products.hide(&cta, common, [cta.first, key], false, |i, j, visible| {
                let weight = &weights[i][j];
                weight.set(visible.select(**weight, 0.0));
            });
            for ((weights, slopes), delta) in weights.iter().zip(&slopes).zip(delta) {
                for (weight, slope) in weights.iter().zip(slopes) {
                    slope.set(**weight * (**slope - delta));
                }
            }
            products.set_weights(&slopes);
            products.add_weighted(&sums, (keys, key), cta.block * COLUMNS);
        });

        let to = given.dq.rows(cta.batch, cta.queries, cta.head);
        let corner = [cta.first, cta.block * COLUMNS];
        products.store(to, corner, |i, j| *sums[i][j] * call.scale);
    });
    k.finish()
}
