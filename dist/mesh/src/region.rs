//! Regions: the elements of a global tensor that a rank holds, as one set of indices per dim.

use std::fmt;
use std::ops::Range;

use smallvec::{SmallVec, smallvec};

/// Indices of a dim, in ascending order: ranges that neither overlap nor touch. An empty set is one
/// empty range.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IndexSet {
    ranges: SmallVec<[Range<usize>; 1]>,
}

impl IndexSet {
    /// The set of some ranges in ascending order that do not overlap. If all are empty, the set is
    /// the empty range at `end`.
    pub(crate) fn new(ranges: impl IntoIterator<Item = Range<usize>>, end: usize) -> IndexSet {
        let mut merged: SmallVec<[Range<usize>; 1]> = SmallVec::new();
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            match merged.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => merged.push(range),
            }
        }
        if merged.is_empty() {
            merged.push(end..end);
        }
        IndexSet { ranges: merged }
    }

    /// The ranges, in ascending order.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// The range, if there is only one.
    pub fn as_range(&self) -> Option<Range<usize>> {
        match &self.ranges[..] {
            [only] => Some(only.clone()),
            _ => None,
        }
    }

    /// The number of indices.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Whether it has no index.
    pub fn is_empty(&self) -> bool {
        self.ranges[0].is_empty()
    }

    /// The indices in both sets.
    pub fn intersection(&self, other: &IndexSet) -> IndexSet {
        let both = overlaps(&self.ranges, &other.ranges);
        IndexSet::new(both.into_iter().map(|(_, range)| range), self.ranges[0].end)
    }

    /// The positions in this set of the indices that are also in `other`.
    pub fn positions(&self, other: &IndexSet) -> IndexSet {
        let local = self.local();
        let both = overlaps(&self.ranges, &other.ranges).into_iter();
        let positions = both.map(|(at, range)| {
            let shift = |index: usize| index - self.ranges[at].start + local[at].start;
            shift(range.start)..shift(range.end)
        });
        IndexSet::new(positions, self.len())
    }

    /// The indices at these positions of this set; the empty range at `end` if there are none.
    pub(crate) fn select(&self, positions: &IndexSet, end: usize) -> IndexSet {
        let local = self.local();
        let chosen = overlaps(&local, &positions.ranges).into_iter();
        let indices = chosen.map(|(at, range)| {
            let shift = |position: usize| position - local[at].start + self.ranges[at].start;
            shift(range.start)..shift(range.end)
        });
        IndexSet::new(indices, end)
    }

    /// The positions of each range.
    fn local(&self) -> SmallVec<[Range<usize>; 1]> {
        let mut end = 0;
        let positions = self.ranges.iter().map(|range| {
            end += range.len();
            end - range.len()..end
        });
        positions.collect()
    }
}

impl From<Range<usize>> for IndexSet {
    fn from(range: Range<usize>) -> IndexSet {
        IndexSet { ranges: smallvec![range] }
    }
}

/// The nonempty intersections of two ascending lists of ranges, each with the index of its range in
/// the first list.
fn overlaps(a: &[Range<usize>], b: &[Range<usize>]) -> SmallVec<[(usize, Range<usize>); 1]> {
    let mut both = SmallVec::new();
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        let common = a[i].start.max(b[j].start)..a[i].end.min(b[j].end);
        if !common.is_empty() {
            both.push((i, common));
        }
        match a[i].end < b[j].end {
            true => i += 1,
            false => j += 1,
        }
    }
    both
}

/// `3..5`, `0..2 + 6..8`.
impl fmt::Display for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> =
            self.ranges.iter().map(|range| format!("{}..{}", range.start, range.end)).collect();
        f.write_str(&ranges.join(" + "))
    }
}

/// Elements of a global tensor: all combinations of the indices of each dim.
///
/// A rank stores its region in row-major order of the indices in each set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Region {
    dims: SmallVec<[IndexSet; 4]>,
}

impl Region {
    /// The region with these indices of each dim.
    pub(crate) fn new(dims: impl IntoIterator<Item = IndexSet>) -> Region {
        Region { dims: dims.into_iter().collect() }
    }

    /// All of a tensor of this shape.
    pub fn whole(shape: &[usize]) -> Region {
        Region::new(shape.iter().map(|extent| (0..*extent).into()))
    }

    /// The indices of each dim.
    pub fn dims(&self) -> &[IndexSet] {
        &self.dims
    }

    /// The shape of a tensor that stores the region.
    pub fn extents(&self) -> Vec<usize> {
        self.dims.iter().map(IndexSet::len).collect()
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().map(IndexSet::len).product()
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.dims.iter().any(IndexSet::is_empty)
    }

    /// The boxes of some rows of a tensor that stores the region. A row has all indices of the last
    /// dim and one of each other dim; rows count in row-major order. Rows that the region does not
    /// have are in no box.
    pub fn row_boxes(&self, rows: Range<usize>) -> Vec<RowBox> {
        let extents = self.extents();
        let outer = extents.len().saturating_sub(1);
        let mut blocks = Vec::new();
        collect_blocks(&extents[..outer], rows, 0, &mut Vec::new(), &mut blocks);
        blocks
            .into_iter()
            .flat_map(|(rows, mut block)| {
                block.extend(extents[outer..].iter().map(|last| 0..*last));
                self.boxes_of_block(rows, &block)
            })
            .collect()
    }

    /// The boxes of a block of consecutive rows, given by the positions in each dim.
    fn boxes_of_block(&self, rows: Range<usize>, block: &[Range<usize>]) -> Vec<RowBox> {
        let shape: Vec<usize> = block.iter().map(Range::len).collect();
        let of_dim = |(indices, positions): (&IndexSet, &Range<usize>)| {
            let indices = indices.select(&positions.clone().into(), positions.end);
            let local = indices.local().to_vec();
            local.into_iter().zip(indices.ranges.to_vec()).collect()
        };
        let dims: Vec<Vec<_>> = self.dims.iter().zip(block).map(of_dim).collect();
        let mut boxes = vec![RowBox { rows, shape, within: Vec::new(), global: Vec::new() }];
        for ranges in &dims {
            let longer = boxes.iter().flat_map(|outer| {
                ranges.iter().map(|(within, global)| {
                    let mut longer = outer.clone();
                    longer.within.push(within.clone());
                    longer.global.push(global.clone());
                    longer
                })
            });
            boxes = longer.collect();
        }
        boxes.retain(|it| !it.global.iter().any(Range::is_empty));
        boxes
    }

    /// The range of each dim, if the region is one box. That of an empty dim is empty.
    pub fn as_box(&self) -> Option<Vec<Range<usize>>> {
        self.dims.iter().map(IndexSet::as_range).collect()
    }

    /// The boxes that make up the region, the last dim fastest; none if it is empty.
    ///
    /// ```
    /// use meshgrad_mesh::{Mesh, Placement, Sharding};
    ///
    /// let mesh = Mesh::new(&[2], &["cp"])?;
    /// let sequence = Sharding::new(&mesh, [("cp", Placement::head_and_tail(1))], &[4, 8])?;
    /// let region = sharding_of_rank_0(&sequence);
    /// assert_eq!(region.boxes(), [vec![0..4, 0..2], vec![0..4, 6..8]]);
    /// # fn sharding_of_rank_0(sharding: &Sharding) -> meshgrad_mesh::Region {
    /// #     sharding.region(0).unwrap()
    /// # }
    /// # Ok::<(), meshgrad_mesh::Error>(())
    /// ```
    pub fn boxes(&self) -> Vec<Vec<Range<usize>>> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut boxes = vec![Vec::with_capacity(self.dims.len())];
        for indices in &self.dims {
            boxes = boxes
                .iter()
                .flat_map(|outer: &Vec<Range<usize>>| {
                    indices.ranges().iter().map(move |range| {
                        let mut longer = outer.clone();
                        longer.push(range.clone());
                        longer
                    })
                })
                .collect();
        }
        boxes
    }

    /// The elements in both regions of one tensor.
    pub fn intersection(&self, other: &Region) -> Region {
        let dims = self.dims.iter().zip(&other.dims);
        Region::new(dims.map(|(a, b)| a.intersection(b)))
    }
}

/// A box of a global tensor, and where a tensor that stores some rows of a [`Region`] has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowBox {
    /// Consecutive rows of the stored tensor, to be viewed in the shape `shape`.
    pub rows: Range<usize>,
    /// The shape of these rows.
    pub shape: Vec<usize>,
    /// The box in these rows.
    pub within: Vec<Range<usize>>,
    /// The box in the global tensor.
    pub global: Vec<Range<usize>>,
}

/// Splits `rows`, which count in row-major order over `extents`, into blocks: consecutive rows that
/// have one index of some outer dims, a range of the next, and all indices of the others.
fn collect_blocks(
    extents: &[usize],
    rows: Range<usize>,
    first: usize,
    outer: &mut Vec<Range<usize>>,
    blocks: &mut Vec<(Range<usize>, Vec<Range<usize>>)>,
) {
    if rows.is_empty() {
        return;
    }
    let Some((_, inner)) = extents.split_first() else {
        blocks.push((first..first + 1, outer.clone()));
        return;
    };
    let stride: usize = inner.iter().product();
    let whole = rows.start.div_ceil(stride)..rows.end / stride;
    let head = rows.start..rows.end.min(whole.start * stride);
    let tail = rows.end.min(whole.end * stride).max(head.end)..rows.end;

    let full = inner.iter().map(|extent| 0..*extent);
    let full: Vec<Range<usize>> =
        outer.iter().cloned().chain([whole.clone()]).chain(full).collect();
    for part in [head, whole.start * stride..whole.end * stride, tail] {
        if part.is_empty() {
            continue;
        }
        let index = part.start / stride;
        let start = index * stride;
        if part.len() >= stride {
            blocks.push((first + part.start..first + part.end, full.clone()));
            continue;
        }
        outer.push(index..index + 1);
        let inside = part.start - start..part.end - start;
        collect_blocks(inner, inside, first + start, outer, blocks);
        outer.pop();
    }
}

/// `[0..4, 0..2 + 6..8]`.
impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(IndexSet::to_string).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}
