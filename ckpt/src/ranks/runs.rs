//! The contiguous elements that a copy writes.

use crate::graph::ElementCopy;

/// Consecutive elements of a chunk, with what they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The rank that owns them.
    pub(super) owner: usize,
}

/// The runs of all copies of a chunk, ascending. Adjacent runs of one owner are one run.
pub(super) fn of_copies<'c>(copies: impl Iterator<Item = (&'c ElementCopy, usize)>) -> Vec<Run> {
    let mut runs = Vec::new();
    for (copy, owner) in copies {
        add(copy, owner, &mut runs);
    }
    runs.sort_unstable();
    runs.dedup_by(|next, last| {
        let is_one = last.end == next.start && last.owner == next.owner;
        if is_one {
            last.end = next.end;
        }
        is_one
    });
    runs
}

fn add(copy: &ElementCopy, owner: usize, runs: &mut Vec<Run>) {
    let mut loops: Vec<(u64, u64)> =
        copy.loops().iter().map(|it| (it.destination_stride, it.count)).collect();
    loops.sort_unstable();
    let mut run = 1;
    let inner = loops.iter().take_while(|(stride, count)| {
        let continues = *stride == run;
        run *= if continues { *count } else { 1 };
        continues
    });
    let outer = inner.count();
    let mut starts = vec![copy.destination_offset];
    for (stride, count) in loops.drain(outer..) {
        let along = |start: u64| (0..count).map(move |at| start + at * stride);
        starts = starts.into_iter().flat_map(along).collect();
    }
    runs.extend(starts.into_iter().map(|start| Run { start, end: start + run, owner }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;
    use crate::graph::Graph;

    /// The runs of the copies of any region cover it once, and have the owners of their elements.
    #[test]
    fn runs_cover_a_chunk_once() {
        let mut graph = Graph::new();
        let sources = ["a", "b"].map(|name| graph.source(name, Dtype::F32, &[3, 4]).unwrap());
        let joined = graph.concat(&sources, 1).unwrap();
        let turned = graph.transpose(joined, 0, 1).unwrap();
        for (expr, region, expected) in [
            (joined, vec![0..3, 0..8], vec![4; 6]),
            (joined, vec![0..3, 2..6], vec![2; 6]),
            (turned, vec![0..8, 0..3], vec![12, 12]),
            (turned, vec![3..5, 1..2], vec![1, 1]),
            (joined, vec![1..2, 0..8], vec![4, 4]),
        ] {
            let copies = graph.copies(expr, &region).unwrap();
            let owner = |copy: &ElementCopy| usize::from(graph.leaf_name(copy.from) == "b");
            let runs = of_copies(copies.iter().map(|copy| (copy, owner(copy))));
            let lengths: Vec<u64> = runs.iter().map(|run| run.end - run.start).collect();
            assert_eq!(lengths, expected, "{region:?}");
            assert_eq!(runs[0].start, 0);
            assert!(runs.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(runs.windows(2).all(|pair| pair[0].owner != pair[1].owner));
        }
    }
}
