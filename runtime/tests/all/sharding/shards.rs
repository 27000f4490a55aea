//! Splits tensors over ranks, and assembles them.

use approx::relative_eq;
use meshgrad_mesh::{Division, Placement, Reduction};
use meshgrad_runtime::{DType, Tensor, ops};

/// A rank's local tensor, and the coordinates of its first element in the global tensor.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) tensor: Tensor,
    pub(crate) start: Vec<usize>,
}

impl Part {
    pub(crate) fn whole(x: &Tensor) -> Part {
        Part { tensor: x.clone(), start: vec![0; x.shape().len()] }
    }

    /// Splits the tensor along an axis of `ranks` ranks.
    pub(crate) fn along(&self, placement: &Placement, ranks: usize) -> Vec<Part> {
        let x = &self.tensor;
        let with = |tensor| Part { tensor, start: self.start.clone() };
        match placement {
            Placement::Replicate => vec![self.clone(); ranks],
            Placement::Partial(by) => partial(x, *by, ranks).into_iter().map(with).collect(),
            Placement::Shard(dim, division) => {
                let part = |rank: usize| {
                    let own = owned(division, x.shape()[*dim], ranks, rank);
                    let mut part = with(selected(x, *dim, &own));
                    part.start[*dim] += own.first().unwrap_or(&x.shape()[*dim]);
                    part
                };
                (0..ranks).map(part).collect()
            }
        }
    }
}

/// The indices of a dim that a rank has.
fn owned(division: &Division, extent: usize, ranks: usize, rank: usize) -> Vec<usize> {
    let indices = 0..extent;
    indices.filter(|index| owner(division, extent, ranks, *index) == rank).collect()
}

/// The rank that has an index of a dim.
fn owner(division: &Division, extent: usize, ranks: usize, index: usize) -> usize {
    match division {
        Division::Even => index / extent.div_ceil(ranks),
        Division::Ragged(sizes) => {
            let ends = sizes.iter().scan(0, |end, size| {
                *end += size;
                Some(*end)
            });
            ends.take_while(|end| *end <= index).count()
        }
        Division::HeadAndTail => {
            let from_front = index / extent.div_ceil(2 * ranks);
            from_front.min(2 * ranks - 1 - from_front)
        }
        Division::InBlocks { length, division } => owner(division, *length, ranks, index % length),
    }
}

fn selected(x: &Tensor, dim: usize, indices: &[usize]) -> Tensor {
    let ids: Vec<i64> = indices.iter().map(|index| *index as i64).collect();
    let ids = Tensor::from_slice(x.device(), &[ids.len()], &ids).unwrap();
    ops::index_select(x, dim as isize, &ids).unwrap()
}

/// Partial tensors that reduce to `x`. For sums and means, ranks other than 0 have small integers
/// and rank 0 has the remainder.
fn partial(x: &Tensor, reduction: Reduction, ranks: usize) -> Vec<Tensor> {
    let whole = x.to_vec::<f64>().unwrap();
    let other = |rank: usize, at: usize| ((at * 7 + rank * 5) % 5) as f64 - 2.0;
    let value = |rank: usize, (at, whole): (usize, &f64)| match reduction {
        Reduction::Max => match at % ranks == rank {
            true => *whole,
            false => whole - 3.0 - other(rank, at),
        },
        _ => {
            let times = if reduction == Reduction::Avg { ranks as f64 } else { 1.0 };
            let others: f64 = (1..ranks).map(|rank| other(rank, at)).sum();
            match rank {
                0 => whole * times - others,
                _ => other(rank, at),
            }
        }
    };
    let part = |rank: usize| {
        let values: Vec<f64> = whole.iter().enumerate().map(|at| value(rank, at)).collect();
        Tensor::from_slice(x.device(), x.shape(), &values).unwrap()
    };
    (0..ranks).map(part).collect()
}

/// Assembles the global tensor from the ranks' local tensors.
pub(crate) fn assemble(parts: &[Tensor], placement: &Placement, what: &str) -> Tensor {
    let fold = |f: fn(&Tensor, &Tensor) -> meshgrad_runtime::Result<Tensor>| {
        let rest = parts[1..].iter();
        rest.fold(parts[0].clone(), |sum, part| f(&sum, part).unwrap())
    };
    match placement {
        Placement::Replicate => {
            for part in parts {
                assert_equal(part, &parts[0], what);
            }
            parts[0].clone()
        }
        Placement::Shard(dim, division) => {
            let joined = ops::concat(&parts.iter().collect::<Vec<_>>(), *dim as isize).unwrap();
            let (extent, ranks) = (joined.shape()[*dim], parts.len());
            let owned = (0..ranks).flat_map(|rank| owned(division, extent, ranks, rank));
            let owned: Vec<usize> = owned.collect();
            let mut positions: Vec<usize> = (0..extent).collect();
            positions.sort_by_key(|position| owned[*position]);
            selected(&joined, *dim, &positions)
        }
        Placement::Partial(Reduction::Max) => fold(ops::maximum),
        Placement::Partial(Reduction::Avg) => {
            ops::affine(&fold(ops::add), 1.0 / parts.len() as f64, 0.0).unwrap()
        }
        Placement::Partial(_) => fold(ops::add),
    }
}

/// Asserts that the tensors are equal, up to the rounding of reordered sums.
pub(crate) fn assert_equal(actual: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(actual.shape(), expected.shape(), "{what}");
    assert_eq!(actual.dtype(), expected.dtype(), "{what}");
    let values = |x: &Tensor| ops::cast(x, DType::F64).unwrap().to_vec::<f64>().unwrap();
    for (actual, expected) in values(actual).into_iter().zip(values(expected)) {
        let close = relative_eq!(actual, expected, epsilon = 1e-12, max_relative = 1e-12);
        assert!(close, "{what}: {actual} is not {expected}");
    }
}
