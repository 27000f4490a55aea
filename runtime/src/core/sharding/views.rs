//! The shardings of views.

use meshgrad_error::{bail, ensure};
use meshgrad_mesh::{Placement, Sharding, ShardingRule};

use super::gate::Gate;
use super::tag::Tag;
use crate::Result;

static PERMUTE: &str = "permute";
static SLICE: &str = "slice";
static UNSQUEEZE: &str = "unsqueeze";
static RESHAPE: &str = "reshape";
static BROADCAST: &str = "broadcast_to";
static BROADCAST_LIKE: &str = "broadcast_like";

/// The ranks of a mesh that an error lists.
const FEW_RANKS: usize = 8;

/// The tag of a tensor with its dims in another order.
pub(crate) fn permuted(x: &Tag, order: &[usize]) -> Result<Tag> {
    let rule = || ShardingRule::permute(PERMUTE, order);
    tag(&PERMUTE, x, order, rule)
}

/// The tag of a tensor with dims `a` and `b` swapped.
pub(crate) fn transposed(x: &Tag, a: usize, b: usize) -> Result<Tag> {
    let mut order: Vec<usize> = (0..x.local().len()).collect();
    order.swap(a, b);
    permuted(x, &order)
}

/// The tag of a slice of `extent` indices of dim `dim`, which must not be sharded.
pub(crate) fn sliced(x: &Tag, dim: usize, extent: usize) -> Result<Tag> {
    let rule = || ShardingRule::slice(SLICE, x.local().len(), dim, extent);
    tag(&SLICE, x, &[dim, extent], rule)
}

/// The tag of a tensor with a new dim of extent 1 before dim `dim`.
pub(crate) fn unsqueezed(x: &Tag, dim: usize) -> Result<Tag> {
    let rule = || ShardingRule::unsqueeze(UNSQUEEZE, x.local().len(), dim);
    tag(&UNSQUEEZE, x, &[dim], rule)
}

/// The tag of a tensor reshaped to the global shape `to`.
pub(crate) fn reshaped(x: &Tag, to: &[usize]) -> Result<Tag> {
    let from = x.sharding().shape();
    let elements = |shape: &[usize]| {
        let mut extents = shape.iter().map(|extent| *extent as u128);
        extents.try_fold(1u128, u128::checked_mul)
    };
    ensure!(
        elements(from) == elements(to),
        Invalid,
        "reshape: {to:?} does not have as many elements as the global shape {from:?} ({}); pass a \
         global shape, with extents from Tensor::global_extent",
        x.sharding()
    );
    let rule = || ShardingRule::reshape(RESHAPE, from, to);
    tag(&RESHAPE, x, to, rule)
}

/// The tag of a tensor broadcast to the global shape `to`.
pub(crate) fn broadcast(x: &Tag, to: &[usize]) -> Result<Tag> {
    let rule = || ShardingRule::broadcast(BROADCAST, x.sharding().shape(), to);
    tag(&BROADCAST, x, to, rule)
}

/// The tag of a tensor broadcast to the global shape of `like` and sharded like it, in which dims
/// `repeated` are repeated.
pub(super) fn broadcast_like(x: &Tag, like: &Tag, repeated: &[usize]) -> Result<Tag> {
    let gate = Gate {
        op: BROADCAST_LIKE,
        id: std::ptr::from_ref(&BROADCAST_LIKE) as usize,
        operands: &[Some(x), Some(like)],
        name: &|at| ["x", "like"][at].to_owned(),
        last_is_open: false,
        arguments: repeated,
    };
    let (from, to) = (x.sharding().shape(), like.sharding().shape());
    let rule = || ShardingRule::broadcast_like(BROADCAST_LIKE, from, to, repeated);
    let results = gate.results(&rule)?;
    results.map_or_else(|| Ok(x.clone()), |results| results.of_shape(0, like.local()))
}

/// The tag of `count` tensors like `x` concatenated along dim `dim`: shards of the dim are in
/// blocks.
pub(crate) fn in_blocks(x: &Tag, dim: usize, count: usize) -> Result<Tag> {
    let shape = x.sharding().shape();
    let (before, after) = (&shape[..dim], &shape[dim + 1..]);
    let stacked = [before, &[count], &shape[dim..]].concat();
    let merged = [before, &[count * shape[dim]], after].concat();
    reshaped(&broadcast(&unsqueezed(x, dim)?, &stacked)?, &merged)
}

/// The tag of `table`, repeated for each index of the first dim of `x` and sharded like that dim.
pub(crate) fn repeated_for(x: &Tag, table: &Tag) -> Result<Tag> {
    let (of_x, of_table) = (x.sharding(), table.sharding());
    if x.rank() != table.rank() || of_x.mesh() != of_table.mesh() {
        let of = |tag: &Tag| {
            let mesh = tag.sharding().mesh();
            let ranks: Vec<usize> = mesh.ranks().into_iter().take(FEW_RANKS).collect();
            format!("rank {} on the mesh {mesh} (first ranks {ranks:?})", tag.rank())
        };
        let (x, table) = (of(x), of(table));
        bail!(Invalid, "rope: `x` belongs to {x}, but the table to {table}");
    }
    let batches = of_x.placements().into_iter();
    let batches = batches.filter(|(_, placement)| placement.dim() == Some(0));
    let own = of_table.placements().into_iter().filter_map(|(axis, placement)| match placement {
        Placement::Shard(dim, division) => Some((axis, Placement::Shard(dim + 1, division))),
        Placement::Replicate => None,
        partial => Some((axis, partial)),
    });
    let placements: Vec<_> = batches.chain(own).collect();
    let shape = [&of_x.shape()[..1], of_table.shape()].concat();
    let sharding = Sharding::new(of_x.mesh(), placements, &shape);
    Tag::new(sharding?, x.rank())
}

fn tag(
    op: &'static &'static str,
    x: &Tag,
    arguments: &[usize],
    rule: impl Fn() -> Result<ShardingRule>,
) -> Result<Tag> {
    let gate = Gate {
        op,
        id: std::ptr::from_ref(op) as usize,
        operands: &[Some(x)],
        name: &|_| "x".to_owned(),
        last_is_open: false,
        arguments,
    };
    let results = gate.results(&rule)?;
    // The operand has a sharding, so the result has one.
    results.map_or_else(|| Ok(x.clone()), |results| results.of_shape(0, x.local()))
}
