//! Reductions over any dims: sum, mean, max, min.

use meshgrad_error::ensure;
use meshgrad_kernels::reduce_op::ReduceOp;
use meshgrad_mesh::{Reduction as Partial, ShardingRule};

use crate::cpu::reduce::{self as kernels, Fold};
use crate::launch::reduce as launch;
use crate::{Element, Float, Result, Shape, Signature, Tensor, Wide, for_float};

static SUM: Signature = Signature::new("sum", "x: F[*] -> y: F[*]", 1).linear_in(&["x"]);
static MEAN: Signature = Signature::new("mean", "x: F[*] -> y: F[*]", 1).linear_in(&["x"]);
static MAX: Signature = Signature::new("max", "x: F[*] -> y: F[*]", 1);
static MIN: Signature = Signature::new("min", "x: F[*] -> y: F[*]", 1);

pub(super) static SIGNATURES: &[&Signature] = &[&SUM, &MEAN, &MAX, &MIN];

/// The sum over `dims`, accumulated in f32 (f64 for f64) and rounded once.
///
/// # Shapes
/// `x` any shape, float; returns `x`'s shape without `dims`, and `x`'s dtype.
///
/// # Errors
/// When there is no such dim; for a repeated dim.
pub fn sum(x: &Tensor, dims: &[isize]) -> Result<Tensor> {
    reduce(
        &SUM,
        x,
        dims,
        Reduction { merge: ReduceOp::Add, scale: 1.0, partial: Some(Partial::Sum) },
    )
}

/// The mean over `dims`; NaN if there are no elements.
///
/// # Shapes
/// As [`sum`].
///
/// # Errors
/// As [`sum`].
pub fn mean(x: &Tensor, dims: &[isize]) -> Result<Tensor> {
    let (_, reduced) = split_dims(MEAN.name(), x, dims)?;
    let count: usize = reduced.iter().map(|dim| x.shape()[*dim]).product();
    reduce(
        &MEAN,
        x,
        dims,
        Reduction { merge: ReduceOp::Add, scale: 1.0 / count as f64, partial: Some(Partial::Avg) },
    )
}

/// The maximum over `dims`; minus infinity if there are no elements, NaN if any element is NaN.
///
/// # Shapes
/// As [`sum`].
///
/// # Errors
/// As [`sum`].
pub fn max(x: &Tensor, dims: &[isize]) -> Result<Tensor> {
    reduce(
        &MAX,
        x,
        dims,
        Reduction { merge: ReduceOp::Max, scale: 1.0, partial: Some(Partial::Max) },
    )
}

/// The minimum over `dims`; infinity if there are no elements, NaN if any element is NaN.
///
/// # Shapes
/// As [`sum`].
///
/// # Errors
/// As [`sum`].
pub fn min(x: &Tensor, dims: &[isize]) -> Result<Tensor> {
    reduce(&MIN, x, dims, Reduction { merge: ReduceOp::Min, scale: 1.0, partial: None })
}

/// The gradient of broadcasting `shape` to `x`'s shape: sums `x` over the dims that were broadcast.
///
/// # Shapes
/// `shape` must broadcast to `x`'s shape; returns `shape`. Both are global shapes.
///
/// # Errors
/// When the shape does not broadcast.
pub fn sum_to(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let from = x.global_shape();
    if *from == *shape {
        return Ok(x.clone());
    }
    let fits = Shape::broadcast(shape, &from).is_some_and(|common| common == from);
    ensure!(
        fits,
        Invalid,
        "broadcast: shape {} does not broadcast to {from:?}; aligned at the last dim, each dim \
         must be equal or 1",
        Shape::new(shape)?
    );

    let new_dims = from.len() - shape.len();
    let repeated = |dim: &usize| *dim < new_dims || shape[dim - new_dims] != from[*dim];
    let dims: Vec<usize> = (0..from.len()).filter(repeated).collect();
    let signed: Vec<isize> = dims.iter().map(|dim| *dim as isize).collect();
    let mut sums = sum(x, &signed)?;
    for dim in dims.into_iter().filter(|dim| *dim >= new_dims) {
        sums = sums.unsqueeze(dim - new_dims)?;
    }
    Ok(sums)
}

#[derive(Clone, Copy)]
struct Reduction {
    merge: ReduceOp,
    scale: f64,
    /// How the results of ranks are combined if a reduced dim is sharded.
    partial: Option<Partial>,
}

fn reduce(
    signature: &'static Signature,
    x: &Tensor,
    dims: &[isize],
    how: Reduction,
) -> Result<Tensor> {
    let (kept, reduced) = split_dims(signature.name(), x, dims)?;
    let mut call = signature.call_with(&[x], &reduced, || {
        ShardingRule::reduction(signature.name(), x.shape().len(), &reduced, how.partial)
    })?;
    let shape_of =
        |dims: &[usize]| -> Vec<usize> { dims.iter().map(|dim| x.shape()[*dim]).collect() };
    let mut y = call.output_of(Shape::new(&shape_of(&kept))?, x.dtype())?;

    if call.device().is_gpu() {
        let how = launch::How { merge: how.merge, scale: how.scale as f32 };
        launch::reduce(&call, x, &reduced, how, &y)?;
        return Ok(y.finish());
    }

    let count: usize = shape_of(&reduced).iter().product();
    // If all kept dims are inside the reduced ones, `x` is a matrix whose columns are folded, row
    // by row. Otherwise each result folds one row.
    let innermost_kept = kept.last().is_some_and(|last| reduced.iter().all(|dim| dim < last));
    let by_columns = innermost_kept && !reduced.is_empty() && kept_is_one_run(&kept, &reduced);
    let order = if by_columns { [reduced, kept].concat() } else { [kept, reduced].concat() };
    let x = x.local().permute(&order)?;
    call.compute(|| {
        for_float!(x.dtype(), T => match how.merge {
            ReduceOp::Add => fold::<T, _>(&x, count, by_columns, y.slice()?, how, |a, b| a + b),
            ReduceOp::Max => fold::<T, _>(&x, count, by_columns, y.slice()?, how, larger),
            ReduceOp::Min => fold::<T, _>(&x, count, by_columns, y.slice()?, how, |a, b| -larger(-a, -b)),
        })
    })?;
    Ok(y.finish())
}

/// Whether all kept dims are inside all reduced ones, so that they form the rows of a matrix.
fn kept_is_one_run(kept: &[usize], reduced: &[usize]) -> bool {
    kept.first().zip(reduced.last()).is_some_and(|(kept, reduced)| reduced < kept)
}

fn fold<T: Float, M: Fn(T::Wide, T::Wide) -> T::Wide + Sync>(
    x: &Tensor,
    count: usize,
    by_columns: bool,
    out: &mut [T],
    how: Reduction,
    merge: M,
) -> Result<()> {
    let fold = Fold { start: T::Wide::from_f64(how.merge.identity().into()), merge };
    let scale = T::Wide::from_f64(how.scale);
    match by_columns {
        true => kernels::columns(x, count, out, &fold, |folded| folded * scale),
        false => kernels::rows(x, count, out, &fold, |folded| folded * scale),
    }
}

/// The larger of two; NaN if either is NaN.
#[inline(always)]
fn larger<W: Wide>(a: W, b: W) -> W {
    if a >= b {
        a
    } else if b > a {
        b
    } else {
        a + b
    }
}

/// The kept dims and the dims in `dims`, each in ascending order.
pub(super) fn split_dims(
    op: &'static str,
    x: &Tensor,
    dims: &[isize],
) -> Result<(Vec<usize>, Vec<usize>)> {
    let mut reduced = Vec::with_capacity(dims.len());
    for &dim in dims {
        let at = x.dim(op, dim)?;
        ensure!(!reduced.contains(&at), Invalid, "{op}: dim {at} is repeated in {dims:?}");
        reduced.push(at);
    }
    reduced.sort_unstable();

    let kept = (0..x.shape().len()).filter(|dim| !reduced.contains(dim)).collect();
    Ok((kept, reduced))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Device;
    use crate::assert_error;

    proptest! {
        /// A reduction over any dims, even of a transposed view, equals a loop over the elements.
        #[test]
        fn sums_and_extremes_over_any_dims(
            shape in prop::collection::vec(1usize..6, 1..5),
            chosen in prop::collection::vec(any::<bool>(), 5),
            swap in (0usize..5, 0usize..5),
        ) {
            let device = Device::cpu();
            let count: usize = shape.iter().product();
            let values: Vec<f64> = (0..count).map(|i| ((i * 37) % 101) as f64 - 50.0).collect();
            let x = Tensor::from_slice(&device, &shape, &values).unwrap();
            let (a, b) = (swap.0 % shape.len(), swap.1 % shape.len());
            let x = x.transpose(a as isize, b as isize).unwrap();
            let dims: Vec<isize> = (0..shape.len()).filter(|d| chosen[*d]).map(|d| d as isize).collect();

            let (kept, _) = split_dims("test", &x, &dims).unwrap();
            let kept_shape: Vec<usize> = kept.iter().map(|dim| x.shape()[*dim]).collect();
            let mut sums = vec![0.0; kept_shape.iter().product()];
            let mut largest = vec![f64::NEG_INFINITY; sums.len()];
            for (at, value) in x.to_vec::<f64>().unwrap().into_iter().enumerate() {
                let place = kept.iter().fold(0, |place, &dim| {
                    let inner: usize = x.shape()[dim + 1..].iter().product();
                    place * x.shape()[dim] + at / inner % x.shape()[dim]
                });
                sums[place] += value;
                largest[place] = largest[place].max(value);
            }

            prop_assert_eq!(sum(&x, &dims).unwrap().to_vec::<f64>().unwrap(), sums);
            prop_assert_eq!(max(&x, &dims).unwrap().to_vec::<f64>().unwrap(), largest);
        }
    }

    #[test]
    fn nothing_to_reduce() {
        let device = Device::cpu();
        let x = Tensor::from_slice::<f32>(&device, &[2, 0], &[]).unwrap();
        assert_eq!(sum(&x, &[1]).unwrap().to_vec::<f32>().unwrap(), [0.0, 0.0]);
        assert_eq!(max(&x, &[-1]).unwrap().to_vec::<f32>().unwrap(), [f32::NEG_INFINITY; 2]);
        assert!(mean(&x, &[1]).unwrap().to_vec::<f32>().unwrap()[0].is_nan());
        assert_eq!(sum(&x, &[0]).unwrap().shape().to_vec(), [0]);
    }

    /// The order in which elements are added depends only on the shape.
    #[test]
    fn bits_do_not_depend_on_threads() {
        let sums = |threads: usize| {
            let device = Device::cpu_with_threads(threads).unwrap();
            let values: Vec<f32> = (0..300_000).map(|i| (i as f32 * 0.37).sin()).collect();
            device.run(|| {
                let x = Tensor::from_slice(&device, &[300, 1000], &values).unwrap();
                let all = sum(&x, &[0, 1]).unwrap().to_vec::<f32>().unwrap();
                let down = sum(&x, &[0]).unwrap().to_vec::<f32>().unwrap();
                let across = mean(&x, &[1]).unwrap().to_vec::<f32>().unwrap();
                [all, down, across].concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            })
        };
        assert_eq!(sums(1), sums(2));
        assert_eq!(sums(1), sums(5));
    }

    #[test]
    fn the_gradient_of_broadcasting() {
        let device = Device::cpu();
        let x = Tensor::from_slice(&device, &[2, 2, 3], &[1.0f32; 12]).unwrap();
        let y = sum_to(&x, &[2, 1]).unwrap();
        assert_eq!((y.shape().to_vec(), y.to_vec::<f32>().unwrap()), (vec![2, 1], vec![6.0; 2]));
        assert_error(sum_to(&x, &[4]), "does not broadcast to");
    }
}
