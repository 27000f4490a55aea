//! Attention.

use meshgrad_runtime::ops::{self, AttentionMask};
use meshgrad_runtime::{Kind, Tensor};

use crate::{Operand, Result, Save, Saved, Slot, Track, tracked_many};

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
    let saved = Attention::save([q, k, v], &out, &lse, mask, scale);
    out.tracked([q, k, v], move |dout, slots| saved.backward(Some(dout), None, slots))
}

/// As [`attention`], with the log-sum-exp of each query's scores as a second result: lse = ln sum
/// exp(scale q k^T) over the keys that `mask` allows. It combines results over disjoint sets of
/// keys: each one's weight is exp(its lse - the lse of all keys).
///
/// # Shapes
/// As [`attention`]; lse is [B, H, T] in the accumulator dtype, minus infinity for a query without
/// keys.
///
/// # Errors
/// As [`meshgrad_runtime::ops::attention`].
pub fn attention_with_lse<V: Operand>(
    q: &V,
    k: &V,
    v: &V,
    mask: &AttentionMask,
    scale: f64,
) -> Result<(V, V)> {
    let (out, lse) = ops::attention(q.value(), k.value(), v.value(), mask, scale)?;
    let saved = Attention::save([q, k, v], &out, &lse, mask, scale);
    let backward = move |[dout, dlse]: [Option<&Tensor>; 2], slots: [Slot<'_>; 3]| {
        saved.backward(dout, dlse, slots)
    };
    let [out, lse] = tracked_many([out, lse], [q, k, v], backward)?;
    Ok((out, lse))
}

/// What the gradients need.
struct Attention {
    /// q, k, v, out and lse.
    tensors: [Saved; 5],
    mask: AttentionMask,
    scale: f64,
}

impl Attention {
    fn save<V: Operand>(
        [q, k, v]: [&V; 3],
        out: &Tensor,
        lse: &Tensor,
        mask: &AttentionMask,
        scale: f64,
    ) -> Attention {
        Attention {
            tensors: [q.save(), k.save(), v.save(), out.save(), lse.save()],
            mask: mask.clone(),
            scale,
        }
    }

    /// One op computes all three gradients. In a split backward it runs once per phase that needs
    /// any.
    fn backward(
        &self,
        dout: Option<&Tensor>,
        dlse: Option<&Tensor>,
        [dq, dk, dv]: [Slot<'_>; 3],
    ) -> Result<()> {
        if !(dq.due() | dk.due() | dv.due()) {
            return Ok(());
        }
        let saved: Result<Vec<Tensor>> = self.tensors.iter().map(Saved::get).collect();
        let [q, k, v, out, lse] = saved?.try_into().unwrap_or_else(|_| unreachable!());
        let (mask, scale) = (&self.mask, self.scale);
        let grads = match (dout, dlse) {
            (None, None) => return Ok(()),
            (Some(dout), None) => ops::attention_grad(&q, &k, &v, &out, &lse, dout, mask, scale)?,
            (dout, Some(dlse)) => {
                let dout = match dout {
                    Some(dout) => dout.clone(),
                    None => no_dout(&out, dlse)?,
                };
                ops::attention_lse_grad(&q, &k, &v, &out, &lse, &dout, dlse, mask, scale)?
            }
        };
        dq.add(|| Ok(grads.0))?;
        dk.add(|| Ok(grads.1))?;
        dv.add(|| Ok(grads.2))
    }
}

/// A gradient of zero for `out`, partial along the axes along which `dlse` is.
fn no_dout(out: &Tensor, dlse: &Tensor) -> Result<Tensor> {
    let zeros = out.sharded_shape().zeros(out.device(), out.dtype(), Kind::Value)?;
    let per_query = dlse.transpose(1, 2)?.unsqueeze(3)?;
    ops::mul(&zeros, &ops::cast(&per_query, out.dtype())?)
}
