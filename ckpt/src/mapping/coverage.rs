//! Finds the sources that are only partly used, and counts their used elements.

use std::collections::BTreeMap;

use super::bind::Binding;
use super::report::Problem;
use crate::graph::{ElementCopy, Expr, ExprSet, Graph, Leaf, Loop, SourceId};

/// Reports the sources that are only partly used.
pub(super) fn find_partly_used(binding: &mut Binding) {
    let (graph, problems) = (&binding.tensors.graph, &mut binding.report.problems);
    for (source, copies) in partly_read(graph, binding.made.exprs().collect()) {
        let elements = graph.source_shape(source).iter().product();
        match elements_read(&copies, elements) {
            Some(used) if used < elements => problems.push(Problem::PartlyUsed {
                name: graph.name(source).to_owned(),
                used,
                elements,
            }),
            _ => {}
        }
    }
}

/// The copies from sources that no expression uses as a whole.
///
/// Most operations use all elements of all operands. Only the others are traced.
fn partly_read(graph: &Graph, mut open: Vec<Expr>) -> BTreeMap<SourceId, Vec<ElementCopy>> {
    let mut reads: BTreeMap<SourceId, Vec<ElementCopy>> = BTreeMap::new();
    let mut whole = ExprSet::default();
    while let Some(expr) = open.pop() {
        if !whole.insert(expr) {
            continue;
        }
        if let Some(operands) = graph.uses_all_of(expr) {
            open.extend(operands);
            continue;
        }
        let Ok(copies) = graph.copies_of_all(expr) else {
            continue; // The error is reported when the expression is traced for loading.
        };
        for copy in copies {
            match copy.from {
                Leaf::Source(source) => reads.entry(source).or_default().push(copy),
                Leaf::Computed(expr) => open.push(expr),
                Leaf::Fill(_) => {}
            }
        }
    }
    reads.retain(|source, _| !whole.contains(graph.expr_of(*source)));
    reads
}

/// Copies with more contiguous ranges than this are counted with a bitmap instead.
const MAX_RUNS: u64 = 1 << 20;

/// The largest bitmap, in bits.
const MAX_BITS: u64 = 1 << 27;

/// The number of distinct elements of a tensor that these copies read; `None` if it is too
/// expensive to count.
fn elements_read(copies: &[ElementCopy], elements: u64) -> Option<u64> {
    let runs: Vec<Runs> = copies.iter().map(Runs::of).collect();
    if runs.iter().any(|it| it.length == elements) {
        return Some(elements);
    }
    let count = runs.iter().try_fold(0u64, |sum, it| sum.checked_add(it.count()));
    if count.is_some_and(|count| count <= MAX_RUNS) {
        let mut intervals = Vec::new();
        runs.iter().for_each(|it| it.each(|start| intervals.push((start, start + it.length))));
        return Some(union(intervals));
    }
    let unit = runs.iter().fold(0, |unit, it| it.common_divisor(unit));
    let bits = elements.div_ceil(unit);
    if bits > MAX_BITS {
        return None;
    }
    let mut read = vec![0u64; bits.div_ceil(64) as usize];
    for it in &runs {
        it.each(|start| {
            for bit in start / unit..(start + it.length) / unit {
                read[(bit / 64) as usize] |= 1 << (bit % 64);
            }
        });
    }
    let ones: u64 = read.iter().map(|word| u64::from(word.count_ones())).sum();
    Some(ones * unit)
}

/// The elements that one copy reads: contiguous ranges of one length, in nested loops.
struct Runs {
    start: u64,
    length: u64,
    loops: Vec<Loop>,
}

impl Runs {
    fn of(copy: &ElementCopy) -> Runs {
        let mut runs = Runs { start: copy.source_offset, length: 1, loops: Vec::new() };
        // In order of source stride: a loop that continues where a range ends makes the range
        // longer.
        let mut loops = copy.loops.clone();
        loops.sort_by_key(|it| it.source_stride);
        for it in loops {
            match runs.loops.is_empty() && it.source_stride == runs.length {
                true => runs.length *= it.count,
                false => runs.loops.push(it),
            }
        }
        runs
    }

    fn count(&self) -> u64 {
        self.loops.iter().fold(1, |count, it| count.saturating_mul(it.count))
    }

    /// Calls `f` with the first element of each range.
    fn each(&self, mut f: impl FnMut(u64)) {
        for iteration in 0..self.count() {
            let (mut rest, mut start) = (iteration, self.start);
            for it in &self.loops {
                start += rest % it.count * it.source_stride;
                rest /= it.count;
            }
            f(start);
        }
    }

    fn common_divisor(&self, other: u64) -> u64 {
        let strides = self.loops.iter().map(|it| it.source_stride);
        strides.chain([self.start, self.length]).fold(other, greatest_common_divisor)
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => greatest_common_divisor(b, a % b),
    }
}

fn union(mut intervals: Vec<(u64, u64)>) -> u64 {
    intervals.sort_unstable();
    let (mut total, mut reached) = (0, 0);
    for (start, end) in intervals {
        total += end.max(reached) - start.max(reached);
        reached = reached.max(end);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;
    use meshgrad_ckpt_crash::SplitMix64;

    /// A random expression of one or two of these, each [6, 4].
    fn made_of(graph: &mut Graph, of: &[Expr], rng: &mut SplitMix64) -> Expr {
        let mut pick = || of[rng.below(of.len() as u64) as usize];
        let (a, b) = (pick(), pick());
        let rows = rng.below(6);
        let made = match rng.below(8) {
            0 => graph.concat(&[a, b], 1).and_then(|it| graph.slice(it, 1, (2, 4, 1))),
            1 => graph.stack(&[a, b], 0).and_then(|it| graph.select(it, 0, rows % 2)),
            2 => graph.slice(a, 0, (0, 3, 2)).and_then(|it| graph.concat(&[it, it], 0)),
            3 => graph.transpose(a, 0, 1).and_then(|it| {
                let rows = graph.unflatten(it, 1, 3)?;
                let flat = graph.flatten(rows, 1)?;
                graph.transpose(flat, 0, 1)
            }),
            4 => graph.slice(a, 0, (0, rows, 1)).and_then(|top| {
                let rest = graph.slice(b, 0, (rows, 6 - rows, 1))?;
                graph.concat(&[top, rest], 0)
            }),
            5 => graph.scale(a, 0.5),
            6 => graph.slice(a, 1, (0, 2, 1)).and_then(|it| graph.pad(it, 1, 4, 0.0)),
            _ => Ok(a),
        };
        made.unwrap()
    }

    /// Usage derived from the operations matches usage derived from traced copies.
    #[test]
    fn usage_by_operations_matches_usage_by_copies() {
        for seed in 0..500 {
            let (mut rng, mut graph) = (SplitMix64::new(seed), Graph::new());
            let names = ["x", "y", "z"].iter();
            let sources = names.map(|name| graph.source(name, Dtype::F32, &[6, 4]).unwrap());
            let mut exprs: Vec<Expr> = sources.collect();
            for _ in 0..1 + rng.below(6) {
                let more = made_of(&mut graph, &exprs, &mut rng);
                exprs.push(more);
            }
            let made = exprs[exprs.len() - 2..].to_vec();

            let mut traced: BTreeMap<SourceId, Vec<ElementCopy>> = BTreeMap::new();
            for copy in made.iter().flat_map(|expr| graph.copies_of_all(*expr).unwrap()) {
                if let Leaf::Source(source) = copy.from {
                    traced.entry(source).or_default().push(copy);
                }
            }
            let count = |copies: &Vec<ElementCopy>| elements_read(copies, 24).unwrap();
            let partly = partly_read(&graph, made);
            for (source, copies) in &traced {
                let usage = partly.get(source).map_or(24, count);
                assert_eq!(usage, count(copies), "{seed}: {}", graph.name(*source));
            }
            assert!(partly.keys().all(|source| traced.contains_key(source)), "{seed}");
        }
    }

    /// Reads every second row, and the first columns of all rows. Counts by ranges and by bitmap
    /// equal counts by hand.
    #[test]
    fn elements_read_twice_count_once() {
        for (rows, columns) in [(6u64, 5u64), (4096, 1024)] {
            let mut graph = Graph::new();
            let x = graph.source("x", Dtype::U8, &[rows, columns]).unwrap();
            let second = graph.slice(x, 0, (0, rows / 2, 2)).unwrap();
            let transposed = graph.transpose(x, 0, 1).unwrap();
            let first = graph.slice(transposed, 0, (0, 2, 1)).unwrap();

            let mut copies = graph.copies(second, &[0..rows / 2, 0..columns]).unwrap();
            assert_eq!(elements_read(&copies, rows * columns), Some(rows / 2 * columns));
            copies.extend(graph.copies(first, &[0..2, 0..rows]).unwrap());
            let expected = rows / 2 * columns + rows / 2 * 2;
            assert_eq!(elements_read(&copies, rows * columns), Some(expected));

            let many = vec![copies; 600].concat();
            assert_eq!(elements_read(&many, rows * columns), Some(expected));
        }
    }
}
