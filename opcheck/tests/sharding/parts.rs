//! Parts of global tensors, and their assembly.

use std::collections::HashMap;

use approx::relative_eq;
use meshgrad_mesh::{IndexSet, Placement, Reduction, Region, Sharding};
use meshgrad_runtime::{DType, Tensor, ops};

/// The part of `rank` of `x`. Partial values are small integers, except those of the first rank,
/// which has the rest.
pub(crate) fn part(x: &Tensor, sharding: &Sharding, rank: usize) -> Tensor {
    let mut local = x.clone();
    for (dim, own) in sharding.region(rank).unwrap().dims().iter().enumerate() {
        let ids: Vec<i64> = indices(own).map(|index| index as i64).collect();
        let ids = Tensor::from_slice(x.device(), &[ids.len()], &ids).unwrap();
        local = ops::index_select(&local, dim as isize, &ids).unwrap();
    }
    let local = ops::contiguous(&local).unwrap();
    let local = partial(&local, sharding, rank);
    local.with_sharding(sharding, rank).unwrap()
}

/// The coordinate of `rank` along each axis with partial values, and the number of ranks there.
fn partial_coordinates(sharding: &Sharding, rank: usize) -> Vec<(usize, usize)> {
    let mesh = sharding.mesh();
    let coordinate = mesh.coordinate(rank).unwrap();
    let axes = mesh.axes().iter().zip(coordinate);
    axes.filter(|(axis, _)| matches!(sharding.placement(axis.name()), Ok(Placement::Partial(_))))
        .map(|(axis, at)| (at, axis.size()))
        .collect()
}

/// The share of `rank`: the sum over the ranks of all partial axes is `x`.
fn partial(x: &Tensor, sharding: &Sharding, rank: usize) -> Tensor {
    let axes = partial_coordinates(sharding, rank);
    let ranks: usize = axes.iter().map(|(_, size)| size).product();
    if ranks == 1 {
        return x.clone();
    }
    let own = axes.iter().fold(0, |number, (at, size)| number * size + at);
    let share = |rank: usize, at: usize| ((at * 7 + rank * 5) % 5) as f64 - 2.0;
    let values = values(x).into_iter().enumerate();
    let values = values.map(|(at, value)| match own {
        0 => value - (1..ranks).map(|rank| share(rank, at)).sum::<f64>(),
        _ => share(own, at),
    });
    tensor(x, x.shape(), &values.collect::<Vec<_>>())
}

/// A tensor of `values` on the device and in the dtype of `like`.
pub(crate) fn tensor(like: &Tensor, shape: &[usize], values: &[f64]) -> Tensor {
    let wide = Tensor::from_slice(like.device(), shape, values).unwrap();
    ops::cast(&wide, like.dtype()).unwrap()
}

/// Assembles the global tensor from the parts of ranks 0, 1, .. of one mesh. Ranks that have the
/// same part must have equal values.
pub(crate) fn assemble(parts: &[Tensor], what: &str) -> Tensor {
    let sharding = parts[0].sharding().unwrap_or_else(|| panic!("{what}: no sharding"));
    let mut shares: HashMap<_, Tensor> = HashMap::new();
    let mut whole = vec![0.0; sharding.shape().iter().product()];
    for (rank, part) in parts.iter().enumerate() {
        assert_eq!(part.sharding(), Some(sharding), "{what}: rank {rank}");
        let key = (sharding.region(rank).unwrap(), partial_coordinates(sharding, rank));
        let local = part.local();
        if let Some(same) = shares.get(&key) {
            assert_near(&local, same, 0.0, &format!("{what}: replicas of rank {rank}"));
            continue;
        }
        add_region(&mut whole, sharding.shape(), &key.0, &values(&local));
        shares.insert(key, local);
    }
    let averaged = sharding.partials().into_iter();
    let averaged = averaged.filter(|(_, reduction)| *reduction == Reduction::Avg);
    for (axis, _) in averaged {
        let ranks = sharding.mesh().axis(axis).unwrap().size() as f64;
        whole.iter_mut().for_each(|value| *value /= ranks);
    }
    tensor(&parts[0], sharding.shape(), &whole)
}

/// All indices of a set, in ascending order.
fn indices(set: &IndexSet) -> impl Iterator<Item = usize> {
    set.ranges().iter().cloned().flatten()
}

fn add_region(whole: &mut [f64], shape: &[usize], region: &Region, values: &[f64]) {
    let dims: Vec<Vec<usize>> = region.dims().iter().map(|own| indices(own).collect()).collect();
    for (at, value) in values.iter().enumerate() {
        let (mut left, mut offset, mut stride) = (at, 0, 1);
        for (dim, own) in dims.iter().enumerate().rev() {
            offset += own[left % own.len()] * stride;
            left /= own.len();
            stride *= shape[dim];
        }
        whole[offset] += value;
    }
}

fn values(x: &Tensor) -> Vec<f64> {
    ops::cast(x, DType::F64).unwrap().to_vec().unwrap()
}

/// Asserts that the values are equal, up to `tolerance`, relative and absolute.
pub(crate) fn assert_near(actual: &Tensor, expected: &Tensor, tolerance: f64, what: &str) {
    assert_eq!(actual.shape(), expected.shape(), "{what}");
    for (actual, expected) in values(actual).into_iter().zip(values(expected)) {
        let near = relative_eq!(actual, expected, epsilon = tolerance, max_relative = tolerance);
        assert!(near, "{what}: {actual} is not {expected}");
    }
}
