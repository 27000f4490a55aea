//! Scaled dot-product attention, computed in blocks: no [T, S] matrix is stored, in forward or
//! backward.
//!
//! Legend: B batch, T queries, S keys, H query heads, G key-value heads (H is a multiple of G), D
//! head dimension.

mod sharded;

use meshgrad_error::{ensure, error};

use crate::core::arguments::attention::Shape;
pub use crate::core::arguments::attention::{AttentionMask, AttentionSequences};
use crate::cpu::attention::{self as kernel, Gradients, KeyRanges, Mask, Rows, Saved, Sequences};
use crate::launch::attention as launch;
use crate::ops::{add, concat, contiguous, to_device};
use crate::{Call, DType, Element, Result, Signature, Tensor, for_float};

static ATTENTION: Signature = Signature::new(
    "attention",
    "q: F[b t h d!], k: F[b s! g d!], v: F[b s! g d!] -> out: F[b t h d], lse: A[b h t]",
    4,
)
.grouped("h", "g");
static ATTENTION_GRAD: Signature = Signature::new(
    "attention_grad",
    "q: F[b t h d!], k: F[b s! g d!], v: F[b s! g d!], out: F[b t h d], lse: A[b h t], \
     dout: F[b t h d] -> dq: F[b t h d], dk: F[b s g d], dv: F[b s g d]",
    10,
)
.grouped("h", "g")
.linear_in(&["dout"]);
static ATTENTION_LSE_GRAD: Signature = Signature::new(
    "attention_lse_grad",
    "q: F[b t h d!], k: F[b s! g d!], v: F[b s! g d!], out: F[b t h d], lse: A[b h t], \
     dout: F[b t h d], dlse: A[b h t] -> dq: F[b t h d], dk: F[b s g d], dv: F[b s g d]",
    10,
)
.grouped("h", "g")
.linear_in(&["dout + dlse"]);

pub(super) static SIGNATURES: &[&Signature] = &[&ATTENTION, &ATTENTION_GRAD, &ATTENTION_LSE_GRAD];

/// out = softmax(scale q k^T) v and lse = ln sum exp(scale q k^T), over the keys that each query
/// attends to under `mask`.
///
/// # Shapes
/// `q` [B, T, H, D], `k` and `v` [B, S, G, D] of one float dtype, any strides; returns out [B, T,
/// H, D] and lse [B, H, T] in the accumulator dtype. For a query without keys, out is 0 and lse is
/// minus infinity.
///
/// Flash attention (Dao et al. 2022). The bits of a query's result do not depend on the other
/// queries.
///
/// The queries of a sharded `q` can be a rank's part of the sequence, with `k` and `v` whole: their
/// positions count from the start of the global tensor. A rank with several ranges of the
/// sequence, as of head-and-tail shards, runs the kernel once per range. The tensors of `mask` are then sharded like
/// the batch, if they have a value per row, like the queries, if they have ranges of keys, and
/// replicated otherwise.
///
/// On a CPU, a document in a row of documents has the bits of the document alone. With ranges that
/// overlap but begin at different keys, bits depend on which queries are computed together; pass a
/// window as `window`, not in the ranges.
///
/// # Errors
/// When the shardings of operands and mask do not fit; when H is not a multiple of G; when D is 0
/// or the mask does not fit the operands. Positions, lengths and ranges out of range, and ranges
/// that decrease, are errors on a CPU. A GPU clamps them and reports them at the next
/// synchronization: a decrease as a negative index.
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: &AttentionMask,
    scale: f64,
) -> Result<(Tensor, Tensor)> {
    let call = ATTENTION.call(&[q, k, v])?;
    let mask = &*sharded::local_mask(ATTENTION.name(), "out", q, mask)?;
    let queries = sharded::queries(q);
    if let [one] = &queries[..] {
        return attend([q, k, v], one.first, call, mask, scale);
    }

    let [q, k, v] = [q, k, v].map(Tensor::local);
    let (mut outs, mut lses) = (Vec::new(), Vec::new());
    for part in queries {
        let mask = &*sharded::of_queries(mask, &part.own)?;
        let q = q.slice(1, part.own)?;
        let call = ATTENTION.call(&[&q, &k, &v])?;
        let (out, lse) = attend([&q, &k, &v], part.first, call, mask, scale)?;
        outs.push(out);
        lses.push(lse);
    }
    Ok((joined(&call, 0, &outs, 1)?, joined(&call, 1, &lses, 2)?))
}

/// Result `at` of a call, from the results for parts of the queries.
fn joined(call: &Call, at: usize, parts: &[Tensor], dim: isize) -> Result<Tensor> {
    let x = concat(&parts.iter().collect::<Vec<_>>(), dim)?;
    let tag = call.result_tag(at, x.shape())?;
    Ok(x.with_tag(tag))
}

/// Result `at` of a call, which is the sum of those for parts of the queries.
fn summed(call: &Call, at: usize, parts: &[Tensor]) -> Result<Tensor> {
    let mut rest = parts[1..].iter();
    let x = rest.try_fold(parts[0].clone(), |sum, part| add(&sum, part))?;
    let tag = call.result_tag(at, x.shape())?;
    Ok(x.with_tag(tag))
}

/// The results for queries that follow each other, of which the first one has index `first`.
fn attend(
    [q, k, v]: [&Tensor; 3],
    first: usize,
    mut call: Call,
    mask: &AttentionMask,
    scale: f64,
) -> Result<(Tensor, Tensor)> {
    let shape = shape_of(ATTENTION.name(), [q, k, v], first)?;
    let (mut out, mut lse) = (call.output(0)?, call.output(1)?);

    let call = call.with_flops(4 * multiply_adds(&shape, mask));
    let (q, k, v) = (dense_rows(q)?, dense_rows(k)?, dense_rows(v)?);
    if call.device().is_gpu() {
        let to_gpu = |list: &Tensor| contiguous(&to_device(list, call.device())?);
        let called = launch::Called::new(shape, mask, scale, to_gpu)?;
        call.launch(|gpu| launch::attention(gpu, &called, [&q, &k, &v], [&out, &lse]))?;
        return Ok((out.finish(), lse.finish()));
    }
    call.compute(|| {
        if shape.kv_heads == 0 {
            return Ok(());
        }
        let sequences = ReadSequences::new(ATTENTION.name(), &mask.sequences, &shape)?;
        for_float!(q.dtype(), T => {
            let (q_read, k_read, v_read) = (q.read::<T>()?, k.read()?, v.read()?);
            let attention = kernel::Attention {
                shape,
                q: rows(&q, &q_read),
                k: rows(&k, &k_read),
                v: rows(&v, &v_read),
                mask: sequences.mask(mask),
                scale,
            };
            attention.forward(out.slice()?, lse.slice()?)
        })
    })?;
    Ok((out.finish(), lse.finish()))
}

/// The gradients of [`attention`] with respect to q, k and v, from its results and the gradient of
/// `out`.
///
/// # Shapes
/// As [`attention`]; `dout` as `out`. Returns dq, dk, dv of the shapes of q, k, v; dk and dv are
/// sums over the query heads that share a key-value head. If the queries are sharded, dk and dv are
/// partial sums. For several ranges of queries on a rank, they are sums of one gradient per range,
/// each rounded to the dtype.
///
/// # Errors
/// As [`attention`].
#[allow(clippy::too_many_arguments)]
pub fn attention_grad(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    out: &Tensor,
    lse: &Tensor,
    dout: &Tensor,
    mask: &AttentionMask,
    scale: f64,
) -> Result<(Tensor, Tensor, Tensor)> {
    let call = ATTENTION_GRAD.call(&[q, k, v, out, lse, dout])?;
    let gradient = Gradient { attention: [q, k, v], results: [out, lse], dout, dlse: None };
    gradient.compute(&ATTENTION_GRAD, call, mask, scale)
}

/// As [`attention_grad`], for a loss that depends on `lse` too. The values of `dlse` for queries
/// without keys are not used; they can be NaN.
///
/// # Shapes
/// As [`attention_grad`]; `dlse` as `lse`.
///
/// # Errors
/// As [`attention_grad`].
#[allow(clippy::too_many_arguments)]
pub fn attention_lse_grad(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    out: &Tensor,
    lse: &Tensor,
    dout: &Tensor,
    dlse: &Tensor,
    mask: &AttentionMask,
    scale: f64,
) -> Result<(Tensor, Tensor, Tensor)> {
    let call = ATTENTION_LSE_GRAD.call(&[q, k, v, out, lse, dout, dlse])?;
    let gradient = Gradient { attention: [q, k, v], results: [out, lse], dout, dlse: Some(dlse) };
    gradient.compute(&ATTENTION_LSE_GRAD, call, mask, scale)
}

/// The operands of the gradients.
struct Gradient<'a> {
    /// q, k and v.
    attention: [&'a Tensor; 3],
    /// out and lse.
    results: [&'a Tensor; 2],
    dout: &'a Tensor,
    dlse: Option<&'a Tensor>,
}

impl Gradient<'_> {
    fn compute(
        &self,
        signature: &'static Signature,
        call: Call,
        mask: &AttentionMask,
        scale: f64,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let ([q, k, v], [out, lse]) = (self.attention, self.results);
        let mask = &*sharded::local_mask(signature.name(), "dq", q, mask)?;
        let queries = sharded::queries(q);
        if let [one] = &queries[..] {
            return self.of_queries(one.first, call, mask, scale);
        }

        let [q, k, v, out, lse] = [q, k, v, out, lse].map(Tensor::local);
        let dout = self.dout.local();
        let dlse = self.dlse.map(Tensor::local);
        let (mut dqs, mut dks, mut dvs) = (Vec::new(), Vec::new(), Vec::new());
        for part in queries {
            let rows = |x: &Tensor| x.slice(1, part.own.clone());
            let statistics = |x: &Tensor| x.slice(2, part.own.clone());
            let (q, out, dout, lse) = (rows(&q)?, rows(&out)?, rows(&dout)?, statistics(&lse)?);
            let dlse = dlse.as_ref().map(statistics).transpose()?;
            let gradient = Gradient {
                attention: [&q, &k, &v],
                results: [&out, &lse],
                dout: &dout,
                dlse: dlse.as_ref(),
            };
            let operands = [&q, &k, &v, &out, &lse, &dout].into_iter();
            let operands: Vec<&Tensor> = operands.chain(dlse.as_ref()).collect();
            let call = signature.call(&operands)?;
            let mask = &*sharded::of_queries(mask, &part.own)?;
            let (dq, dk, dv) = gradient.of_queries(part.first, call, mask, scale)?;
            dqs.push(dq);
            dks.push(dk);
            dvs.push(dv);
        }
        Ok((joined(&call, 0, &dqs, 1)?, summed(&call, 1, &dks)?, summed(&call, 2, &dvs)?))
    }

    /// The gradients for queries that follow each other, of which the first one has index `first`.
    fn of_queries(
        &self,
        first: usize,
        mut call: Call,
        mask: &AttentionMask,
        scale: f64,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let ([q, k, v], [out, lse]) = (self.attention, self.results);
        let shape = shape_of(call.name(), [q, k, v], first)?;
        let (q, k, v) = (dense_rows(q)?, dense_rows(k)?, dense_rows(v)?);
        let (out, dout, lse) = (dense_rows(out)?, dense_rows(self.dout)?, contiguous(lse)?);
        let dlse = self.dlse.map(contiguous).transpose()?;
        let (mut dq, mut dk, mut dv) = (call.output(0)?, call.output(1)?, call.output(2)?);
        let workspace = match call.device().is_gpu() {
            true => launch::grad_workspace(&shape),
            false => kernel::backward_workspace(&shape),
        };
        let mut workspace = call.workspace(workspace, q.dtype().accumulator())?;

        let call = call.with_flops(10 * multiply_adds(&shape, mask));
        if call.device().is_gpu() {
            let to_gpu = |list: &Tensor| contiguous(&to_device(list, call.device())?);
            let called = launch::Called::new(shape, mask, scale, to_gpu)?;
            let operands = launch::GradOperands {
                q: &q,
                k: &k,
                v: &v,
                out: &out,
                lse: &lse,
                dout: &dout,
                dlse: dlse.as_ref(),
            };
            let gradients = [&dq, &dk, &dv];
            call.launch(|gpu| {
                launch::attention_grad(gpu, &called, &operands, &workspace, gradients)
            })?;
            return Ok((dq.finish(), dk.finish(), dv.finish()));
        }
        call.compute(|| {
            if shape.kv_heads == 0 {
                return Ok(());
            }
            let sequences = ReadSequences::new(call.name(), &mask.sequences, &shape)?;
            for_float!(q.dtype(), T => {
                let (q_read, k_read, v_read) = (q.read::<T>()?, k.read()?, v.read()?);
                let (out_read, dout_read, lse_read) = (out.read()?, dout.read()?, lse.read()?);
                let dlse_read = match &dlse {
                    Some(dlse) => Some(dlse.read()?),
                    None => None,
                };
                let attention = kernel::Attention {
                    shape,
                    q: rows(&q, &q_read),
                    k: rows(&k, &k_read),
                    v: rows(&v, &v_read),
                    mask: sequences.mask(mask),
                    scale,
                };
                let dlse = dlse.as_ref().zip(dlse_read.as_ref());
                let saved = Saved {
                    out: rows(&out, &out_read),
                    lse: lse.elements_of(&lse_read),
                    dout: rows(&dout, &dout_read),
                    dlse: dlse.map(|(dlse, read)| dlse.elements_of(read)),
                };
                let gradients = Gradients {
                    dq: dq.slice::<T>()?,
                    dk: dk.slice()?,
                    dv: dv.slice()?,
                };
                attention.backward(&saved, gradients, workspace.slice()?)
            })
        })?;
        Ok((dq.finish(), dk.finish(), dv.finish()))
    }
}

/// The number of unmasked (query, key) pairs over all heads, times the head dimension.
fn multiply_adds(shape: &Shape, mask: &AttentionMask) -> u64 {
    let heads = (shape.batch * shape.heads * shape.head_dim) as u64;
    heads * mask.pairs(shape.first_query, shape.queries, shape.keys)
}

/// Checks what a signature cannot express, on all devices alike, and returns the extents.
fn shape_of(op: &'static str, [q, k, v]: [&Tensor; 3], first_query: usize) -> Result<Shape> {
    let (of_q, of_k) = (q.shape(), k.shape());
    let (heads, kv_heads) = (of_q[2], of_k[2]);
    // A rank may have no heads.
    let shared = if kv_heads == 0 { heads == 0 } else { heads % kv_heads == 0 };
    ensure!(
        shared,
        Invalid,
        "{op}: {heads} query heads are not a multiple of {kv_heads} key heads"
    );
    debug_assert_eq!(of_k, v.shape());

    Ok(Shape {
        batch: of_q[0],
        queries: of_q[1],
        keys: of_k[1],
        heads,
        kv_heads,
        head_dim: of_q[3],
        first_query,
    })
}

/// `x`, or a copy if its last dim is not contiguous (on a GPU, if kernels cannot read it fast).
fn dense_rows(x: &Tensor) -> Result<Tensor> {
    if x.device().is_gpu() {
        return launch::rows(x);
    }
    match x.layout().strides().last() {
        Some(1) => Ok(x.clone()),
        _ => crate::ops::copy(x),
    }
}

fn rows<'a, T: Element>(x: &Tensor, elements: &'a [T]) -> Rows<'a, T> {
    let strides = x.layout().strides();
    let stride = |dim: usize| strides[dim] as usize;
    Rows { data: elements, offset: x.layout().offset(), strides: [stride(0), stride(1), stride(2)] }
}

/// The values of [`AttentionSequences`] on the host.
enum ReadSequences {
    Rows { q_offset: Vec<usize>, k_len: Vec<usize> },
    Ranges(KeyRanges),
}

impl ReadSequences {
    fn new(
        op: &'static str,
        sequences: &AttentionSequences,
        shape: &Shape,
    ) -> Result<ReadSequences> {
        let read = |tensor| crate::ops::cast(tensor, DType::I64)?.to_vec::<i64>();
        Ok(match sequences {
            AttentionSequences::Rows => {
                ReadSequences::Rows { q_offset: vec![0], k_len: vec![shape.keys] }
            }
            AttentionSequences::Cached { q_offset, k_len } => ReadSequences::Rows {
                q_offset: not_negative(op, "q_offset", read(q_offset)?)?,
                k_len: not_negative(op, "k_len", read(k_len)?)?,
            },
            AttentionSequences::Ranges(ranges) => {
                let ranges = KeyRanges::new(&ranges.to_vec()?, shape);
                ReadSequences::Ranges(ranges.map_err(|error| error.context(op))?)
            }
        })
    }

    fn mask(&self, mask: &AttentionMask) -> Mask<'_> {
        let sequences = match self {
            ReadSequences::Rows { q_offset, k_len } => Sequences::Rows { q_offset, k_len },
            ReadSequences::Ranges(ranges) => Sequences::Ranges(ranges),
        };
        Mask { causal: mask.causal, window: mask.window, sequences }
    }
}

fn not_negative(op: &'static str, name: &str, values: Vec<i64>) -> Result<Vec<usize>> {
    let convert = |value: i64| {
        value.try_into().map_err(|_| {
            error!(Invalid, "{op}: `{name}` is {value}; positions and lengths must not be negative")
        })
    };
    values.into_iter().map(convert).collect()
}

#[cfg(test)]
mod tests {
    use approx::assert_abs_diff_eq;

    use super::*;
    use crate::{Device, ops};

    fn numbered(device: &Device, shape: &[usize], step: f64) -> Tensor {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|i| (i as f64 * step).sin()).collect();
        Tensor::from_slice(device, shape, &values).unwrap()
    }

    /// Softmax over an explicit matrix of scores, for one batch row.
    fn naive(q: &Tensor, k: &Tensor, v: &Tensor, seen: impl Fn(usize, usize) -> bool) -> Vec<f64> {
        let (of_q, of_k) = (*q.shape(), *k.shape());
        let (t, h, d, s, g) = (of_q[1], of_q[2], of_q[3], of_k[1], of_k[2]);
        let [q, k, v] = [q, k, v].map(|x| x.to_vec::<f64>().unwrap());
        let mut out = vec![0.0; t * h * d];
        for i in 0..t {
            for head in 0..h {
                let kv = head / (h / g);
                let score = |j: usize| -> f64 {
                    (0..d).map(|x| q[(i * h + head) * d + x] * k[(j * g + kv) * d + x]).sum()
                };
                let keys: Vec<usize> = (0..s).filter(|j| seen(i, *j)).collect();
                let total: f64 = keys.iter().map(|j| (0.5 * score(*j)).exp()).sum();
                for j in keys {
                    for x in 0..d {
                        let weight = (0.5 * score(j)).exp() / total;
                        out[(i * h + head) * d + x] += weight * v[(j * g + kv) * d + x];
                    }
                }
            }
        }
        out
    }

    fn assert_close(actual: &Tensor, expected: &[f64]) {
        assert_abs_diff_eq!(actual.to_vec::<f64>().unwrap()[..], *expected, epsilon = 1e-12);
    }

    /// Operands can be views of one fused q, k and v projection.
    #[test]
    fn strided_operands() {
        let device = Device::cpu();
        let qkv = numbered(&device, &[1, 7, 8, 3], 0.3);
        let part = |range| qkv.slice(2, range).unwrap();
        let (q, k, v) = (part(0..4), part(4..6), part(6..8));
        let (out, lse) = attention(&q, &k, &v, &AttentionMask::causal(), 0.5).unwrap();
        assert_close(&out, &naive(&q, &k, &v, |i, j| j <= i));
        assert_eq!(lse.shape().to_vec(), [1, 4, 7]);
    }

    /// A query attends to no key at or after `k_len`, even if the cache is longer.
    #[test]
    fn cached_keys() {
        let device = Device::cpu();
        let (q, k) = (numbered(&device, &[1, 2, 2, 3], 0.3), numbered(&device, &[1, 9, 1, 3], 0.7));
        let of = |value: i64| Tensor::from_slice(&device, &[1], &[value]).unwrap();
        let sequences = AttentionSequences::Cached { q_offset: of(4), k_len: of(6) };
        let mask = AttentionMask { causal: true, window: Some(3), sequences };
        let (out, _) = attention(&q, &k, &k, &mask, 0.5).unwrap();
        assert_close(&out, &naive(&q, &k, &k, |i, j| j <= i + 4 && j + 3 > i + 4));

        let sequences = AttentionSequences::Cached { q_offset: of(-1), k_len: of(6) };
        let mask = AttentionMask { causal: true, window: None, sequences };
        let problem = "`q_offset` is -1; positions and lengths must not be negative";
        let error = attention(&q, &k, &k, &mask, 0.5).unwrap_err();
        assert_eq!(error.to_string(), format!("attention: {problem}"));
        let lse = numbered(&device, &[1, 2, 2], 0.1);
        let error = attention_grad(&q, &k, &k, &q, &lse, &q, &mask, 0.5).unwrap_err();
        assert_eq!(error.to_string(), format!("attention_grad: {problem}"));
    }

    /// `causal` has no effect on ranges, and a window keeps their last keys.
    #[test]
    fn ranges_of_keys() {
        let device = Device::cpu();
        let x = numbered(&device, &[1, 7, 2, 3], 0.3);
        let ranges = [[0i32, 1], [0, 2], [0, 3], [3, 3], [3, 6], [3, 6], [4, 7]];
        let seen = |i: usize, j: usize| (ranges[i][0]..ranges[i][1]).contains(&(j as i32));
        let list = Tensor::from_slice(&device, &[1, 7, 2], ranges.as_flattened()).unwrap();
        let of = |causal, window| {
            let sequences = AttentionSequences::Ranges(list.clone());
            let mask = AttentionMask { causal, window, sequences };
            attention(&x, &x, &x, &mask, 0.5).unwrap().0
        };
        assert_close(&of(true, None), &naive(&x, &x, &x, seen));
        assert_close(&of(false, None), &naive(&x, &x, &x, seen));
        let last_two = |i: usize, j: usize| seen(i, j) && j as i32 + 2 >= ranges[i][1];
        assert_close(&of(true, Some(2)), &naive(&x, &x, &x, last_two));
    }

    #[test]
    fn heads_must_divide() {
        let device = Device::cpu();
        let (q, k) = (numbered(&device, &[1, 2, 3, 4], 0.3), numbered(&device, &[1, 2, 2, 4], 0.7));
        let error = attention(&q, &k, &k, &AttentionMask::causal(), 1.0).err().unwrap();
        assert_eq!(error.to_string(), "attention: 3 query heads are not a multiple of 2 key heads");
    }

    /// A meta device counts the same FLOPs and peak memory as the CPU. Masked pairs do not count.
    #[test]
    fn meta_counts_what_the_cpu_does() {
        let work = |device: &Device| {
            let x = ops::full(device, &[2, 5, 2, 4], DType::F32, 0.1).unwrap();
            let mask = AttentionMask::causal();
            device.reset_peak();
            let (out, lse) = attention(&x, &x, &x, &mask, 0.5).unwrap();
            attention_grad(&x, &x, &x, &out, &lse, &out, &mask, 0.5).unwrap();
            (device.work(), device.memory_stats().peak)
        };
        let cpu = Device::cpu();
        let meta = Device::meta(cpu.properties());
        assert_eq!(work(&cpu), work(&meta));
        assert_eq!(meta.work().flops, 14 * 2 * 2 * 4 * 15);
    }
}
