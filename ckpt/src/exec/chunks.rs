//! Splits regions into contiguous chunks.

use std::ops::Range;

/// Splits a region into consecutive row-major chunks of at most `most` elements, or of one element
/// if `most` is 0. A chunk consists of whole rows of the outermost dim whose rows fit into a chunk.
pub fn split(region: &[Range<u64>], most: u64) -> Vec<Vec<Range<u64>>> {
    let extent = |range: &Range<u64>| range.end - range.start;
    if region.iter().any(Range::is_empty) {
        return Vec::new();
    }
    // Elements per row of the dim.
    let row = |dim: usize| region[dim + 1..].iter().map(extent).product::<u64>();
    let Some(dim) = (0..region.len()).find(|dim| row(*dim) <= most.max(1)) else {
        return vec![region.to_vec()]; // no dims
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

    /// The row-major indices of a region's elements in a tensor of these extents.
    fn indices(shape: &[u64], region: &[Range<u64>]) -> Vec<u64> {
        let mut indices = vec![0];
        for (extent, range) in shape.iter().zip(region) {
            let along = |before: u64| range.clone().map(move |at| before * extent + at);
            indices = indices.into_iter().flat_map(along).collect();
        }
        indices
    }

    /// The chunks together are the region's elements in order, and no chunk exceeds the limit.
    #[test]
    fn chunks_cover_the_region_in_order() {
        let shape = [3, 4, 2, 5];
        let regions = [
            vec![0..3, 0..4, 0..2, 0..5],
            vec![1..3, 2..4, 1..2, 0..5],
            vec![2..3, 0..4, 0..2, 3..4],
            vec![0..3, 1..1, 0..2, 0..5],
        ];
        for region in regions {
            for most in 1..=130 {
                let chunks = split(&region, most);
                let all = chunks.iter().flat_map(|chunk| indices(&shape, chunk));
                assert_eq!(all.collect::<Vec<_>>(), indices(&shape, &region));
                let sizes = chunks.iter().map(|chunk| indices(&shape, chunk).len());
                assert!(sizes.clone().all(|size| (1..=most).contains(&(size as u64))));
                if most >= 120 {
                    assert!(chunks.len() <= 1, "a region that fits is not split");
                }
            }
        }
        assert_eq!(split(&[], 1), [Vec::new()]);
    }
}
