//! Attention.

use meshgrad_runtime::Tensor;
use meshgrad_runtime::ops::{self, AttentionMask};

use crate::{Operand, Result, Save, Track};

/// softmax(scale q k^T) v over the keys that `mask` allows. Saves q, k, v, the result and one
/// number per query and head.
///
/// # Shapes
/// `q` [B, T, H, D], `k` and `v` [B, S, G, D] of one float dtype, H a multiple of G; returns [B, T,
/// H, D].
///
/// # Errors
/// As [`meshgrad_runtime::ops::attention`].
pub fn attention<V: Operand>(q: &V, k: &V, v: &V, mask: &AttentionMask, scale: f64) -> Result<V> {
    let (out, lse) = ops::attention(q.value(), k.value(), v.value(), mask, scale)?;
    let saved = [q.save(), k.save(), v.save(), out.save(), lse.save()];
    let mask = mask.clone();
    out.tracked([q, k, v], move |dout, [dq, dk, dv]| {
        // One op computes all three gradients. In a split backward it runs once per phase that
        // needs any.
        if !(dq.due() | dk.due() | dv.due()) {
            return Ok(());
        }
        let saved: Result<Vec<Tensor>> = saved.iter().map(crate::Saved::get).collect();
        let [q, k, v, out, lse] = saved?.try_into().unwrap_or_else(|_| unreachable!());
        let grads = ops::attention_grad(&q, &k, &v, &out, &lse, dout, &mask, scale)?;
        dq.add(|| Ok(grads.0))?;
        dk.add(|| Ok(grads.1))?;
        dv.add(|| Ok(grads.2))
    })
}
