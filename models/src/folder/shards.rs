//! Sharded tensors: the region that a rank reads, and ranks that save together.

use std::path::Path;

use meshgrad_autograd::Module;
use meshgrad_ckpt::mapping::Mapping;
use meshgrad_ckpt::ranks::{Ranks, Saved, Shard, ShardedSnapshot};
use meshgrad_mesh::Region;

use super::error::{Error, Result};
use super::memory::{LocalMemory, NamedTensor, spec};
use super::{buffers, by_name, params};

/// Saves the parameters and buffers of `module`, of which each rank has shards, to the new folder
/// `dir`. All ranks must call this; together they write the files that [`save`](super::save) writes
/// for the whole module. A region that several ranks have is written by one of them. A rank
/// holds no tensor of which it only has a part.
///
/// # Errors
/// [`Error::Checkpoint`] with a [`RanksError`](meshgrad_ckpt::ranks::RanksError), on all ranks, when
/// a rank fails, or no rank has some elements of a tensor. The folder then does not exist.
pub fn save_sharded(module: &impl Module, dir: &Path, ranks: &mut dyn Ranks) -> Result<Saved> {
    let values = params(module).and_then(|params| Ok([params, buffers(module)?].concat()));
    let snapshot = match &values {
        Ok(values) => of_shards(values, dir),
        Err(error) => return Ok(ShardedSnapshot::save(Err(error), ranks)?),
    };
    Ok(ShardedSnapshot::save(snapshot, ranks)?)
}

fn of_shards<'t>(values: &'t [NamedTensor], dir: &Path) -> Result<ShardedSnapshot<'t>> {
    let parent = dir.parent().unwrap_or(Path::new(""));
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let mut snapshot = ShardedSnapshot::new(parent, &name);
    add_shards(values, by_name()?, &mut snapshot, "")?;
    Ok(snapshot)
}

/// Adds this rank's shards of `tensors` to a snapshot, as the safetensors files of its folder
/// `folder` (empty for its root). A tensor without a sharding is whole, and equal on all ranks that
/// have it. The tensors are read when the snapshot is saved.
///
/// # Errors
/// [`Error::Partial`], [`Error::Load`]. Pass the error to
/// [`ShardedSnapshot::save`], so that the other ranks do not wait for this one.
pub fn add_shards<'t>(
    tensors: &'t [NamedTensor],
    mapping: Mapping,
    snapshot: &mut ShardedSnapshot<'t>,
    folder: &str,
) -> Result<()> {
    let shard = |named: &NamedTensor| {
        Ok(match region(named)? {
            Some(region) => Shard::new(spec(named)?, &region),
            None => Shard::whole(spec(named)?),
        })
    };
    let shards = tensors.iter().map(shard).collect::<Result<Vec<Shard>>>()?;
    snapshot.add_model(folder, mapping, shards, LocalMemory::new(tensors));
    Ok(())
}

/// The region that this rank has; `None` without a sharding.
///
/// # Errors
/// [`Error::Partial`].
pub(super) fn region((name, tensor): &NamedTensor) -> Result<Option<Region>> {
    let shape = tensor.sharded_shape();
    let (Some(sharding), Some(rank)) = (tensor.sharding(), shape.rank()) else {
        return Ok(None);
    };
    if !sharding.partials().is_empty() {
        return Err(Error::Partial {
            tensor: name.clone(),
            sharding: sharding.to_string(),
        });
    }
    Ok(sharding.region(rank))
}

/// Checks that this rank has the whole tensor.
///
/// # Errors
/// [`Error::Partial`], [`Error::Part`].
pub(super) fn expect_whole(named: &NamedTensor) -> Result<()> {
    region(named)?;
    let (name, tensor) = named;
    match tensor.sharding() {
        Some(sharding) if !sharding.is_replicated() => Err(Error::Part {
            tensor: name.clone(),
            sharding: sharding.to_string(),
        }),
        _ => Ok(()),
    }
}
