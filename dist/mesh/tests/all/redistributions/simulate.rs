//! Simulates ranks that hold parts of a tensor, with collectives written as their definitions.

use meshgrad_mesh::{Action, Redistribution, ReduceOp, Reduction, Region, Sharding, Step};

/// What one rank holds: an optional value per element of the global tensor, row-major.
pub(crate) type Held = Vec<Option<i64>>;

/// A tensor on all ranks of a mesh with ranks 0, 1, ...
pub(crate) struct Tensor {
    pub(crate) held: Vec<Held>,
}

/// A multiple of every divisor of a mean, so that means are integers.
const UNIT: i64 = 36 * 36;

impl Tensor {
    /// Values that depend on the element and, for partial values, on the rank's coordinate.
    pub(crate) fn at(sharding: &Sharding) -> Tensor {
        let partials: Vec<&str> = sharding.partials().iter().map(|(axis, _)| *axis).collect();
        let part = |rank: usize| -> usize {
            let along = |axis: &&str| sharding.mesh().local_rank(axis, rank).unwrap().unwrap();
            partials.iter().map(along).fold(1, |part, at| part * 7 + at)
        };
        let value = |at: usize, part: usize| {
            let mixed = (at + 1).wrapping_mul(2_654_435_761).wrapping_mul(2 * part + 1);
            ((mixed >> 3) % 97) as i64 * UNIT - 40 * UNIT
        };
        let hold = |rank: usize| {
            let inside = inside(sharding, rank);
            let filled = |(at, inside): (usize, bool)| inside.then(|| value(at, part(rank)));
            inside.into_iter().enumerate().map(filled).collect()
        };
        Tensor { held: (0..sharding.mesh().len()).map(hold).collect() }
    }

    /// The value of each element of the global tensor. Asserts that all ranks agree on it.
    pub(crate) fn value(&self, sharding: &Sharding) -> Vec<i64> {
        let len: usize = sharding.shape().iter().product();
        let partials: Vec<(&str, Reduction)> = sharding.partials();
        let axes: Vec<&str> = partials.iter().map(|(axis, _)| *axis).collect();
        let mut value: Vec<Option<i64>> = vec![None; len];
        for group in sharding.mesh().groups(&axes).unwrap() {
            for (at, value) in value.iter_mut().enumerate() {
                let parts: Option<Vec<i64>> =
                    group.ranks().iter().map(|rank| self.held[*rank][at]).collect();
                let Some(parts) = parts else { continue };
                let reduced = reduced(&parts, &partials, sharding);
                assert_eq!(*value.get_or_insert(reduced), reduced, "ranks of {sharding:?} differ");
            }
        }
        value.into_iter().map(|value| value.expect("every element is held by some rank")).collect()
    }

    /// Asserts that every rank holds exactly its region.
    pub(crate) fn check_regions(&self, sharding: &Sharding) {
        for (rank, held) in self.held.iter().enumerate() {
            let holds: Vec<bool> = held.iter().map(Option::is_some).collect();
            assert_eq!(holds, inside(sharding, rank), "rank {rank} of {sharding:?}");
        }
    }

    pub(crate) fn run(mut self, plan: &Redistribution) -> Tensor {
        for step in plan.steps() {
            self = self.step(step);
            self.check_regions(step.to());
        }
        self
    }

    fn step(&self, step: &Step) -> Tensor {
        let rank = |rank: usize| -> Held {
            let group = step.group(rank).unwrap();
            let target = inside(step.to(), rank).into_iter().enumerate();
            let members: Vec<&Held> = group.ranks().iter().map(|at| &self.held[*at]).collect();
            let mine = &self.held[rank];
            let first = group.ranks()[0] == rank;
            target
                .map(|(at, inside)| inside.then(|| element(step, &members, mine, first, at)))
                .collect()
        };
        Tensor { held: (0..self.held.len()).map(rank).collect() }
    }
}

/// The value of one element after a step.
fn element(step: &Step, members: &[&Held], mine: &Held, first: bool, at: usize) -> i64 {
    match step.action() {
        Action::Slice => mine[at].expect("a rank slices what it holds"),
        Action::MakePartial(Reduction::Sum) => match step.dims().is_empty() {
            true if first => mine[at].unwrap(),
            true => 0,
            false => mine[at].unwrap_or(0),
        },
        Action::MakePartial(_) => mine[at].unwrap(),
        Action::AllGather | Action::AllToAll => {
            let mut values = members.iter().filter_map(|held| held[at]);
            let value = values.next().expect("a rank of the group holds the element");
            assert_eq!(values.next(), None, "two ranks hold an element: {step}");
            value
        }
        Action::ReduceScatter(reduce_op) | Action::AllReduce(reduce_op) => {
            let parts: Vec<i64> = members.iter().map(|held| held[at].unwrap()).collect();
            combined(&parts, reduce_op)
        }
        other => panic!("{other} is not simulated"),
    }
}

fn combined(parts: &[i64], reduce_op: ReduceOp) -> i64 {
    match reduce_op.reduction {
        Reduction::Max => *parts.iter().max().unwrap(),
        Reduction::Sum => exact(parts.iter().sum(), reduce_op.divisor),
        other => panic!("{other} is not a collective's reduction"),
    }
}

fn reduced(parts: &[i64], partials: &[(&str, Reduction)], sharding: &Sharding) -> i64 {
    if partials.iter().any(|(_, reduction)| *reduction == Reduction::Max) {
        return *parts.iter().max().unwrap();
    }
    let means = partials.iter().filter(|(_, reduction)| *reduction == Reduction::Avg);
    let divisor = means.map(|(axis, _)| sharding.mesh().size(axis).unwrap()).product();
    exact(parts.iter().sum(), divisor)
}

fn exact(sum: i64, divisor: usize) -> i64 {
    assert_eq!(sum % divisor as i64, 0, "a mean is not an integer");
    sum / divisor as i64
}

/// For each element of the global tensor, whether it is in a rank's region.
pub(crate) fn inside(sharding: &Sharding, rank: usize) -> Vec<bool> {
    let region = sharding.region(rank).unwrap();
    let len: usize = sharding.shape().iter().product();
    (0..len).map(|at| is_inside(&region, sharding.shape(), at)).collect()
}

fn is_inside(region: &Region, shape: &[usize], at: usize) -> bool {
    let mut rest = at;
    region.dims().iter().zip(shape).rev().all(|(indices, extent)| {
        let index = rest % extent;
        rest /= extent;
        indices.ranges().iter().any(|range| range.contains(&index))
    })
}
