//! Strict mode: ranks that have the same part of a tensor must have the same values.

use meshgrad_mesh::{Placement, Sharding};
use meshgrad_runtime::{Error, Result, ShardedTensorError, Tensor};
use twox_hash::XxHash3_64;

use super::member::Member;
use crate::by_dtype::by_dtype;
use crate::collectives::Collectives;

/// Compares a digest of this rank's part with those of the ranks that have the same part.
pub(super) fn compare(member: &Member, name: &str, x: &Tensor, sharding: &Sharding) -> Result<()> {
    let mesh = sharding.mesh();
    let replicates = |(axis, at): (_, Placement)| (at == Placement::Replicate).then_some(axis);
    let axes: Vec<&str> = sharding
        .placements()
        .into_iter()
        .filter_map(replicates)
        .collect();
    let group = mesh.group(&axes, member.rank).map_err(Error::other)?;
    let Some(group) = group.filter(|group| group.ranks().len() > 1) else {
        return Ok(());
    };

    let digest = Tensor::from_slice(x.device(), &[1], &[digest(&x.local())?])?;
    let digests = member
        .communicator(&group)?
        .all_gather(&digest)?
        .wait()?
        .local();
    let digests = digests.to_vec::<i64>()?;
    let differs = |(rank, digest): (&usize, i64)| (digest != digests[0]).then_some(*rank);
    let ranks: Vec<usize> = group
        .ranks()
        .iter()
        .zip(digests.iter().copied())
        .filter_map(differs)
        .collect();
    match ranks.is_empty() {
        true => Ok(()),
        false => Err(ShardedTensorError::Replicas {
            name: name.to_owned(),
            tensor: x.to_string(),
            first: group.ranks()[0],
            ranks,
        }
        .into()),
    }
}

/// A hash of the elements' bytes.
fn digest(x: &Tensor) -> Result<i64> {
    by_dtype!(x.dtype(), T => {
        let elements = x.to_vec::<T>()?;
        Ok(XxHash3_64::oneshot(bytemuck::cast_slice(&elements)) as i64)
    })
}
