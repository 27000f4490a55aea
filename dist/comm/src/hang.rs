//! Ranks that wait for each other: the graph of collectives that cannot complete.
//!
//! Legend: in a *stuck* collective, some members wait and others are *missing*: they have not
//! started it. It depends on the stuck collectives in which its missing members wait.

use std::collections::{BTreeMap, VecDeque};

/// A stuck collective, by the ranks of its members in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stuck {
    pub(crate) waiting: Vec<usize>,
    pub(crate) missing: Vec<usize>,
}

/// One step of a cycle: a rank waits in a stuck collective for the rank of the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) stuck: usize,
    pub(crate) rank: usize,
    pub(crate) waits_for: usize,
}

/// Which stuck collectives depend on which.
pub(crate) struct Graph<'a> {
    stuck: &'a [Stuck],
    /// Each collective's dependencies and a missing member that waits there, in ascending order.
    needs: Vec<Vec<(usize, usize)>>,
    needed_by: Vec<Vec<usize>>,
}

impl<'a> Graph<'a> {
    pub(crate) fn new(stuck: &'a [Stuck]) -> Graph<'a> {
        let mut waits_in: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, one) in stuck.iter().enumerate() {
            for rank in &one.waiting {
                waits_in.entry(*rank).or_default().push(at);
            }
        }
        let mut needed_by = vec![Vec::new(); stuck.len()];
        let mut needs = Vec::with_capacity(stuck.len());
        for (at, one) in stuck.iter().enumerate() {
            let mut of_one: BTreeMap<usize, usize> = BTreeMap::new();
            for rank in &one.missing {
                for other in waits_in.get(rank).into_iter().flatten() {
                    of_one.entry(*other).or_insert(*rank);
                }
            }
            for other in of_one.keys() {
                needed_by[*other].push(at);
            }
            needs.push(of_one.into_iter().collect());
        }
        Graph { stuck, needs, needed_by }
    }

    /// `from` and all collectives that it depends on, nearest first.
    pub(crate) fn reachable(&self, from: usize) -> Vec<usize> {
        let next = |at: usize| self.needs[at].iter().map(|(other, _)| *other).collect();
        closure(self.stuck.len(), &[from], next)
    }

    /// The collectives `on`, and all that depend on any of them.
    pub(crate) fn dependents(&self, on: &[usize]) -> Vec<usize> {
        closure(self.stuck.len(), on, |at| self.needed_by[at].clone())
    }

    /// The smallest cycle among `among`. The choice between equally small cycles does not depend on
    /// the order in which ranks got stuck.
    pub(crate) fn smallest_cycle(&self, among: &[usize]) -> Option<Vec<Step>> {
        let mut left = vec![false; self.stuck.len()];
        for at in among {
            left[*at] = true;
        }
        let mut best: Option<Vec<usize>> = None;
        let mut ends: Vec<usize> = among.to_vec();
        ends.sort_unstable();
        for start in ends.clone() {
            self.remove_ends(&mut left, &mut ends);
            if !left[start] {
                continue;
            }
            let limit = best.as_ref().map_or(usize::MAX, Vec::len);
            best = self.cycle_through(start, &left, limit).or(best);
            // All cycles through it have been seen.
            left[start] = false;
            ends = self.needed_by[start].clone();
        }
        best.map(|cycle| self.steps(&cycle))
    }

    /// Removes the candidates that depend on no remaining collective, then those that needed them.
    fn remove_ends(&self, left: &mut [bool], candidates: &mut Vec<usize>) {
        while let Some(at) = candidates.pop() {
            let is_end = left[at] && !self.needs[at].iter().any(|(other, _)| left[*other]);
            if is_end {
                left[at] = false;
                candidates.extend(&self.needed_by[at]);
            }
        }
    }

    /// The shortest cycle through `start` that is shorter than `limit`.
    fn cycle_through(&self, start: usize, left: &[bool], limit: usize) -> Option<Vec<usize>> {
        let mut from: BTreeMap<usize, usize> = BTreeMap::new();
        let mut queue = VecDeque::from([(start, 1)]);
        while let Some((at, length)) = queue.pop_front() {
            if length >= limit {
                return None;
            }
            for (other, _) in self.needs[at].iter().filter(|(other, _)| left[*other]) {
                if *other == start {
                    let mut cycle: Vec<usize> = vec![at];
                    while cycle.last() != Some(&start) {
                        cycle.extend(cycle.last().and_then(|last| from.get(last)).copied());
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                if !from.contains_key(other) {
                    from.insert(*other, at);
                    queue.push_back((*other, length + 1));
                }
            }
        }
        None
    }

    /// The ranks along a cycle of collectives.
    fn steps(&self, cycle: &[usize]) -> Vec<Step> {
        let next = |at: usize| cycle[(at + 1) % cycle.len()];
        let rank_into = |at: usize| {
            let needs = self.needs[cycle[at]].iter();
            let mut ranks = needs.filter(|(other, _)| *other == next(at));
            ranks.next().map(|(_, rank)| *rank)
        };
        let links: Vec<usize> = (0..cycle.len()).filter_map(rank_into).collect();
        let steps = cycle.iter().enumerate().zip(&links);
        steps
            .map(|((at, stuck), waits_for)| Step {
                stuck: *stuck,
                rank: links[(at + links.len() - 1) % links.len()],
                waits_for: *waits_for,
            })
            .collect()
    }
}

/// What is reached from `start`, nearest first.
fn closure(count: usize, start: &[usize], next: impl Fn(usize) -> Vec<usize>) -> Vec<usize> {
    let mut is_seen = vec![false; count];
    let mut seen: Vec<usize> = Vec::new();
    let mut queue: VecDeque<usize> = start.iter().copied().collect();
    while let Some(at) = queue.pop_front() {
        if !std::mem::replace(&mut is_seen[at], true) {
            seen.push(at);
            queue.extend(next(at));
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck(waiting: &[usize], missing: &[usize]) -> Stuck {
        Stuck { waiting: waiting.to_vec(), missing: missing.to_vec() }
    }

    fn cycle(stuck: &[Stuck]) -> Option<Vec<(usize, usize)>> {
        let all: Vec<usize> = (0..stuck.len()).collect();
        let steps = Graph::new(stuck).smallest_cycle(&all)?;
        Some(steps.iter().map(|step| (step.rank, step.waits_for)).collect())
    }

    #[test]
    fn the_smallest_cycle_is_found() {
        let chain = [stuck(&[0], &[1]), stuck(&[1], &[2]), stuck(&[2], &[3])];
        assert_eq!(cycle(&chain), None);
        assert_eq!(cycle(&[stuck(&[4], &[4])]), Some(vec![(4, 4)]));
        let two = [stuck(&[0, 3], &[1]), stuck(&[1], &[0])];
        assert_eq!(cycle(&two), Some(vec![(0, 1), (1, 0)]));
        let both = [
            stuck(&[0], &[1]),
            stuck(&[1], &[2]),
            stuck(&[2], &[0, 3]),
            stuck(&[3], &[4]),
            stuck(&[4], &[3]),
            stuck(&[5], &[0]),
        ];
        assert_eq!(cycle(&both), Some(vec![(3, 4), (4, 3)]));
        let graph = Graph::new(&both);
        assert_eq!(graph.reachable(3), [3, 4]);
        assert_eq!(graph.dependents(&[0]), [0, 2, 5, 1]);
    }

    /// Compares with all cycles of small random graphs, found by enumerating paths.
    #[test]
    fn no_cycle_is_smaller() {
        let mut random = 1u64;
        let mut draw = |limit: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % limit
        };
        for _ in 0..500 {
            let ranks = 2 + draw(6);
            let all: Vec<Stuck> = (0..ranks)
                .map(|rank| {
                    let missing = (0..ranks).filter(|_| draw(4) == 0).collect();
                    Stuck { waiting: vec![rank], missing }
                })
                .collect();
            let found = cycle(&all);
            assert_eq!(found.as_ref().map(Vec::len), smallest(&all), "{all:?}");
            for (at, (rank, waits_for)) in found.iter().flatten().enumerate() {
                let found = found.as_ref().unwrap();
                assert_eq!(found[(at + 1) % found.len()].0, *waits_for);
                assert!(all[*rank].missing.contains(waits_for));
            }
        }
    }

    fn smallest(all: &[Stuck]) -> Option<usize> {
        fn search(all: &[Stuck], path: &mut Vec<usize>, best: &mut Option<usize>) {
            for next in &all[path[path.len() - 1]].missing {
                if *next == path[0] {
                    let length = path.len();
                    *best = Some(best.map_or(length, |best| best.min(length)));
                } else if !path.contains(next) {
                    path.push(*next);
                    search(all, path, best);
                    path.pop();
                }
            }
        }
        let mut best = None;
        for start in 0..all.len() {
            search(all, &mut vec![start], &mut best);
        }
        best
    }
}
