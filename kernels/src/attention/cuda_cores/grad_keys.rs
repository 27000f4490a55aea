//! The gradients of keys and values on CUDA cores.

use super::super::ROWS_PER_CTA;
use super::super::arguments::AttentionGradKeysArguments;
use super::super::cta_tile::CtaTile;
use super::super::problem::Axis;
use super::product::Products;
use super::{COLUMNS, THREADS};
use crate::assembler::{ArgumentFor, Kernel, Ptx, Target};
use crate::dtype::Dtype;

/// Computes `dk` and `dv`.
pub(in super::super) fn grad_keys(entry: String, dtype: Dtype) -> Ptx {
    let k = &Kernel::new(entry, Target::Sm80, THREADS).ctas_per_sm(2);
    let given = AttentionGradKeysArguments::declare(k, "", &());
    let call = given.problem;
    let cta = CtaTile::of_cta(call, Axis::Keys);
    let products = Products::new(k, dtype, call.head_dim);

    k.if_(cta.first.lt(cta.all_keys), || {
        let [keys, values] =
            [given.k, given.v].map(|view| view.rows(cta.batch, cta.keys, cta.head));
        let (key_sums, value_sums) = (products.zeros(), products.zeros());
        let factor = call.scale * std::f32::consts::LOG2_E;
        let column = cta.block * COLUMNS;
        let [first, end] = cta.visible_queries(ROWS_PER_CTA);
        let first_head = cta.head * call.group;
        k.for_range(first_head, first_head + call.group, 1, |head| {
            k.for_range(first, end, ROWS_PER_CTA, |query| {
                // Addresses are recomputed for each tile to save registers.
                let [q, dout] =
                    [given.q, given.dout].map(|view| view.rows(cta.batch, cta.queries, head));
                let lines = [given.lse, given.delta].map(|base| cta.of_queries(base, head));
                let weights = products.scores((keys, cta.first), (q, query));
                let slopes = products.scores((values, cta.first), (dout, query));
                let [lse, delta] = lines.map(|line| {
                    [0, 16, 32, 48].map(|j| {
                        let query = query + products.x + j;
                        let exists = query.lt(cta.queries);
                        line.element::<f32>(query).load_if::<f32>(exists)
                    })
                });
                let lse = lse.map(|lse| lse * std::f32::consts::LOG2_E);
                for weights in &weights {
                    for (weight, lse) in weights.iter().zip(lse) {
                        weight.set(weight.fma(factor, -lse).exp2_approx());
                    }
                }
                let common = cta.common(query, ROWS_PER_CTA);
                products.hide(&cta, common, [query, cta.first], true, |i, j, visible| {
                    let weight = &weights[i][j];
                    weight.set(visible.select(**weight, 0.0));
                });
                products.set_weights(&weights);
                products.add_weighted(&value_sums, (dout, query), column);

                for (weights, slopes) in weights.iter().zip(&slopes) {
                    for ((weight, slope), delta) in weights.iter().zip(slopes).zip(delta) {
                        slope.set(**weight * (**slope - delta));
                    }
                }
                k.barrier();
                products.set_weights(&slopes);
                products.add_weighted(&key_sums, (q, query), column);
            });
        });

        let corner = [cta.first, column];
        let [dk, dv] =
            [given.dk, given.dv].map(|view| view.rows(cta.batch, cta.all_keys, cta.head));
        products.store(dk, corner, |i, j| *key_sums[i][j] * call.scale);
        products.store(dv, corner, |i, j| *value_sums[i][j]);
    });
    k.finish()
}
