//! Sharded tensors: the region of a rank, and the rows of it that it keeps.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use meshgrad_ckpt::graph::{Expr, Graph};
use meshgrad_ckpt::mapping::Mapping;
use meshgrad_ckpt::ranks::{Shard, ShardedSnapshot};
use meshgrad_error::{Result, bail};
use meshgrad_mesh::Region;
use meshgrad_runtime::Tensor;

use super::memory::{NamedTensor, bytes, check_names, spec};

/// Adds this rank's shards of `tensors` to a snapshot, as the safetensors files of its folder
/// `folder` (empty for its root). A tensor without a sharding is whole, and equal on all ranks that
/// have it. The tensors are read when the snapshot is saved.
///
/// # Errors
/// When a tensor has partial values or a dtype that is not stored. Pass the error to
/// [`ShardedSnapshot::save`], so that the other ranks do not wait for this one.
pub fn add_shards<'t>(
    tensors: &'t [NamedTensor],
    mapping: Mapping,
    snapshot: &mut ShardedSnapshot<'t>,
    folder: &str,
) -> Result<()> {
    let shards = shards(tensors)?;
    let by_name = by_name(tensors);
    snapshot.add_model(folder, mapping, shards, move |name| Ok(bytes(by_name[name])?));
    Ok(())
}

/// As [`add_shards`], but with a copy of the tensors in host memory, so that the snapshot can be saved
/// while they change.
///
/// # Errors
/// As [`add_shards`].
pub fn add_shard_copies(
    tensors: &[NamedTensor],
    mapping: Mapping,
    snapshot: &mut ShardedSnapshot<'static>,
    folder: &str,
) -> Result<()> {
    let shards = shards(tensors)?;
    let copy = |named: &NamedTensor| {
        let copied = bytes(&named.tensor)?.as_ref().as_ref().to_vec();
        Ok((named.name.clone(), copied))
    };
    let copies = tensors.iter().map(copy).collect::<Result<BTreeMap<_, _>>>()?;
    let copies = Mutex::new(copies);
    snapshot.add_model(folder, mapping, shards, move |name| {
        // Each is read once, and freed after its last use.
        let mut copies = copies.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = copies.remove(name).ok_or("its copy has been written already")?;
        Ok(Box::new(copy))
    });
    Ok(())
}

fn shards(tensors: &[NamedTensor]) -> Result<Vec<Shard>> {
    check_names(tensors)?;
    let shard = |named: &NamedTensor| {
        let shard = match region(named)? {
            Some(region) => Shard::new(spec(named)?, &region),
            None => Shard::whole(spec(named)?),
        };
        Ok(shard.of_rows(named.kept.rows()))
    };
    tensors.iter().map(shard).collect()
}

fn by_name(tensors: &[NamedTensor]) -> BTreeMap<&str, &Tensor> {
    let named = tensors.iter();
    named.map(|it| (it.name.as_str(), &it.tensor)).collect()
}

/// The region that this rank has before its rows are divided; `None` without a sharding.
///
/// # Errors
/// When the tensor has partial values.
pub(super) fn region(named: &NamedTensor) -> Result<Option<Region>> {
    let partial = named.tensor.sharding();
    if let Some(sharding) = partial.filter(|it| !it.partials().is_empty()) {
        let name = named.name.escape_debug();
        bail!(Invalid, "`{name}` has partial values ({sharding}); redistribute it first");
    }
    let shape = named.kept.shape();
    let position = shape.sharding().zip(shape.rank());
    Ok(position.and_then(|(sharding, rank)| sharding.region(rank)))
}

/// What a rank loads of the tensor `whole`: the shape and the elements of its tensor.
pub(super) fn part(named: &NamedTensor, whole: Expr, graph: &mut Graph) -> Result<Expr> {
    let add = |graph: &mut Graph, region: Option<Region>| {
        let part = match region {
            Some(region) => graph.region(whole, &region)?,
            None => whole,
        };
        match named.tensor.shape() == named.kept.shape().local() {
            true => Ok(part),
            false => rows(part, &named.kept.rows(), graph),
        }
    };
    let region = region(named)?;
    add(graph, region)
        .map_err(|error| error.context(format_args!("target `{}`", named.name.escape_debug())))
}

/// Some rows of `of`, as [rows, elements of a row].
fn rows(mut of: Expr, rows: &Range<usize>, graph: &mut Graph) -> Result<Expr> {
    while graph.shape(of).len() < 2 {
        of = graph.unsqueeze(of, 0)?;
    }
    while graph.shape(of).len() > 2 {
        of = graph.flatten(of, 0)?;
    }
    graph.slice(of, 0, (rows.start as u64, rows.len() as u64, 1))
}

/// Checks that this rank has the whole tensor.
///
/// # Errors
/// When it has partial values, or only a part of the tensor.
pub(super) fn expect_whole(named: &NamedTensor) -> Result<()> {
    region(named)?;
    let sharding = named.kept.shape().sharding().filter(|it| !it.is_replicated());
    let part = match sharding {
        Some(sharding) => sharding.to_string(),
        None if named.kept.are_all() => return Ok(()),
        None => named.kept.to_string(),
    };
    bail!(
        Invalid,
        "this rank has only a part of `{}` ({part}); save it together with the other ranks \
         (folder::save_sharded, folder::add_shards)",
        named.name.escape_debug()
    )
}

/// The position of this rank among those that load the tensors together, and their number.
pub(super) fn position(tensors: &[NamedTensor]) -> (usize, usize) {
    let position = tensors.iter().find_map(|named| {
        let shape = named.kept.shape();
        let (mesh, rank) = (shape.sharding()?.mesh(), shape.rank()?);
        let position = mesh.ranks().into_iter().position(|it| it == rank)?;
        Some((position, mesh.len()))
    });
    position.unwrap_or((0, 1))
}
