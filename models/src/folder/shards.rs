//! Sharded tensors: the region of a rank.

use std::collections::BTreeMap;

use meshgrad_ckpt::mapping::Mapping;
use meshgrad_ckpt::ranks::{Shard, ShardedSnapshot};
use meshgrad_mesh::Region;
use meshgrad_runtime::Tensor;

use super::error::{Error, Result};
use super::memory::{NamedTensor, bytes, spec};

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
    let by_name: BTreeMap<&str, &Tensor> = tensors.iter().map(|(name, it)| (&**name, it)).collect();
    snapshot.add_model(folder, mapping, shards, move |name| {
        Ok(bytes(by_name[name])?)
    });
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

/// The position of this rank among those that load the tensors together, and their number.
pub(super) fn position(tensors: &[NamedTensor]) -> (usize, usize) {
    let position = tensors.iter().find_map(|(_, tensor)| {
        let mesh = tensor.sharding()?.mesh();
        let rank = tensor.sharded_shape().rank()?;
        Some((
            mesh.ranks().into_iter().position(|it| it == rank)?,
            mesh.len(),
        ))
    });
    position.unwrap_or((0, 1))
}
