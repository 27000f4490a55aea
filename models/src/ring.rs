//! Attention over ranks of which each has the keys of its own tokens.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use meshgrad_autograd::ops::{self, Ring, RingPart};
use meshgrad_autograd::{LocalOperand, LocalResult, Result, Var, local};
use meshgrad_collectives::{communicator, redistribute};
use meshgrad_mesh::{IndexSet, Placement, Sharding};
use meshgrad_runtime::ops::{AttentionMask, AttentionSequences};
use meshgrad_runtime::{DType, Tensor};

/// The rings of a forward pass, one for each window of its layers. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Rings(Arc<Mutex<HashMap<Option<usize>, Arc<Ring>>>>);

/// The tokens of a ring, and which keys they see.
pub(crate) struct Seen<'a> {
    /// Of keys, [b, t, ..].
    pub(crate) tokens: &'a Sharding,
    /// The document and the position of each token, as [`ops::visible_keys`] reads them: [b, t] with all
    /// tokens of the rows that a rank has. `None` for one document per row.
    pub(crate) words: Option<&'a Tensor>,
    pub(crate) window: Option<usize>,
}

impl Rings {
    /// softmax(scale q k^T) v under a causal mask, for operands [b, t, heads, c] with equal shards along
    /// t.
    ///
    /// # Errors
    /// As [`ops::ring_attention`].
    pub(crate) fn attention(
        &self,
        operands: [&Var; 3],
        seen: &Seen<'_>,
        scale: f64,
    ) -> Result<Var> {
        let mesh = seen.tokens.mesh();
        let group = communicator(mesh, seen.tokens.axes_of_dim(1))?;
        let ring = self.ring(operands[0].value(), seen, (group.group().ranks(), group.index()))?;

        let shape = operands[0].global_shape();
        let result = LocalResult::new(mesh, placements(operands[0]), &shape);
        let operands = operands.map(|x| LocalOperand::new(x, mesh, placements(x)));
        let [out] = local(operands, [result], |[q, k, v]| {
            Ok([ops::ring_attention([&q, &k, &v], &ring, scale, &group)?])
        })?;
        Ok(out)
    }

    /// The ring of the member at index `own` of `ranks`.
    fn ring(
        &self,
        q: &Tensor,
        seen: &Seen<'_>,
        (ranks, own): (&[usize], usize),
    ) -> Result<Arc<Ring>> {
        let mut rings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ring) = rings.get(&seen.window) {
            return Ok(ring.clone());
        }
        let region =
            |rank: &usize| seen.tokens.region(*rank).map(|region| region.dims()[1].clone());
        let members: Vec<IndexSet> = ranks.iter().filter_map(region).collect();
        let words = seen.words_of(q)?;
        let hops = seen.hops(words.as_ref(), &members, own)?;
        let ring = Arc::new(Ring { keys: members.iter().map(IndexSet::len).collect(), hops });
        rings.insert(seen.window, ring.clone());
        Ok(ring)
    }
}

impl Seen<'_> {
    /// The words of all tokens of this rank's rows, if places in a row do not say alone what they see.
    fn words_of(&self, q: &Tensor) -> Result<Option<Tensor>> {
        if self.words.is_some() || self.window.is_none() {
            return Ok(self.words.map(Tensor::local));
        }
        let [rows, tokens, ..] = self.tokens.shape()[..] else {
            unreachable!("keys have four dims")
        };
        let places = ops::arange(q.device(), tokens, DType::I64)?.unsqueeze(0)?;
        let places = places.broadcast_to(&[rows, tokens])?;
        let mut of_rows = self.tokens.placements();
        of_rows.retain(|(_, placement)| placement.dim() == Some(0));
        Ok(Some(redistribute(&places, of_rows)?.local()))
    }

    /// Which of a range of keys a range of queries sees.
    fn mask(
        &self,
        words: Option<&Tensor>,
        queries: &Range<usize>,
        keys: &Range<usize>,
    ) -> Result<AttentionMask> {
        let hides = self.words.is_some() || keys.start < self.first_key(queries.end - 1);
        let Some(words) = words.filter(|_| hides) else {
            return Ok(AttentionMask { causal: queries == keys, ..AttentionMask::default() });
        };
        let of = |range: &Range<usize>| words.slice(1, range.clone());
        let ranges = ops::visible_keys(&of(queries)?, &of(keys)?, self.window)?;
        let sequences = AttentionSequences::Ranges(ranges);
        Ok(AttentionMask { sequences, ..AttentionMask::default() })
    }

    /// The first key that the query at this place sees, in a row of one document.
    fn first_key(&self, query: usize) -> usize {
        self.window.map_or(0, |window| (query + 1).saturating_sub(window))
    }

    /// Whether a range of queries may see a range of keys, which is equal or does not overlap. Of a row
    /// in documents, only the order of places is known.
    fn may_see(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        let is_near = self.words.is_some() || keys.end > self.first_key(queries.start);
        keys.start <= queries.start && is_near
    }

    /// The pairs of a range of queries and a range of keys of which they see some.
    fn parts(
        &self,
        words: Option<&Tensor>,
        queries: &IndexSet,
        keys: &IndexSet,
    ) -> Result<Vec<RingPart>> {
        let mut parts = Vec::new();
        for (of_queries, queries) in with_own(queries) {
            for (of_keys, keys) in with_own(keys).filter(|(_, keys)| self.may_see(&queries, keys)) {
                let mask = self.mask(words, &queries, &keys)?;
                parts.push(RingPart { queries: of_queries.clone(), keys: of_keys, mask });
            }
        }
        Ok(parts)
    }

    /// What member `own` computes of its queries. Distances at which no member sees a key are left out.
    fn hops(
        &self,
        words: Option<&Tensor>,
        members: &[IndexSet],
        own: usize,
    ) -> Result<Vec<(usize, Vec<RingPart>)>> {
        let count = members.len();
        let keys = |member: usize, distance: usize| &members[(member + count - distance) % count];
        let mut hops = Vec::new();
        for distance in 0..count {
            let may_see = |member: usize| {
                let mut queries = members[member].ranges().iter();
                let keys = keys(member, distance).ranges();
                queries.any(|queries| keys.iter().any(|keys| self.may_see(queries, keys)))
            };
            if distance == 0 || (0..count).any(may_see) {
                hops.push((distance, self.parts(words, &members[own], keys(own, distance))?));
            }
        }
        Ok(hops)
    }
}

fn placements(x: &Var) -> Vec<(&str, Placement)> {
    x.value().sharding().map(Sharding::placements).unwrap_or_default()
}

/// Each range of a set, after the places where a rank has it.
fn with_own(set: &IndexSet) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let mut end = 0;
    set.ranges().iter().filter(|range| !range.is_empty()).map(move |range| {
        end += range.len();
        (end - range.len()..end, range.clone())
    })
}
