//! The tensors of all ranks: checks that they are complete, and chooses the rank that writes each
//! region.
//!
//! The index sets of each dim must be equal or disjoint. Then two different regions are disjoint,
//! and the regions form a grid. All regions of one sharding satisfy this. The ranges of rows of one
//! region must also be equal or disjoint.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use meshgrad_error::{Error, Result, error};

use super::shard::{IndexRanges, Indices, Shard};
use crate::mapping::TensorSpec;

/// The rank that writes headers and constants.
pub(super) const COORDINATOR: usize = 0;

/// A tensor of the model, and the ranks that hold its regions.
#[derive(Debug, Clone)]
pub(super) struct HeldTensor {
    pub(super) spec: TensorSpec,
    /// The ranks that state a shard, in ascending order; it may be empty.
    ranks: Vec<usize>,
    pub(super) regions: BTreeMap<Indices, HeldRegion>,
    /// For each dim the distinct sets of indices, ordered by their first index.
    pub(super) sets: Vec<Vec<IndexRanges>>,
}

/// The ranges of rows of a region, by their start and end; none of them empty.
pub(super) type HeldRegion = BTreeMap<[u64; 2], HeldRows>;

/// A range of rows.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldRows {
    /// The ranks that hold it, in ascending order.
    holders: Vec<usize>,
    /// The rank that writes it.
    pub(super) owner: usize,
}

/// Tensors of a model by the number of their folder and their name.
pub(super) type HeldTensors = BTreeMap<(usize, String), HeldTensor>;

/// Collects the tensors from the shards of ranks 0, 1, ..., which are lists by folder, and chooses
/// the owner of each region.
///
/// # Errors
/// When the shards do not form tensors.
pub(super) fn collect(ranks: &[Vec<Vec<Shard>>]) -> Result<HeldTensors> {
    let mut tensors = HeldTensors::new();
    for (rank, folders) in ranks.iter().enumerate() {
        for (folder, shards) in folders.iter().enumerate() {
            for shard in shards {
                let key = (folder, shard.tensor.name.clone());
                let tensor = tensors.entry(key).or_insert_with(|| HeldTensor {
                    spec: shard.tensor.clone(),
                    ranks: Vec::new(),
                    regions: BTreeMap::new(),
                    sets: Vec::new(),
                });
                tensor.add(rank, shard)?;
            }
        }
    }
    for tensor in tensors.values_mut() {
        tensor.sets = tensor.disjoint_sets()?;
        tensor.check_rows()?;
        tensor.check_complete()?;
    }
    choose_owners(&mut tensors, ranks.len());
    Ok(tensors)
}

impl HeldTensor {
    fn add(&mut self, rank: usize, shard: &Shard) -> Result<()> {
        let (spec, given) = (&self.spec, &shard.tensor);
        if spec != given {
            return Err(self.refused(format!(
                "it is {} {:?} on rank {} but {} {:?} on rank {rank}; all ranks must hold shards of \
                 one tensor",
                spec.dtype, spec.shape, self.ranks[0], given.dtype, given.shape
            )));
        }
        if !shard.region.is_inside(&spec.shape) {
            return Err(self.refused(format!(
                "rank {rank} has {}, which is not inside of {:?}; use a sharding of the global shape",
                shard.region, spec.shape
            )));
        }
        if !shard.has_its_rows() {
            return Err(self.refused(format!(
                "rank {rank} has rows {}..{} of {}, which has {} rows",
                shard.rows[0],
                shard.rows[1],
                shard.region,
                shard.region.rows()
            )));
        }
        if self.ranks.last() == Some(&rank) {
            return Err(self.refused(format!("rank {rank} has two shards; a rank has one")));
        }
        self.ranks.push(rank);
        if shard.elements() > 0 {
            let region = self.regions.entry(shard.region.clone()).or_default();
            region.entry(shard.rows).or_default().holders.push(rank);
        }
        Ok(())
    }

    /// The ranges of rows that ranks hold, each with the elements of a row.
    fn held_rows(&self) -> impl Iterator<Item = ([u64; 2], u64)> {
        self.regions.iter().flat_map(|(region, held)| {
            let elements = region.row_elements();
            held.keys().map(move |rows| (*rows, elements))
        })
    }

    /// Checks that different ranges of rows of a region are disjoint.
    fn check_rows(&self) -> Result<()> {
        for (region, held) in &self.regions {
            for ((first, a), (next, b)) in held.iter().zip(held.iter().skip(1)) {
                if first[1] > next[0] {
                    return Err(self.refused(format!(
                        "rank {} has rows {}..{} and rank {} has rows {}..{} of {region}, which \
                         overlap; divide the rows in one way on all ranks",
                        a.holders[0], first[0], first[1], b.holders[0], next[0], next[1]
                    )));
                }
            }
        }
        Ok(())
    }

    fn refused(&self, problem: String) -> Error {
        error!(Invalid, "`{}`: {problem}", self.spec.name.escape_debug())
    }

    /// The distinct index sets of each dim, which must be disjoint.
    fn disjoint_sets(&self) -> Result<Vec<Vec<IndexRanges>>> {
        let dims = 0..self.spec.shape.len();
        dims.map(|dim| {
            let ranges = self.regions.iter().flat_map(|(region, held)| {
                let ranges = region.0[dim].iter();
                let holder = held.values().next().map_or(COORDINATOR, |it| it.holders[0]);
                ranges.map(move |range| (*range, region, holder))
            });
            let mut ranges: Vec<([u64; 2], &Indices, usize)> = ranges.collect();
            ranges.sort_unstable();
            for pair in ranges.windows(2) {
                let [(range, first, a), (next, second, b)] = [pair[0], pair[1]];
                if range[1] > next[0] && first.0[dim] != second.0[dim] {
                    return Err(self.refused(format!(
                        "rank {a} has {first} and rank {b} has {second}, which overlap; use one \
                         sharding on all ranks"
                    )));
                }
            }
            let sets: BTreeSet<&IndexRanges> = self.regions.keys().map(|it| &it.0[dim]).collect();
            Ok(sets.into_iter().cloned().collect())
        })
        .collect()
    }

    /// Checks that some rank has each element. Different regions are disjoint.
    fn check_complete(&self) -> Result<()> {
        let all: u64 = self.spec.shape.iter().product();
        let held: u64 =
            { self.held_rows() }.map(|([start, end], elements)| (end - start) * elements).sum();
        match held == all {
            true => Ok(()),
            false => Err(self.refused(format!(
                "ranks {:?} have {held} of the {all} elements of {:?}; save with all ranks of its mesh",
                self.ranks, self.spec.shape
            ))),
        }
    }
}

/// Chooses the rank that writes each region: the largest region first, each by the holder that has
/// the fewest bits so far. If all ranks hold all regions, no rank writes more than the mean plus the
/// largest region.
fn choose_owners(tensors: &mut HeldTensors, world_size: usize) {
    let regions = tensors.values_mut().flat_map(|tensor| {
        let bits = tensor.spec.dtype.bits() as u64;
        tensor.regions.iter_mut().flat_map(move |(region, held)| {
            let bits = region.row_elements() * bits;
            let rows = held.iter_mut();
            rows.map(move |([start, end], held)| ((end - start) * bits, held))
        })
    });
    let mut regions: Vec<(u64, &mut HeldRows)> = regions.collect();
    regions.sort_by_key(|(bits, _)| Reverse(*bits));

    let mut load = vec![0; world_size];
    for (bits, region) in regions {
        let holders = region.holders.iter().copied();
        region.owner = holders.min_by_key(|rank| (load[*rank], *rank)).unwrap_or(0);
        load[region.owner] += bits;
    }
}

/// The positions of the indices 0, 1, ... of a dim if its sets are stored one after the other.
pub(super) fn positions(sets: &[IndexRanges]) -> IndexRanges {
    let mut placed = Vec::new();
    let mut end = 0;
    for [start, stop] in sets.iter().flatten() {
        placed.push((*start, [end, end + stop - start]));
        end += stop - start;
    }
    placed.sort_unstable();
    let mut merged: IndexRanges = Vec::with_capacity(placed.len());
    for (_, [start, end]) in placed {
        match merged.last_mut() {
            Some(last) if last[1] == start => last[1] = end,
            _ => merged.push([start, end]),
        }
    }
    merged
}
