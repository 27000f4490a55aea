//! Mixture-of-experts layers. Gradients flow through weights and rows, not through the choice of
//! experts.

use meshgrad_runtime::ops::ExpertOrder;
use meshgrad_runtime::{Tensor, ops};

use crate::{Operand, Result, Save, Track};

/// Chooses the `k` most probable experts of each token and returns their weights and indices.
/// Gradients flow through the weights. `bias` is added only for the choice.
///
/// # Shapes
/// `probabilities` [N, E] float, `bias` \[E\] f32 (f64 for f64); returns weights [N, K] and indices
/// [N, K] i32.
///
/// # Errors
/// As [`meshgrad_runtime::ops::router_top_k`].
pub fn router_top_k<V: Operand>(
    probabilities: &V,
    k: usize,
    renormalize: bool,
    bias: Option<&Tensor>,
) -> Result<(V, Tensor)> {
    let (weights, indices) = ops::router_top_k(probabilities.value(), k, renormalize, bias)?;

    let (saved, saved_indices) = (probabilities.save(), indices.save());
    let weights = weights.tracked([probabilities], move |dweights, [dprobabilities]| {
        dprobabilities.add(|| {
            let (probabilities, indices) = (saved.get()?, saved_indices.get()?);
            ops::router_top_k_grad(&probabilities, &indices, dweights, renormalize)
        })
    })?;
    Ok((weights, indices))
}

/// Gathers the rows of each expert, sorted by `order`.
///
/// # Shapes
/// `x` [N, H]; returns [C, H]. Rows without a slot are zero, and those past the last offset unspecified.
///
/// # Errors
/// As [`meshgrad_runtime::ops::permute_tokens`].
pub fn permute_tokens<V: Operand>(x: &V, order: &ExpertOrder) -> Result<V> {
    let top_k = order.row_of_slot.shape()[1];
    let y = ops::permute_tokens(x.value(), &order.order, &order.offsets, top_k)?;
    let saved_rows = order.row_of_slot.save();
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add(|| ops::permute_tokens_grad(dy, &saved_rows.get()?))
    })
}

/// Adds the rows of each token: the inverse of [`permute_tokens`] where a token has one row.
///
/// # Shapes
/// `y` [C, H] sorted by `order`; returns [N, H].
///
/// # Errors
/// As [`meshgrad_runtime::ops::permute_tokens_grad`].
pub fn add_rows<V: Operand>(y: &V, order: &ExpertOrder) -> Result<V> {
    let out = ops::permute_tokens_grad(y.value(), &order.row_of_slot)?;
    let top_k = order.row_of_slot.shape()[1];
    let (slots, offsets) = (order.order.save(), order.offsets.save());
    out.tracked_linear([y], move |dout, [dy]| {
        dy.add(|| ops::permute_tokens(dout, &slots.get()?, &offsets.get()?, top_k))
    })
}

/// Combines the experts' results: each token is the weighted sum of its rows.
///
/// # Shapes
/// `y` [C, H] sorted by `order`, `weights` [N, K] of any float dtype; returns [N, H].
///
/// # Errors
/// As [`meshgrad_runtime::ops::unpermute_tokens`].
pub fn unpermute_tokens<V: Operand>(y: &V, weights: &V, order: &ExpertOrder) -> Result<V> {
    let out = ops::unpermute_tokens(y.value(), weights.value(), &order.row_of_slot)?;

    let (saved_y, saved_weights) = (y.save(), weights.save());
    let (slots, offsets) = (order.order.save(), order.offsets.save());
    let (row_of_slot, weight_dtype) = (order.row_of_slot.save(), weights.dtype());
    out.tracked([y, weights], move |dout, [dy, dweights]| {
        dy.add(|| {
            let weights = saved_weights.get()?;
            ops::unpermute_tokens_grad_input(dout, &weights, &slots.get()?, &offsets.get()?)
        })?;
        dweights.add(|| {
            let wide =
                ops::unpermute_tokens_grad_weights(dout, &saved_y.get()?, &row_of_slot.get()?)?;
            ops::cast(&wide, weight_dtype)
        })
    })
}

#[cfg(test)]
mod tests {
    use meshgrad_runtime::{DType, Device};

    use super::*;
    use crate::ops::{concat, grouped_matmul, slice};
    use crate::{Tolerance, Var, gradcheck};

    fn numbered(device: &Device, shape: &[usize], step: f64) -> Tensor {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|i| 0.5 + 0.4 * (i as f64 * step).sin()).collect();
        Tensor::from_slice(device, shape, &values).unwrap()
    }

    /// The gradients of a whole layer (tokens, probabilities, experts' weights) are correct, whether it
    /// holds all experts or some, and whether or not its rows pass through places for ranks.
    #[test]
    fn gradients_of_an_expert_layer() {
        let device = Device::cpu();
        let (n, h, o, e, k) = (6, 3, 2, 5, 2);
        let inputs = [
            numbered(&device, &[n, h], 0.9),
            numbered(&device, &[n, e], 1.7),
            numbered(&device, &[e, o, h], 2.3),
        ];
        for (first, held) in [(0, e), (1, 3)] {
            for renormalize in [false, true] {
                let layer = |inputs: &[Var]| {
                    let [x, probabilities, w] = inputs else {
                        return Ok(Vec::new());
                    };
                    let (weights, chosen) = router_top_k(probabilities, k, renormalize, None)?;
                    let order = ops::expert_order(&chosen, e, first, held)?;
                    let w = slice(w, 0, first..first + held)?;
                    let rows = permute_tokens(x, &order)?;
                    let y = grouped_matmul(&rows, &w, &order.offsets)?;
                    Ok(vec![unpermute_tokens(&y, &weights, &order)?])
                };
                gradcheck(layer, &inputs, Tolerance::default()).unwrap();
            }
        }

        // All slots have places, or only some. Without places the rows add nothing.
        for (held, capacity) in [(e, n * k), (1, n * k), (e, 7), (1, 2)] {
            let layer = |inputs: &[Var]| {
                let [x, probabilities, w] = inputs else {
                    return Ok(Vec::new());
                };
                let (weights, chosen) = router_top_k(probabilities, k, true, None)?;
                Ok(vec![layer_over_ranks([x, &weights, w], &chosen, [held, capacity])?])
            };
            gradcheck(layer, &inputs, Tolerance::default()).unwrap();
        }
    }

    /// With places for all slots, ranks compute what one rank computes without places.
    #[test]
    fn layers_over_ranks_compute_the_layer_of_one_rank() {
        let device = Device::cpu();
        let (n, h, o, e, k) = (6, 3, 2, 5, 2);
        let [x, w] = [numbered(&device, &[n, h], 0.9), numbered(&device, &[e, o, h], 2.3)];
        let probabilities = numbered(&device, &[n, e], 1.7);
        let (weights, chosen) = router_top_k(&probabilities, k, true, None).unwrap();
        let order = ops::expert_order(&chosen, e, 0, e).unwrap();
        let rows = permute_tokens(&x, &order).unwrap();
        let y = grouped_matmul(&rows, &w, &order.offsets).unwrap();
        let whole = unpermute_tokens(&y, &weights, &order).unwrap();
        for held in [1, e] {
            let y = layer_over_ranks([&x, &weights, &w], &chosen, [held, n * k]).unwrap();
            assert_eq!(y.to_vec::<f64>().unwrap(), whole.to_vec::<f64>().unwrap());
        }
    }

    /// An expert layer in which each rank with `held` experts has `capacity` places for slots.
    fn layer_over_ranks<V: Operand>(
        [x, weights, w]: [&V; 3],
        chosen: &Tensor,
        [held, capacity]: [usize; 2],
    ) -> Result<V> {
        let experts = w.value().shape()[0];
        let sorted = ops::expert_order(chosen, experts, 0, experts)?;
        let places = ops::expert_places(chosen, &sorted, held, capacity)?;
        let sent = permute_tokens(x, &places.order)?;

        let on_rank = |rank: usize| {
            let rows = rank * capacity..(rank + 1) * capacity;
            let received = slice(&sent, 0, rows.clone())?;
            let of_rows = ops::reshape(&places.experts.slice(0, rows)?, &[capacity, 1])?;
            let order = ops::expert_order(&of_rows, held + 1, 0, held)?;
            let w = slice(w, 0, rank * held..(rank + 1) * held)?;
            let y = grouped_matmul(&permute_tokens(&received, &order)?, &w, &order.offsets)?;
            add_rows(&y, &order)
        };
        let returned: Result<Vec<V>> = (0..experts / held).map(on_rank).collect();
        let returned = concat(&returned?.iter().collect::<Vec<_>>(), 0)?;
        unpermute_tokens(&returned, weights, &places.order)
    }

    /// With weights in f32 and rows in bf16 each gradient has the dtype of its operand.
    #[test]
    fn gradients_have_the_dtype_of_their_operand() {
        let device = Device::cpu();
        let cast = |x: &Tensor, dtype| ops::cast(x, dtype).unwrap();
        let (y, weights) = (numbered(&device, &[4, 3], 0.3), numbered(&device, &[2, 2], 0.7));
        let chosen = Tensor::from_slice(&device, &[2, 2], &[1i32, 0, 0, 1]).unwrap();
        let order = ops::expert_order(&chosen, 2, 0, 2).unwrap();

        for dtype in [DType::F32, DType::BF16] {
            let ((y, weights, out), tape) = crate::Tape::record(|| {
                let y = Var::input(cast(&y, DType::BF16));
                let weights = Var::input(cast(&weights, dtype));
                let out = unpermute_tokens(&y, &weights, &order)?;
                Ok((y, weights, out))
            })
            .unwrap();
            let dout = ops::full(&device, out.shape(), out.dtype(), 1.0).unwrap();
            let (gradients, _weights) =
                tape.backward_inputs(&[(&out, dout)], &[&y, &weights]).unwrap();
            assert_eq!((gradients[0].dtype(), gradients[1].dtype()), (DType::BF16, dtype));
        }
    }
}
