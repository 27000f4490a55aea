//! Disjoint meshes, such as those of a trainer and a rollout engine.

use meshgrad_error::{Result, bail};

use crate::Mesh;
use crate::relation::common_digits;

/// Meshes that share no rank.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MeshSet {
    parts: Vec<Mesh>,
}

impl Mesh {
    /// Combines meshes that share no rank.
    ///
    /// # Errors
    /// When two of them share a rank, which is named.
    pub fn disjoint(parts: &[Mesh]) -> Result<MeshSet> {
        for (second, mesh) in parts.iter().enumerate() {
            for (first, other) in parts[..second].iter().enumerate() {
                if let Some(rank) = shared_rank(other, mesh) {
                    bail!(
                        Invalid,
                        "rank {rank} is in part {first} ({other}) and in part {second} ({mesh}), \
                         but parts must be disjoint: slice both from one mesh with `at`, or list \
                         other ranks"
                    );
                }
            }
        }
        Ok(MeshSet { parts: parts.to_vec() })
    }
}

impl MeshSet {
    /// The meshes, as given.
    pub fn parts(&self) -> &[Mesh] {
        &self.parts
    }

    /// The index of the mesh that contains a rank.
    pub fn part_of(&self, rank: usize) -> Option<usize> {
        self.parts.iter().position(|mesh| mesh.contains(rank))
    }
}

/// A rank that both meshes contain. Ranks are enumerated only if comparing digits does not rule out
/// a shared rank.
fn shared_rank(one: &Mesh, other: &Mesh) -> Option<usize> {
    if one.rank_map() == other.rank_map() && are_disjoint(one, other) == Some(true) {
        return None;
    }
    let (few, many) = match one.rank_map().len() <= other.rank_map().len() {
        true => (one, other),
        false => (other, one),
    };
    few.ranks().into_iter().find(|rank| many.contains(*rank))
}

/// Whether two meshes over the same ranks fix some digit at different values. `None` if they have
/// no common radix.
fn are_disjoint(one: &Mesh, other: &Mesh) -> Option<bool> {
    let (mine, theirs) = (one.all(), other.all());
    let digits = common_digits(&mine, &theirs)?;
    let beyond = digits.last().map_or(1, |digit| digit.end());

    let differs =
        |stride: usize, size: usize| one.base() / stride % size != other.base() / stride % size;
    let apart = digits
        .iter()
        .filter(|digit| !mine.counts(**digit) && !theirs.counts(**digit))
        .any(|digit| differs(digit.stride, digit.size));
    Some(apart || one.base() / beyond != other.base() / beyond)
}
