//! The forward pass: computes `out` and `lse`.

use super::super::SIDE;
use super::super::place::{Call, Place, Reports, View};
use super::super::problem::Axis;
use super::super::softmax::Softmax;
use super::product::Products;
use super::{COLUMNS, THREADS};
use crate::assembler::{Kernel, Ptx, Target};
use crate::dtype::Dtype;

/// The kernel that computes `out` and `lse`.
pub(in super::super) fn forward(entry: String, dtype: Dtype) -> Ptx {
    let k = &Kernel::new(entry, Target::Sm80, THREADS).ctas_per_sm(2);
    let [q, keys, v, out] = ["q", "k", "v", "out"].map(|name| View::parameter(k, name));
    let (lse, reports) = (k.pointer("lse"), Reports::parameters(k));
    let call = Call::parameters(k);
    let place = Place::reporting(call, Axis::Queries, Some(reports));
    let products = Products::new(k, dtype, call.head_dim);

    k.if_(place.first.lt(place.queries.length), || {
        let kv_head = place.head / call.group;
        let q = q.rows(place.batch, place.queries, place.head);
        let [keys, values] = [keys, v].map(|view| view.rows(place.batch, place.keys, kv_head));

        let softmax = Softmax::new(k, 4, 16);
        let sums = products.zeros();
        let factor = call.scale * std::f32::consts::LOG2_E;
        let [first, end] = place.seen_keys(SIDE);
        k.for_range(first, end, SIDE, |key| {
            let scores = products.scores((q, place.first), (keys, key));
            for score in scores.iter().flatten() {
                score.set(**score * factor);
            }
            products.hide(&place, [place.first, key], false, |i, j, sees| {
                let score = &scores[i][j];
                score.set(sees.select(**score, f32::NEG_INFINITY));
            });
            for (row, (scores, sums)) in scores.iter().zip(&sums).enumerate() {
                let shrink = softmax.add(row, scores);
                for sum in sums {
                    sum.set(**sum * shrink);
                }
            }
            products.set_weights(&scores);
            products.add_weighted(&sums, (values, key), place.block * COLUMNS);
        });

        let totals = [0, 1, 2, 3].map(|row| softmax.total(row));
        let to = out.rows(place.batch, place.queries, place.head);
        let corner = [place.first, place.block * COLUMNS];
        products.store(to, corner, |i, j| *sums[i][j] * totals[i].reciprocal);

        let lines = place.of_queries(lse, place.head);
        let leads = products.x.equals(0) & place.block.equals(0);
        let row = place.first + products.row();
        for (i, total) in (0..).zip(totals) {
            let exists = (row + i).lt(place.queries.length);
            lines
                .element::<f32>(row + i)
                .store_if(leads & exists, total.lse);
        }
    });
    k.finish()
}
