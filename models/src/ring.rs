//! Attention over ranks of which each has the keys of its own tokens.

use std::ops::Range;
use std::sync::Arc;

use meshgrad_autograd::ops::{self, Ring, RingPart};
use meshgrad_autograd::{LocalOperand, LocalResult, Result, Var, local};
use meshgrad_collectives::communicator;
use meshgrad_mesh::{IndexSet, Placement, Sharding};
use meshgrad_runtime::ops::AttentionMask;

/// softmax(scale q k^T) v under a causal mask, for operands [b, t, heads, c] with equal shards along t.
///
/// # Errors
/// As [`ops::ring_attention`].
pub(crate) fn ring_attention(
    [q, k, v]: [&Var; 3],
    tokens: &Sharding,
    window: Option<usize>,
    scale: f64,
) -> Result<Var> {
    let (mesh, axes) = (tokens.mesh(), tokens.axes_of_dim(1));
    let group = communicator(mesh, axes)?;
    let region = |rank: &usize| tokens.region(*rank).map(|region| region.dims()[1].clone());
    let members: Vec<IndexSet> = group.group().ranks().iter().filter_map(region).collect();
    let ring = Arc::new(Ring {
        keys: members.iter().map(IndexSet::len).collect(),
        hops: hops(&members, group.index(), window),
    });

    let operands = [q, k, v].map(|x| LocalOperand::new(x, mesh, placements(x)));
    let shape = q.global_shape();
    let result = LocalResult::new(mesh, placements(q), &shape);
    let [out] = local(operands, [result], |[q, k, v]| {
        Ok([ops::ring_attention([&q, &k, &v], &ring, scale, &group)?])
    })?;
    Ok(out)
}

fn placements(x: &Var) -> Vec<(&str, Placement)> {
    x.value().sharding().map(Sharding::placements).unwrap_or_default()
}

/// What member `own` computes of its queries, when `members` have these tokens. Distances at which no
/// member sees a key are left out.
fn hops(members: &[IndexSet], own: usize, window: Option<usize>) -> Vec<(usize, Vec<RingPart>)> {
    let count = members.len();
    let of_member = |member: usize, distance: usize| {
        parts(&members[member], &members[(member + count - distance) % count], window)
    };
    let is_needed = |distance: &usize| {
        *distance == 0 || (0..count).any(|it| !of_member(it, *distance).is_empty())
    };
    let needed = (0..count).filter(is_needed);
    needed.map(|distance| (distance, of_member(own, distance))).collect()
}

/// The pairs of a range of queries and a range of keys that it sees.
fn parts(queries: &IndexSet, keys: &IndexSet, window: Option<usize>) -> Vec<RingPart> {
    let mut parts = Vec::new();
    for (of_queries, queries) in with_own(queries) {
        for (of_keys, keys) in with_own(keys) {
            if let Some(mask) = mask(&queries, &keys, window) {
                parts.push(RingPart { queries: of_queries.clone(), keys: of_keys, mask });
            }
        }
    }
    parts
}

/// Each range of a set, after the places where a rank has it.
fn with_own(set: &IndexSet) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let mut end = 0;
    set.ranges().iter().filter(|range| !range.is_empty()).map(move |range| {
        end += range.len();
        (end - range.len()..end, range.clone())
    })
}

/// Which of `keys` the queries see; `None` for none. Ranges are equal or do not overlap.
fn mask(
    queries: &Range<usize>,
    keys: &Range<usize>,
    window: Option<usize>,
) -> Option<AttentionMask> {
    let window_of = |query: usize| window.map_or(0, |window| (query + 1).saturating_sub(window));
    match () {
        () if queries == keys => Some(AttentionMask { window, ..AttentionMask::causal() }),
        () if keys.start > queries.start || keys.end <= window_of(queries.start) => None,
        () => Some(AttentionMask::default()),
    }
}
