//! Checks that all ranks have the same mesh before they communicate through it.
//!
//! Ranks with different meshes hang in the first collective or compute wrong results. So each rank
//! sends its [`Fingerprint`] over the control plane, and [`check_agreement`] compares them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::Hasher;

use meshgrad_error::{Result, bail};
use twox_hash::XxHash3_64;

use crate::rank_map::RankMap;
use crate::{Mesh, text};

/// A short digest of a mesh. Equal meshes have equal fingerprints; different meshes differ except
/// for collisions of a 64-bit hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint {
    /// xxh3 of axes, names, layouts, fixed coordinates and ranks. Equal on every machine.
    pub digest: u64,
    /// The axes, for messages.
    pub axes: String,
}

impl Mesh {
    /// The digest to compare with other ranks. The cost is linear in the number of modes, or in the
    /// number of ranks for [`Mesh::from_ranks`].
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hash = XxHash3_64::new();
        for axis in self.axes() {
            put(&mut hash, axis.name().len());
            hash.write(axis.name().as_bytes());
            put_text(&mut hash, &axis.layout().to_string());
        }
        put_text(&mut hash, &self.all().ascending().to_string());
        put(&mut hash, self.base());
        put_ranks(&mut hash, self.rank_map());
        Fingerprint { digest: hash.finish(), axes: self.to_string() }
    }
}

fn put(hash: &mut XxHash3_64, number: usize) {
    hash.write(&(number as u64).to_le_bytes());
}

fn put_text(hash: &mut XxHash3_64, text: &str) {
    put(hash, text.len());
    hash.write(text.as_bytes());
}

fn put_ranks(hash: &mut XxHash3_64, ranks: &RankMap) {
    put(hash, ranks.len());
    if let RankMap::Listed(_) = ranks {
        (0..ranks.len()).for_each(|position| put(hash, ranks.rank(position)));
    }
}

/// Compares the fingerprints of rank 0, 1, ...
///
/// # Errors
/// When they differ, with all meshes and their ranks, the most common mesh first.
pub fn check_agreement(fingerprints: &[Fingerprint]) -> Result<()> {
    let mut holders: BTreeMap<&Fingerprint, Vec<usize>> = BTreeMap::new();
    for (rank, fingerprint) in fingerprints.iter().enumerate() {
        holders.entry(fingerprint).or_default().push(rank);
    }
    if holders.len() <= 1 {
        return Ok(());
    }

    let mut holders: Vec<(&Fingerprint, Vec<usize>)> = holders.into_iter().collect();
    holders.sort_by_key(|(_, ranks)| (Reverse(ranks.len()), ranks[0]));
    let texts = holders.iter().map(|(fingerprint, ranks)| {
        format!(
            "ranks {} have {} (digest {:016x})",
            text::ranks(ranks),
            fingerprint.axes,
            fingerprint.digest
        )
    });
    let texts: Vec<String> = texts.collect();
    bail!(Invalid, "ranks have different meshes: {}", texts.join("; "))
}
