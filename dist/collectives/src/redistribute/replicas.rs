//! Strict mode: ranks that have the same part of a tensor must have the same values.

use meshgrad_error::{bail, ensure};
use meshgrad_mesh::{Placement, Sharding};
use meshgrad_runtime::{Result, Tensor};
use twox_hash::XxHash3_64;

use super::member::Member;
use crate::collectives::Collectives;
use crate::communicator::Communicator;

/// Compares digests of the tensor's description and of this rank's part with those of the ranks that
/// have the same part.
pub(super) fn compare(member: &Member, name: &str, x: &Tensor, sharding: &Sharding) -> Result<()> {
    let mesh = sharding.mesh();
    let replicates = |(axis, at): (_, Placement)| (at == Placement::Replicate).then_some(axis);
    let axes: Vec<&str> = sharding.placements().into_iter().filter_map(replicates).collect();
    let group = mesh.group(&axes, member.rank)?;
    let Some(group) = group.filter(|group| group.ranks().len() > 1) else {
        return Ok(());
    };

    let communicator = member.communicator(&group)?;
    let described = format!("{name}, {}{} ({sharding})", x.dtype(), x.global_shape());
    let words = [hash(described.as_bytes()), digest(x)?, described.len() as i64];
    let words = Tensor::from_slice(x.device(), &[3], &words)?;
    let words = communicator.all_gather(&words)?.wait()?.local();
    if !words.device().computes() {
        return Ok(());
    }
    let words = words.to_vec::<i64>()?;
    let of_members: Vec<&[i64]> = words.chunks(3).collect();
    let first = group.ranks()[0];
    if let Some(other) = of_members.iter().position(|it| it[0] != of_members[0][0]) {
        let lengths: Vec<usize> = of_members.iter().map(|it| it[2] as usize).collect();
        let all = exchanged(&*communicator, x, &described, &lengths)?;
        bail!(
            Mismatch,
            "rank {first} compares {}, but rank {} compares {}; in strict mode, all ranks must run \
             the same backward passes with the same parameters in the same order",
            all[0],
            group.ranks()[other],
            all[other]
        );
    }

    let of_ranks = group.ranks().iter().zip(&of_members);
    let others = of_ranks.filter(|(_, it)| it[1] != of_members[0][1]);
    let ranks: Vec<usize> = others.map(|(rank, _)| *rank).collect();
    ensure!(
        ranks.is_empty(),
        Mismatch,
        "{name} is {x}, but ranks {ranks:?} have other values than rank {first}; before it, a \
         redistribution is missing, or the ranks computed different values"
    );
    Ok(())
}

/// A hash of the elements' bytes; 0 on a meta device.
fn digest(x: &Tensor) -> Result<i64> {
    if !x.device().computes() {
        return Ok(0);
    }
    Ok(hash(&x.local().to_bytes()?))
}

fn hash(bytes: &[u8]) -> i64 {
    XxHash3_64::oneshot(bytes) as i64
}

/// The texts of all members, of `lengths` bytes.
fn exchanged(
    communicator: &dyn Communicator,
    x: &Tensor,
    text: &str,
    lengths: &[usize],
) -> Result<Vec<String>> {
    let bytes: Vec<i32> = text.bytes().map(i32::from).collect();
    let bytes = Tensor::from_slice(x.device(), &[bytes.len()], &bytes)?;
    let all = communicator.all_gather_rows(&bytes, lengths)?.wait()?;
    let all: Vec<u8> = all.local().to_vec::<i32>()?.iter().map(|byte| *byte as u8).collect();
    let mut rest = &all[..];
    let mut next = |length: &usize| {
        let (text, after) = rest.split_at(*length);
        rest = after;
        String::from_utf8_lossy(text).into_owned()
    };
    Ok(lengths.iter().map(&mut next).collect())
}
