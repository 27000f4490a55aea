//! Divisions: which indices of a dim each rank of an axis holds.

use std::collections::BTreeSet;
use std::fmt;
use std::iter::once;
use std::ops::Range;
use std::sync::Arc;

use meshgrad_error::Result;

use crate::IndexSet;

/// How the indices of a dim are divided among the ranks of an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Division {
    /// One range per rank of ceil(extent / ranks) indices; the last ones are shorter or empty, as in
    /// `torch.chunk`.
    Even,
    /// One range per rank, of these sizes.
    Ragged(Arc<[usize]>),
    /// `2 ranks` ranges as in [`Division::Even`]: rank r has range r from the front and range r from
    /// the back. This balances the attended keys of a causal mask over the ranks.
    HeadAndTail,
    /// Each block of `length` indices is divided by `division`.
    InBlocks {
        /// The number of indices of a block. It divides the extent.
        length: usize,
        /// The division of a block.
        division: Arc<Division>,
    },
}

/// The most blocks of a dim: a rank stores a range for each.
const MAX_BLOCKS: usize = 1 << 20;

/// Why a division does not fit a dim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DivisionError {
    /// The number of sizes differs from the axis size.
    Count,
    /// The sizes do not add up to the extent.
    Sum,
    /// The shards to divide have different extents.
    UnequalShards,
    /// The length of a block is 0, does not divide the extent, or gives too many blocks.
    BlockLength,
}

impl Division {
    /// The positions in `0..extent` that the rank at `index` of `ranks` holds.
    pub(crate) fn part(&self, extent: usize, ranks: usize, index: usize) -> IndexSet {
        match self {
            Division::Even => IndexSet::new(once(chunk(extent, ranks, index)), extent),
            Division::Ragged(sizes) => {
                let start: usize = sizes[..index].iter().sum();
                IndexSet::new(once(start..start + sizes[index]), extent)
            }
            Division::HeadAndTail => {
                let [head, tail] = [index, 2 * ranks - 1 - index];
                IndexSet::new([head, tail].map(|at| chunk(extent, 2 * ranks, at)), extent)
            }
            Division::InBlocks { length, division } => {
                let part = division.part(*length, ranks, index);
                let blocks = (0..extent).step_by(*length);
                let shifted = |start: usize| {
                    let ranges = part.ranges().iter();
                    ranges.map(move |range| start + range.start..start + range.end)
                };
                IndexSet::new(blocks.flat_map(shifted), extent)
            }
        }
    }

    /// The number of positions in `0..extent` that the rank at `index` of `ranks` holds.
    pub(crate) fn size(&self, extent: usize, ranks: usize, index: usize) -> usize {
        match self {
            Division::Even => chunk(extent, ranks, index).len(),
            Division::Ragged(sizes) => sizes[index],
            Division::HeadAndTail => self.part(extent, ranks, index).len(),
            Division::InBlocks { length, division } => {
                extent / length * division.size(*length, ranks, index)
            }
        }
    }

    /// As [`Division::size`], for each rank.
    pub(crate) fn sizes(&self, extent: usize, ranks: usize) -> Vec<usize> {
        if let Division::Ragged(sizes) = self {
            return sizes.to_vec();
        }
        let size = |index| self.size(extent, ranks, index);
        (0..ranks).map(size).collect()
    }

    /// The sizes that were stated for the ranks.
    pub(crate) fn ragged(&self) -> &[usize] {
        match self {
            Division::Ragged(sizes) => sizes,
            Division::InBlocks { division, .. } => division.ragged(),
            Division::Even | Division::HeadAndTail => &[],
        }
    }

    /// The canonical form of this division of shards with these extents: the simplest division with
    /// the same parts.
    pub(crate) fn fitted(
        &self,
        extents: &BTreeSet<usize>,
        ranks: usize,
    ) -> Result<Division, DivisionError> {
        let one_extent = match extents.len() {
            1 => extents.first().copied(),
            _ => None,
        };
        let division = match self {
            Division::Even => return Ok(Division::Even),
            Division::Ragged(sizes) => {
                check_sizes(sizes, one_extent, ranks)?;
                self.clone()
            }
            Division::HeadAndTail => {
                let ragged = one_extent.and_then(|extent| self.in_rank_order(extent, ranks));
                ragged.unwrap_or(Division::HeadAndTail)
            }
            Division::InBlocks { length, division } => {
                let fits = |extent: &usize| {
                    let rest = extent.checked_rem(*length);
                    rest == Some(0) && extent / length <= MAX_BLOCKS
                };
                if !extents.iter().all(fits) {
                    return Err(DivisionError::BlockLength);
                }
                let of_block = division.fitted(&BTreeSet::from([*length]), ranks)?;
                in_canonical_blocks(*length, of_block, extents, ranks)
            }
        };
        let is_even = |extent: &usize| division.equals(&Division::Even, *extent, ranks);
        let is_blocks = matches!(division, Division::InBlocks { .. });
        match !is_blocks && extents.iter().all(is_even) {
            true => Ok(Division::Even),
            false => Ok(division),
        }
    }

    /// Divides each block of `length` indices by `division`.
    pub fn in_blocks(length: usize, division: Division) -> Division {
        Division::InBlocks { length, division: Arc::new(division) }
    }

    /// Whether each rank has one range.
    pub(crate) fn is_one_range(&self) -> bool {
        matches!(self, Division::Even | Division::Ragged(_))
    }

    /// Whether both give each rank the same positions of `0..extent`.
    pub(crate) fn equals(&self, other: &Division, extent: usize, ranks: usize) -> bool {
        if self.is_one_range() && other.is_one_range() {
            return self.sizes(extent, ranks) == other.sizes(extent, ranks);
        }
        let part = |division: &Division, at| division.part(extent, ranks, at);
        self == other || (0..ranks).all(|at| part(self, at) == part(other, at))
    }

    /// The same division as one range per rank, if the ranks' parts follow each other.
    fn in_rank_order(&self, extent: usize, ranks: usize) -> Option<Division> {
        let mut end = 0;
        let mut size = |index| {
            let part = self.part(extent, ranks, index);
            let range = part.as_range()?;
            let follows = range.is_empty() || range.start == end;
            end += range.len();
            follows.then_some(range.len())
        };
        let sizes: Option<Vec<usize>> = (0..ranks).map(&mut size).collect();
        Some(Division::Ragged(sizes?.into()))
    }

    /// The division of `0..extent * times / per` in which each rank holds `times / per` times as
    /// many indices, in proportion. `None` if that is not exact.
    pub(crate) fn scaled(
        &self,
        extent: usize,
        ranks: usize,
        (times, per): (usize, usize),
    ) -> Option<Division> {
        if times == per {
            return Some(self.clone());
        }
        let scale = |size: usize| {
            let product = size as u128 * times as u128;
            let exact = product.is_multiple_of(per as u128);
            exact.then(|| usize::try_from(product / (per as u128).max(1)).ok())?
        };
        if scale(extent)? == 0 {
            return Some(Division::Even);
        }
        match self {
            Division::Even | Division::Ragged(_) => {
                let sizes = self.sizes(extent, ranks).into_iter().map(scale);
                let ragged = Division::Ragged(sizes.collect::<Option<_>>()?);
                match Division::Even.equals(&ragged, scale(extent)?, ranks) {
                    true => Some(Division::Even),
                    false => Some(ragged),
                }
            }
            Division::HeadAndTail => {
                let chunks = 2 * ranks;
                let exact = scale(extent.div_ceil(chunks))? == scale(extent)?.div_ceil(chunks);
                exact.then_some(Division::HeadAndTail)
            }
            Division::InBlocks { length, division } => {
                let of_block = division.scaled(*length, ranks, (times, per))?;
                Some(Division::in_blocks(scale(*length)?, of_block))
            }
        }
    }
}

/// Blocks that `of_block` divides, of shards with these extents: a simpler division if each shard has
/// at most one block, or if one rank has whole blocks.
fn in_canonical_blocks(
    length: usize,
    of_block: Division,
    extents: &BTreeSet<usize>,
    ranks: usize,
) -> Division {
    let is_one_block = |extent: &usize| *extent == length || *extent == 0;
    let is_even = of_block == Division::Even || extents.last() == Some(&0);
    if is_even && extents.iter().all(is_one_block) {
        return Division::Even;
    }
    if extents.iter().eq([&length]) {
        return of_block;
    }
    if matches!(of_block, Division::InBlocks { .. }) {
        return of_block;
    }
    let sizes = of_block.sizes(length, ranks);
    match (extents.first(), sizes.contains(&length)) {
        (Some(extent), true) if extents.len() == 1 => {
            Division::Ragged(sizes.iter().map(|size| size / length * extent).collect())
        }
        _ => Division::in_blocks(length, of_block),
    }
}

/// Part `index` of `0..extent` in `parts` parts, as `torch.chunk` divides it.
fn chunk(extent: usize, parts: usize, index: usize) -> Range<usize> {
    let size = extent.div_ceil(parts);
    let start = |index: usize| index.saturating_mul(size).min(extent);
    start(index)..start(index + 1)
}

fn check_sizes(sizes: &[usize], extent: Option<usize>, ranks: usize) -> Result<(), DivisionError> {
    if sizes.len() != ranks {
        return Err(DivisionError::Count);
    }
    let extent = extent.ok_or(DivisionError::UnequalShards)?;
    let sum = sizes.iter().try_fold(0usize, |sum, size| sum.checked_add(*size));
    match sum == Some(extent) {
        true => Ok(()),
        false => Err(DivisionError::Sum),
    }
}

/// `even`, `3 + 5`, `head and tail`, `even in blocks of 8`.
impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Division::Even => f.write_str("even"),
            Division::Ragged(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
                f.write_str(&sizes.join(" + "))
            }
            Division::HeadAndTail => f.write_str("head and tail"),
            Division::InBlocks { length, division } => {
                write!(f, "{division} in blocks of {length}")
            }
        }
    }
}
