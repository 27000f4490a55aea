//! Regions cut into pieces whose elements lie side by side.

use std::ops::Range;

/// Cuts a region, row-major, into regions of at most `most` elements, at least one each, that
/// follow each other: whole rows of the outermost dim that allows it.
pub(super) fn cut(region: &[Range<u64>], most: u64) -> Vec<Vec<Range<u64>>> {
    let extent = |range: &Range<u64>| range.end - range.start;
    if region.iter().any(Range::is_empty) {
        return Vec::new();
    }
    // Elements of a row of the dim.
    let row = |dim: usize| region[dim + 1..].iter().map(extent).product::<u64>();
    let Some(dim) = (0..region.len()).find(|dim| row(*dim) <= most.max(1)) else {
        return vec![region.to_vec()]; // without dims
    };
    let rows = most / row(dim);

    let mut outer = vec![Vec::new()];
    for range in &region[..dim] {
        let along = |before: Vec<Range<u64>>| {
            range.clone().map(move |at| {
                let mut one = before.clone();
                one.push(at..at + 1);
                one
            })
        };
        outer = outer.into_iter().flat_map(along).collect();
    }
    let along = |outer: Vec<Range<u64>>| {
        let Range { start, end } = region[dim].clone();
        let starts = (start..end).step_by(rows.max(1) as usize);
        starts.map(move |first| {
            let some = first..end.min(first + rows.max(1));
            [&outer[..], &[some], &region[dim + 1..]].concat()
        })
    };
    outer.into_iter().flat_map(along).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row-major numbers of a region's elements in a tensor of these extents.
    fn numbers(shape: &[u64], region: &[Range<u64>]) -> Vec<u64> {
        let mut numbers = vec![0];
        for (extent, range) in shape.iter().zip(region) {
            let along = |before: u64| range.clone().map(move |at| before * extent + at);
            numbers = numbers.into_iter().flat_map(along).collect();
        }
        numbers
    }

    /// Pieces in a row are the region's elements in order, and none is larger than it may be.
    #[test]
    fn pieces_follow_each_other() {
        let shape = [3, 4, 2, 5];
        let regions = [
            vec![0..3, 0..4, 0..2, 0..5],
            vec![1..3, 2..4, 1..2, 0..5],
            vec![2..3, 0..4, 0..2, 3..4],
            vec![0..3, 1..1, 0..2, 0..5],
        ];
        for region in regions {
            for most in 1..=130 {
                let pieces = cut(&region, most);
                let all = pieces.iter().flat_map(|piece| numbers(&shape, piece));
                assert_eq!(all.collect::<Vec<_>>(), numbers(&shape, &region));
                let sizes = pieces.iter().map(|piece| numbers(&shape, piece).len());
                assert!(
                    sizes
                        .clone()
                        .all(|size| (1..=most).contains(&(size as u64)))
                );
                if most >= 120 {
                    assert!(pieces.len() <= 1, "what fits is not cut");
                }
            }
        }
        assert_eq!(cut(&[], 1), [Vec::new()]);
    }
}
