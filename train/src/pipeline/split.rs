//! Cuts of about equal cost.

use meshgrad_pipeline::Costs;

/// The layers of each of `stages` stages, so that the most expensive stage costs as little as possible.
/// `costs` are those of what is before the layers, of each layer, and of what follows them.
pub(crate) fn balanced(costs: &[u64], stages: usize) -> Vec<usize> {
    let layers = costs.len().saturating_sub(2);
    let mut before = vec![0u64];
    for cost in costs {
        before.push(before[before.len() - 1] + cost);
    }
    // The cost of layers start..end of stage `stage`, with the ends of the model.
    let cost = |stage: usize, start: usize, end: usize| {
        let from = if stage == 0 { 0 } else { start + 1 };
        let to = if stage + 1 == stages { layers + 2 } else { end + 1 };
        before[to] - before[from]
    };
    // By stage and number of layers up to its end: the least largest cost, and where it starts.
    let mut least = vec![vec![(u64::MAX, 0); layers + 1]; stages];
    for stage in 0..stages {
        for end in 0..=layers {
            let starts = if stage == 0 { 0..=0 } else { 0..=end };
            let of_start = starts.map(|start| {
                let earlier = if stage == 0 { 0 } else { least[stage - 1][start].0 };
                (earlier.max(cost(stage, start, end)), start)
            });
            // Of equally good cuts, the one with the most even layers is near the middle.
            let even = end * stage / (stage + 1);
            let best = of_start.min_by_key(|(cost, start)| (*cost, start.abs_diff(even)));
            least[stage][end] = best.unwrap_or((u64::MAX, 0));
        }
    }
    let (mut end, mut sizes) = (layers, vec![0; stages]);
    for stage in (0..stages).rev() {
        let (_, start) = least[stage][end];
        sizes[stage] = end - start;
        end = start;
    }
    sizes
}

/// The costs of stages of `sizes` layers, for [`Auto`](meshgrad_pipeline::Auto): both phases of a
/// backward pass have the FLOPs of the forward pass.
pub(crate) fn costs(flops: &[u64], sizes: &[usize]) -> Costs {
    let mut costs = Costs::uniform(sizes.len());
    let mean = flops.iter().sum::<u64>() as f64 / sizes.len() as f64;
    let mut start = 0;
    for (stage, size) in sizes.iter().enumerate() {
        let is_last = stage + 1 == sizes.len();
        let end = if is_last { flops.len() } else { start + size + usize::from(stage == 0) };
        let share = flops[start..end].iter().sum::<u64>() as f64 / mean;
        start = end;
        for of in [&mut costs.forward, &mut costs.input, &mut costs.weight] {
            of[stage] = share;
        }
        costs.backward[stage] = 2.0 * share;
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most expensive stage of every cut.
    fn largest(costs: &[u64], sizes: &[usize]) -> u64 {
        let mut at = 1;
        let of_stage = |(stage, size): (usize, &usize)| {
            let first = if stage == 0 { costs[0] } else { 0 };
            let last = if stage + 1 == sizes.len() { costs[costs.len() - 1] } else { 0 };
            let own: u64 = costs[at..at + size].iter().sum();
            at += size;
            first + own + last
        };
        sizes.iter().enumerate().map(of_stage).max().unwrap()
    }

    fn all(layers: usize, stages: usize) -> Vec<Vec<usize>> {
        if stages == 1 {
            return vec![vec![layers]];
        }
        let rest =
            |first| all(layers - first, stages - 1).into_iter().map(move |rest| (first, rest));
        let sizes = (0..=layers).flat_map(rest);
        sizes.map(|(first, rest)| [vec![first], rest].concat()).collect()
    }

    #[test]
    fn no_cut_has_a_smaller_largest_stage() {
        for (seed, stages) in [(1u64, 1), (2, 2), (3, 3), (5, 4), (7, 3), (11, 5)] {
            let layers = 3 + seed as usize % 5;
            let costs: Vec<u64> =
                (0..layers as u64 + 2).map(|at| (at * seed * 7 + 3) % 11).collect();
            let sizes = balanced(&costs, stages);
            assert_eq!(sizes.iter().sum::<usize>(), layers);
            let best = all(layers, stages).iter().map(|sizes| largest(&costs, sizes)).min();
            assert_eq!(Some(largest(&costs, &sizes)), best, "{costs:?} {sizes:?}");
        }
        assert_eq!(balanced(&[0, 1, 1, 1, 1, 0], 2), [2, 2]);
        assert_eq!(costs(&[1, 2, 3, 4, 2], &[2, 1]).forward, [1.0, 1.0]);
        assert_eq!(costs(&[0, 1, 1, 2, 4], &[1, 1, 1]).backward, [0.75, 0.75, 4.5]);
    }
}
