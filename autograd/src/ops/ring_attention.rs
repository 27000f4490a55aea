//! Attention of a rank's queries to keys of several ranks, of which it holds those of two at a time.

use std::ops::Range;
use std::sync::Arc;

use meshgrad_collectives::Communicator;
use meshgrad_error::ensure;
use meshgrad_runtime::ops::{self, AttentionMask};
use meshgrad_runtime::{Kind, Pending, Tensor};

use super::collectives::{exchange, part};
use crate::computed_once::kept_in_recompute;
use crate::track::tracked_communicating;
use crate::{Operand, Result, Save, Saved, Slot, beside};

/// Some queries of a rank, and keys that they see.
#[derive(Clone, Debug)]
pub struct RingPart {
    /// Of the queries of this rank.
    pub queries: Range<usize>,
    /// Of the keys that another rank has.
    pub keys: Range<usize>,
    /// Which of these keys each of these queries sees, as if there were no others.
    pub mask: AttentionMask,
}

/// Which keys a rank gets when, and what it computes with them.
#[derive(Clone, Debug)]
pub struct Ring {
    /// The number of keys of each member of the group.
    pub keys: Vec<usize>,
    /// How far away in the group the keys of each exchange are from, and the queries that see some of
    /// them: at distance d, member i has the keys of member i - d, modulo the group. All members have
    /// the same distances in the same order, beginning with 0.
    pub hops: Vec<(usize, Vec<RingPart>)>,
}

/// softmax(scale q k^T) v over keys and values on all members of a group (Liu et al. 2023): each sends
/// its own to one member after the other, and meanwhile computes with those that came before. Results
/// for disjoint sets of keys are merged in the accumulator's dtype (Milakov & Gimelshein 2018), and
/// backward sends gradients of keys and values back. Saves q, k, v, the result and one number per query
/// and head; a checkpoint keeps the last two.
///
/// # Shapes
/// On each member `q` [B, T, H, D], `k` and `v` [B, S, G, D] of one float dtype, H a multiple of G;
/// returns [B, T, H, D]. T and S may differ between members.
///
/// # Errors
/// When an operand has a sharding, or `ring` does not fit the group and the operands; as
/// [`meshgrad_runtime::ops::attention`].
#[track_caller]
pub fn ring_attention<V: Operand>(
    [q, k, v]: [&V; 3],
    ring: &Arc<Ring>,
    scale: f64,
    group: &(impl Communicator + Clone + 'static),
) -> Result<V> {
    let [of_q, of_k, of_v] = [q, k, v].map(|x| part(x, "ring_attention"));
    let (of_q, of_k, of_v) = (of_q?, of_k?, of_v?);
    let call = Call { ring: ring.clone(), scale, group: group.clone() };
    call.check(of_q, of_k)?;
    let own = stacked(of_k, of_v)?;
    let [out, lse] = kept_in_recompute(|| call.forward(of_q, &own))?;
    let saved = [of_q, &own, &out, &lse].map(Save::save);
    tracked_communicating(out, [q, k, v], move |dout, slots| call.backward(&saved, dout, slots))
}

struct Call<G> {
    ring: Arc<Ring>,
    scale: f64,
    group: G,
}

impl<G: Communicator> Call<G> {
    fn check(&self, q: &Tensor, k: &Tensor) -> Result<()> {
        let Ring { keys, hops } = &*self.ring;
        let (size, own) = (self.group.size(), self.group.index());
        ensure!(
            keys.len() == size && keys[own] == k.shape()[1],
            Invalid,
            "ring_attention: {keys:?} keys are not those of {size} members, of which member {own} has {}",
            k.shape()[1]
        );
        let distances: Vec<usize> = hops.iter().map(|(distance, _)| *distance).collect();
        ensure!(
            distances.first() == Some(&0) && distances.iter().all(|distance| *distance < size),
            Invalid,
            "ring_attention: distances {distances:?} in a group of {size}; the first must be 0, and all \
             less than the size"
        );
        let parts = hops.iter().flat_map(|(_, parts)| parts);
        let mut ranges: Vec<&Range<usize>> = parts.map(|part| &part.queries).collect();
        ranges.sort_by_key(|range| (range.start, range.end));
        ranges.dedup();
        let cover = |end, range: &Range<usize>| (range.start == end).then_some(range.end);
        let queries = q.shape()[1];
        ensure!(
            ranges.iter().try_fold(0, |end, range| cover(end, range)) == Some(queries),
            Invalid,
            "ring_attention: hops have the queries {ranges:?} of {queries}; each must be in one range, \
             that sees keys"
        );
        Ok(())
    }

    /// The result and the log-sum-exp of all scores.
    fn forward(&self, q: &Tensor, own: &Tensor) -> Result<[Tensor; 2]> {
        let mut merged: Vec<(Range<usize>, Merged)> = Vec::new();
        let mut keys = own.clone();
        for (hop, (_, parts)) in self.ring.hops.iter().enumerate() {
            let next = self.start_keys(hop + 1, own)?;
            for RingPart { queries, keys: range, mask } in parts {
                let q = q.slice(1, queries.clone())?;
                let [k, v] = unstacked(&keys.slice(1, range.clone())?)?;
                let (out, lse) = ops::attention(&q, &k, &v, mask, self.scale)?;
                let of_queries = merged.iter_mut().find(|(other, _)| other == queries);
                match of_queries {
                    Some((_, merged)) => merged.add(&out, &lse)?,
                    None => merged.push((queries.clone(), Merged::new(&out, lse)?)),
                }
            }
            if let Some(next) = next {
                keys = beside::wait(next)?;
            }
        }
        merged.sort_by_key(|(queries, _)| queries.start);
        let outs: Vec<&Tensor> = merged.iter().map(|(_, merged)| &merged.out).collect();
        let lses: Vec<&Tensor> = merged.iter().map(|(_, merged)| &merged.lse).collect();
        if outs.is_empty() {
            let [k, v] = unstacked(own)?;
            let (out, lse) = ops::attention(q, &k, &v, &AttentionMask::default(), self.scale)?;
            return Ok([out, lse]);
        }
        let (out, lse) = (ops::concat(&outs, 1)?, ops::concat(&lses, 2)?);
        Ok([ops::cast(&out, q.dtype())?, lse])
    }

    fn backward(&self, saved: &[Saved; 4], dout: &Tensor, slots: [Slot<'_>; 3]) -> Result<()> {
        if !slots.iter().any(Slot::due) {
            return Ok(());
        }
        let saved: Result<Vec<Tensor>> = saved.iter().map(Saved::get).collect();
        let [q, own, out, lse] = saved?.try_into().unwrap_or_else(|_| unreachable!());
        let (mut of_queries, mut of_own) = (Pieces::default(), Pieces::default());
        let all = 0..own.shape()[1];
        let mut keys = own.clone();
        let mut sent = None;
        for (hop, (distance, parts)) in self.ring.hops.iter().enumerate() {
            let next = self.start_keys(hop + 1, &own)?;
            let mut of_keys = Pieces::default();
            for RingPart { queries, keys: range, mask } in parts {
                let rows = |x: &Tensor| x.slice(1, queries.clone());
                let (q, out, dout) = (rows(&q)?, rows(&out)?, rows(dout)?);
                let lse = lse.slice(2, queries.clone())?;
                let [k, v] = unstacked(&keys.slice(1, range.clone())?)?;
                let scale = self.scale;
                let (dq, dk, dv) = ops::attention_grad(&q, &k, &v, &out, &lse, &dout, mask, scale)?;
                of_queries.add(queries, &dq)?;
                of_keys.add(range, &stacked(&dk, &dv)?)?;
            }
            // Those of the hop before came while this one computed.
            let of_keys = of_keys.like(&keys)?;
            let of_keys = self.start_gradients(*distance, of_keys, &own)?;
            if let Some(before) = sent.replace(of_keys) {
                of_own.add(&all, &Pending::wait(before)?)?;
            }
            if let Some(next) = next {
                keys = next.wait()?;
            }
        }
        if let Some(last) = sent {
            of_own.add(&all, &last.wait()?)?;
        }
        let [dq, dk, dv] = slots;
        let [of_k, of_v] = unstacked(&of_own.like(&own)?)?;
        dq.add(|| of_queries.like(&q))?;
        dk.add(|| Ok(of_k))?;
        dv.add(|| Ok(of_v))
    }

    /// Starts the exchange of keys and values of hop `hop`, if there is one.
    fn start_keys(&self, hop: usize, own: &Tensor) -> Result<Option<Pending<Tensor>>> {
        let Some((distance, _)) = self.ring.hops.get(hop) else {
            return Ok(None);
        };
        let [before, after] = self.at(*distance);
        let shape = own.shape().with(1, self.ring.keys[before]);
        Ok(Some(exchange(own, [after, before], &shape, &self.group)?))
    }

    /// Starts to send `of_keys` to the member that has these keys, and to receive those of `own`.
    fn start_gradients(
        &self,
        distance: usize,
        of_keys: Tensor,
        own: &Tensor,
    ) -> Result<Pending<Tensor>> {
        if distance == 0 {
            return Ok(Pending::by_host(move || Ok(of_keys)));
        }
        let [before, after] = self.at(distance);
        exchange(&of_keys, [before, after], own.shape(), &self.group)
    }

    /// The members so far before and after this one.
    fn at(&self, distance: usize) -> [usize; 2] {
        let (size, own) = (self.group.size(), self.group.index());
        [(own + size - distance) % size, (own + distance) % size]
    }
}

/// A result for some keys, to which those for others are added.
struct Merged {
    /// [B, T, H, D] in the accumulator's dtype.
    out: Tensor,
    /// [B, H, T].
    lse: Tensor,
}

impl Merged {
    fn new(out: &Tensor, lse: Tensor) -> Result<Merged> {
        Ok(Merged { out: ops::cast(out, lse.dtype())?, lse })
    }

    /// Adds the result for further keys. The weight of each result is its part of the sum of
    /// exponentials: e^(lse - largest) over the sum of both. Without keys, lse is minus infinity.
    fn add(&mut self, out: &Tensor, lse: &Tensor) -> Result<()> {
        let largest = ops::maximum(&self.lse, lse)?;
        let zero = largest.zeros_beside(&[])?;
        let infinity = ops::reciprocal(&zero)?;
        let is_some = ops::lt(&ops::abs(&largest)?, &infinity)?;
        let base = ops::where_(&is_some, &largest, &zero)?;
        let [own, other] = [&self.lse, lse].map(|lse| ops::exp(&ops::sub(lse, &base)?));
        let (own, other) = (own?, other?);
        let sum = ops::add(&own, &other)?;
        self.lse = ops::add(&base, &ops::ln(&sum)?)?;
        let some = ops::where_(&is_some, &sum, &ops::affine(&zero, 0.0, 1.0)?)?;
        let weighted = |out: &Tensor, part: &Tensor| {
            let weight = ops::div(part, &some)?.transpose(1, 2)?.unsqueeze(3)?;
            ops::mul(&ops::cast(out, weight.dtype())?, &weight)
        };
        self.out = ops::add(&weighted(&self.out, &own)?, &weighted(out, &other)?)?;
        Ok(())
    }
}

/// Sums for ranges of dim 1, in the accumulator's dtype. Ranges are equal or do not overlap.
#[derive(Default)]
struct Pieces(Vec<(Range<usize>, Tensor)>);

impl Pieces {
    fn add(&mut self, range: &Range<usize>, x: &Tensor) -> Result<()> {
        let x = ops::cast(x, x.dtype().accumulator())?;
        match self.0.iter_mut().find(|(other, _)| other == range) {
            Some((_, sum)) => *sum = ops::add(sum, &x)?,
            None => self.0.push((range.clone(), x)),
        }
        Ok(())
    }

    /// The sums as a tensor of the shape and dtype of `x`: zero elsewhere.
    fn like(mut self, x: &Tensor) -> Result<Tensor> {
        self.0.sort_by_key(|(range, _)| range.start);
        let (mut parts, mut end) = (Vec::new(), 0);
        let zeros = |range: Range<usize>| {
            let shape = x.shape().with(1, range.len());
            Tensor::zeros(x.device(), &shape, x.dtype().accumulator(), Kind::Value)
        };
        for (range, sum) in self.0 {
            if range.start > end {
                parts.push(zeros(end..range.start)?);
            }
            end = range.end;
            parts.push(sum);
        }
        let extent = x.shape()[1];
        if end < extent {
            parts.push(zeros(end..extent)?);
        }
        let whole = ops::concat(&parts.iter().collect::<Vec<_>>(), 1)?;
        ops::cast(&whole, x.dtype())
    }
}

/// `k` and `v`, one after the other along dim 0, to be sent together.
fn stacked(k: &Tensor, v: &Tensor) -> Result<Tensor> {
    ops::concat(&[k, v], 0)
}

fn unstacked(x: &Tensor) -> Result<[Tensor; 2]> {
    let (all, half) = (x.shape()[0], x.shape()[0] / 2);
    Ok([x.slice(0, 0..half)?, x.slice(0, half..all)?])
}

#[cfg(test)]
mod tests {
    use meshgrad_runtime::{DType, Device};

    use super::*;

    /// Merged results for disjoint sets of keys are the result for all of them. Results that are added
    /// without rescaling are not.
    #[test]
    fn merged_results_are_that_of_all_keys() {
        let device = Device::cpu();
        let draw = |salt: usize, heads: usize| {
            let value = |at: usize| ((at * 7 + salt * 31) as f64 * 0.37).sin() * 2.0;
            let values: Vec<f64> = (0..2 * 6 * heads * 3).map(value).collect();
            Tensor::from_slice(&device, &[2, 6, heads, 3], &values).unwrap()
        };
        let (q, k, v) = (draw(0, 4), draw(1, 2), draw(2, 2));
        let over = |keys: Range<usize>| {
            let [k, v] = [&k, &v].map(|x| x.slice(1, keys.clone()).unwrap());
            ops::attention(&q, &k, &v, &AttentionMask::default(), 0.7).unwrap()
        };
        let difference = |a: &Tensor, b: &Tensor| {
            let [a, b] = [a, b].map(|x| x.to_vec::<f64>().unwrap());
            a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
        };
        let (out, lse) = over(0..6);
        let (first, of_first) = over(0..1);
        let mut merged = Merged::new(&first, of_first).unwrap();
        let mut added = first;
        for keys in [1..4, 4..6, 6..6] {
            let (out, lse) = over(keys);
            merged.add(&out, &lse).unwrap();
            added = ops::add(&added, &out).unwrap();
        }
        assert_eq!(merged.out.dtype(), DType::F64);
        assert!(difference(&merged.out, &out) < 1e-14);
        assert!(difference(&merged.lse, &lse) < 1e-14);
        assert!(difference(&added, &out) > 0.1);
    }
}
