//! The tensors of all ranks: checks that they are complete, and chooses the rank that writes each
//! region.
//!
//! The index sets of each dim must be equal or disjoint. Then two different regions are disjoint,
//! and the regions form a grid. All regions of one sharding satisfy this.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::RanksError;
use super::shard::{IndexRanges, Indices, Shard, len};
use crate::Dtype;
use crate::mapping::TensorSpec;

/// A tensor of the model, and the ranks that hold its regions.
#[derive(Debug, Clone)]
pub(super) struct HeldTensor {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    first_rank: usize,
    last_rank: Option<usize>,
    /// The ranks that hold each region, in ascending order; none is empty.
    holders: BTreeMap<Indices, Vec<usize>>,
    /// For each dim the distinct sets of indices, ordered by their first index.
    pub(super) sets: Vec<Vec<IndexRanges>>,
    /// The rank that writes each region.
    pub(super) owners: BTreeMap<Indices, usize>,
}

/// Tensors of a model by name.
pub(super) type HeldTensors = BTreeMap<String, HeldTensor>;

impl HeldTensor {
    pub(super) fn spec(&self, name: &str) -> TensorSpec {
        TensorSpec::new(name, self.dtype, &self.shape)
    }
}

/// Collects the tensors of a folder from the shards of ranks 0, 1, ... The owners are chosen later.
///
/// # Errors
/// [`RanksError::Types`], [`RanksError::Region`], [`RanksError::Twice`], [`RanksError::Overlap`],
/// [`RanksError::Missing`].
pub(super) fn collect<'s>(
    ranks: impl Iterator<Item = &'s [Shard]>,
) -> Result<HeldTensors, RanksError> {
    let mut tensors = HeldTensors::new();
    for (rank, shards) in ranks.enumerate() {
        for shard in shards {
            add(&mut tensors, rank, shard)?;
        }
    }
    for (name, tensor) in &mut tensors {
        tensor.sets = disjoint_sets(name, tensor)?;
        check_complete(name, tensor)?;
    }
    Ok(tensors)
}

fn add(tensors: &mut HeldTensors, rank: usize, shard: &Shard) -> Result<(), RanksError> {
    if !shard.region.is_inside(&shard.shape) {
        return Err(RanksError::Region {
            tensor: shard.name.clone(),
            shape: shard.shape.clone(),
            rank,
            region: shard.region.to_string(),
        });
    }
    let tensor = tensors.entry(shard.name.clone());
    let tensor = tensor.or_insert_with(|| HeldTensor {
        dtype: shard.dtype,
        shape: shard.shape.clone(),
        first_rank: rank,
        last_rank: None,
        holders: BTreeMap::new(),
        sets: Vec::new(),
        owners: BTreeMap::new(),
    });
    if (tensor.dtype, &tensor.shape) != (shard.dtype, &shard.shape) {
        let first = (tensor.dtype, tensor.shape.clone());
        return Err(RanksError::Types {
            tensor: shard.name.clone(),
            ranks: [tensor.first_rank, rank],
            types: Box::new([first, (shard.dtype, shard.shape.clone())]),
        });
    }
    if tensor.last_rank.replace(rank) == Some(rank) {
        let tensor = shard.name.clone();
        return Err(RanksError::Twice { tensor, rank });
    }
    if shard.region.elements() > 0 {
        let holders = tensor.holders.entry(shard.region.clone()).or_default();
        holders.push(rank);
    }
    Ok(())
}

/// The distinct index sets of each dim, which must be disjoint.
fn disjoint_sets(name: &str, tensor: &HeldTensor) -> Result<Vec<Vec<IndexRanges>>, RanksError> {
    let mut all = Vec::with_capacity(tensor.shape.len());
    for dim in 0..tensor.shape.len() {
        let sets: BTreeSet<&IndexRanges> = tensor.holders.keys().map(|it| &it.0[dim]).collect();
        let ranges = sets
            .iter()
            .flat_map(|set| set.iter().map(move |range| (*range, *set)));
        let mut ranges: Vec<([u64; 2], &IndexRanges)> = ranges.collect();
        ranges.sort_unstable();
        let overlap = ranges.windows(2).find(|pair| pair[0].0[1] > pair[1].0[0]);
        if let Some([(_, first), (_, second)]) = overlap {
            return Err(overlapping(name, tensor, dim, [first, second]));
        }
        all.push(sets.into_iter().cloned().collect());
    }
    Ok(all)
}

fn overlapping(name: &str, tensor: &HeldTensor, dim: usize, sets: [&IndexRanges; 2]) -> RanksError {
    let (mut ranks, mut regions) = ([0; 2], [String::new(), String::new()]);
    for (at, set) in sets.into_iter().enumerate() {
        let mut holders = tensor.holders.iter();
        if let Some((region, holders)) = holders.find(|(region, _)| region.0[dim] == *set) {
            (ranks[at], regions[at]) = (holders[0], region.to_string());
        }
    }
    RanksError::Overlap {
        tensor: name.to_owned(),
        ranks,
        regions,
    }
}

/// Checks that some rank has each element.
fn check_complete(name: &str, tensor: &HeldTensor) -> Result<(), RanksError> {
    if tensor.shape.contains(&0) {
        return Ok(());
    }
    let missing = |region: Indices| RanksError::Missing {
        tensor: name.to_owned(),
        shape: tensor.shape.clone(),
        region: region.to_string(),
    };
    let whole: Vec<IndexRanges> = tensor
        .shape
        .iter()
        .map(|extent| vec![[0, *extent]])
        .collect();
    for (dim, sets) in tensor.sets.iter().enumerate() {
        let gaps = gaps(sets, tensor.shape[dim]);
        if !gaps.is_empty() {
            let mut region = whole.clone();
            region[dim] = gaps;
            return Err(missing(Indices(region)));
        }
    }
    match first_absent(tensor) {
        Some(region) => Err(missing(region)),
        None => Ok(()),
    }
}

/// The indices that are in none of the sets.
fn gaps(sets: &[IndexRanges], extent: u64) -> IndexRanges {
    let mut ranges: Vec<[u64; 2]> = sets.iter().flatten().copied().collect();
    ranges.sort_unstable();
    ranges.push([extent, extent]);
    let (mut end, mut gaps) = (0, Vec::new());
    for [start, next] in ranges {
        if start > end {
            gaps.push([end, start]);
        }
        end = next;
    }
    gaps
}

/// The first combination of index sets that no rank holds. Visits at most one combination more than
/// there are regions.
fn first_absent(tensor: &HeldTensor) -> Option<Indices> {
    let combinations = tensor.sets.iter().map(|sets| sets.len() as u128);
    let combinations: u128 = combinations.product();
    if combinations == tensor.holders.len() as u128 {
        return None;
    }
    (0..combinations)
        .map(|number| tensor.combination(number))
        .find(|region| !tensor.holders.contains_key(region))
}

impl HeldTensor {
    /// The combination of index sets with this number, the last dim fastest.
    fn combination(&self, mut number: u128) -> Indices {
        let mut dims = Vec::with_capacity(self.sets.len());
        for sets in self.sets.iter().rev() {
            let count = sets.len() as u128;
            dims.push(sets[(number % count) as usize].clone());
            number /= count;
        }
        dims.reverse();
        Indices(dims)
    }
}

/// Chooses the rank that writes each region: the largest region first, each by the holder that has
/// the fewest bytes so far. If all ranks hold all regions, no rank writes more than the mean plus the
/// largest region.
pub(super) fn choose(folders: &mut [HeldTensors], world_size: usize) {
    let mut regions = Vec::new();
    for (folder, tensors) in folders.iter().enumerate() {
        for (name, tensor) in tensors {
            for (region, holders) in &tensor.holders {
                let bits = region.elements() * tensor.dtype.bits() as u64;
                regions.push((
                    Reverse(bits),
                    folder,
                    name.clone(),
                    region.clone(),
                    holders.clone(),
                ));
            }
        }
    }
    regions.sort();

    let mut load = vec![0; world_size];
    for (Reverse(bits), folder, name, region, holders) in regions {
        let least = holders.into_iter().min_by_key(|rank| (load[*rank], *rank));
        if let (Some(owner), Some(tensor)) = (least, folders[folder].get_mut(&name)) {
            load[owner] += bits;
            tensor.owners.insert(region, owner);
        }
    }
}

/// The positions of the indices 0, 1, ... of a dim if its sets are stored one after the other.
pub(super) fn positions(sets: &[IndexRanges]) -> IndexRanges {
    let mut placed = Vec::new();
    let mut end = 0;
    for set in sets {
        for [start, stop] in set {
            placed.push((*start, [end, end + stop - start]));
            end += stop - start;
        }
    }
    placed.sort_unstable();
    let mut merged: IndexRanges = Vec::with_capacity(placed.len());
    for (_, [start, end]) in placed {
        match merged.last_mut() {
            Some(last) if last[1] == start => last[1] = end,
            _ => merged.push([start, end]),
        }
    }
    debug_assert_eq!(len(&merged), end);
    merged
}
