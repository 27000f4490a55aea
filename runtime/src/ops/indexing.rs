//! Concatenation, splitting and indexing.
//!
//! Sums over repeated indices accumulate in index order, in f32 (f64 for f64), and round once, so
//! every run gives the same bits.

use std::borrow::Cow;

use meshgrad_error::{bail, ensure};
use meshgrad_mesh::ShardingRule;

use crate::core::arguments::indexed::IndexRange;
use crate::core::sharding::views;
use crate::cpu::indexing::{self as kernels, IndexedDim, IndexedLayout};
use crate::cpu::moe::check_indices;
use crate::cpu::rows::Flat;
use crate::launch;
use crate::launch::Launcher;
use crate::launch::elementwise::Target;
use crate::launch::index_sums::Rows;
use crate::ops::{cast, contiguous, reshape};
use crate::{
    Call, DType, Float, ReadGuard, Result, Shape, ShardedShape, Signature, Tensor, UninitTensor,
    for_any, for_float,
};

static CONCAT: Signature = Signature::new("concat", "first: T[*], other: T[*] -> y: T[*]", 0)
    .linear_in(&["first + other"]);
static INDEX_SELECT: Signature =
    Signature::new("index_select", "x: T[*], ids: I[m] -> y: T[*]", 0).linear_in(&["x"]);
static INDEX_SELECT_GRAD: Signature =
    Signature::new("index_select_grad", "dy: F[*], ids: I[m] -> dx: F[*]", 0).linear_in(&["dy"]);
static GATHER: Signature =
    Signature::new("gather", "x: T[*], index: I[*] -> y: T[*]", 0).linear_in(&["x"]);
static SCATTER_ADD: Signature =
    Signature::new("scatter_add", "src: F[..], index: I[..] -> y: F[*]", 0).linear_in(&["src"]);

pub(super) static SIGNATURES: &[&Signature] =
    &[&CONCAT, &INDEX_SELECT, &INDEX_SELECT_GRAD, &GATHER, &SCATTER_ADD];

/// Concatenates `tensors` along dim `dim`, which counts from the back when negative. Its gradient
/// is [`split`].
///
/// # Shapes
/// `tensors` of one dtype and equal extents except in `dim`; returns the sum of their extents in
/// `dim`. If they have the same shards of `dim` and equal extents, the result has these shards in
/// blocks, one block per tensor.
///
/// # Errors
/// For no tensors; when there is no such dim; when the operands are on several devices.
pub fn concat(tensors: &[&Tensor], dim: isize) -> Result<Tensor> {
    let Some(&first) = tensors.first() else {
        bail!(Invalid, "{}: needs at least one tensor", CONCAT.name());
    };
    let dim = first.dim(CONCAT.name(), dim)?;
    let mut extents = first.shape().to_vec();
    extents[dim] = 0;
    let blocks = first.is_sharded(dim)
        && tensors.iter().all(|x| x.global_shape().get(dim) == first.global_shape().get(dim));
    let mut tag = None;
    for &other in tensors {
        let ndim = first.shape().len();
        let call =
            CONCAT.call_with(&[first, other], &[dim, usize::from(blocks)], || match blocks {
                true => ShardingRule::stack(CONCAT.name(), 2, ndim, dim),
                false => ShardingRule::concat(CONCAT.name(), 2, ndim, dim),
            })?;
        extents[dim] += checked_extent(first, other, dim)?;
        if !blocks {
            tag = call.result_tag(0, &Shape::new(&extents)?)?;
        }
    }
    if blocks {
        tag = first.tag().map(|tag| views::in_blocks(tag, dim, tensors.len())).transpose()?;
    }

    let shape = Shape::new(&extents)?;
    let inner: usize = extents[dim + 1..].iter().product();
    let widths: Vec<usize> = tensors.iter().map(|x| x.shape()[dim] * inner).collect();
    let device = first.device();
    let mut y = UninitTensor::new(device, shape, first.dtype())?;
    y.set_tag(tag);
    device.count(0, 2 * first.dtype().bytes(shape.elements()) as u64);
    if device.is_gpu() {
        let mut start = 0;
        for x in tensors {
            let gpu = Launcher::new(CONCAT.name(), device);
            let range = start..start + x.shape()[dim];
            start = range.end;
            launch::copies::copy(&gpu, x, &Target::part(&gpu, &y, dim, range)?)?;
        }
        return Ok(y.finish());
    }
    if device.computes() {
        device.recorded(
            CONCAT.name(),
            || for_any!(first.dtype(), T => kernels::concat::<T>(tensors, &widths, y.slice()?)),
        )?;
    }
    Ok(y.finish())
}

/// The extent of `other` in `dim`, after checking that it agrees with `first` in all other dims.
fn checked_extent(first: &Tensor, other: &Tensor, dim: usize) -> Result<usize> {
    let (shape, wanted) = (other.shape(), first.shape());
    let agrees = |at: usize| at == dim || shape[at] == wanted[at];
    match shape.len() == wanted.len() && (0..wanted.len()).all(agrees) {
        true => Ok(shape[dim]),
        false => {
            let problem = format!("all extents except those of dim {dim} must be equal");
            Err(CONCAT.error(&[first, other], problem))
        }
    }
}

/// Splits `x` along dim `dim` into views of extents `sizes`. Copies nothing.
///
/// A sharded dim can be split into equal parts if it is sharded in blocks of one part.
///
/// # Errors
/// When there is no such dim; when `sizes` do not sum to the extent; when the shardings do not fit.
pub fn split(x: &Tensor, sizes: &[usize], dim: isize) -> Result<Vec<Tensor>> {
    let at = x.dim("split", dim)?;
    let total = sizes.iter().try_fold(0usize, |total, size| total.checked_add(*size));
    let shape = x.global_shape();
    ensure!(
        total == Some(shape[at]),
        Invalid,
        "split: sizes {sizes:?} must sum to the extent of dim {at} of {shape}"
    );

    if let [size, ..] = sizes
        && x.is_sharded(at)
        && sizes.iter().all(|other| other == size)
    {
        let (before, after) = (&shape[..at], &shape[at + 1..]);
        let blocks = reshape(x, &[before, &[sizes.len(), *size], after].concat())?;
        let block = |index: usize| {
            let block = blocks.slice(at as isize, index..index + 1)?;
            reshape(&block, &[before, &[*size], after].concat())
        };
        return (0..sizes.len()).map(block).collect();
    }

    let mut start = 0;
    let part = |size: &usize| {
        start += size;
        x.slice(at as isize, start - size..start)
    };
    sizes.iter().map(part).collect()
}

/// Selects slices along dim `dim`: y[.., j, ..] = x[.., ids\[j\], ..].
///
/// # Shapes
/// `x` any shape and dtype with at least one dim, `ids` \[M\] of an index dtype; returns `x`'s
/// shape with M in `dim`. If dim `dim` of `x` is sharded, each rank selects the ids in its range
/// and has zeros for the others: the result is a partial sum.
///
/// # Errors
/// When there is no such dim; when an index is out of range.
pub fn index_select(x: &Tensor, dim: isize, ids: &Tensor) -> Result<Tensor> {
    let dim = x.dim(INDEX_SELECT.name(), dim)?;
    let mut call = INDEX_SELECT.call_with(&[x, ids], &[dim], || {
        ShardingRule::index_select(INDEX_SELECT.name(), x.shape().len(), dim)
    })?;
    let middle = indexed_dim(x.shape(), dim);
    let range = x.sharded_shape().indices(call.name(), dim)?;
    let mut y = call.output_of(with_extent(x.shape(), dim, ids.elements())?, x.dtype())?;

    let x = contiguous(x)?;
    if call.device().is_gpu() {
        let ids = contiguous(ids)?;
        call.launch(|gpu| launch::indexing::select(gpu, &x, (dim, range), &ids, &y))?;
        return Ok(y.finish());
    }
    let ids = as_i64(ids)?;
    call.compute(|| {
        let ids = Flat::new(&ids)?;
        let ids = checked(&call, &ids, range, middle.extent)?;
        for_any!(x.dtype(), T => {
            kernels::index_select::<T>(&Flat::new(&x)?, middle, &ids, y.slice()?);
        });
        Ok(())
    })?;
    Ok(y.finish())
}

/// The gradient of [`index_select`]: dx[.., i, ..] is the sum of dy[.., j, ..] over the j with
/// ids\[j\] = i.
///
/// # Shapes
/// `dy` float with M in dim `dim`, `ids` \[M\]; returns `dy`'s shape with `extent` in `dim`.
///
/// # Errors
/// When there is no such dim; when an index is out of range.
pub fn index_select_grad(dy: &Tensor, dim: isize, ids: &Tensor, extent: usize) -> Result<Tensor> {
    let at = dy.dim(INDEX_SELECT_GRAD.name(), dim)?;
    let to = with_extent(&dy.global_shape(), at, extent)?;
    index_select_grad_to(dy, dim, ids, &to.into())
}

/// As [`index_select_grad`], to the shape `to` of the operand of [`index_select`], whose dim `dim`
/// can be sharded: each rank sums its own slices.
///
/// # Errors
/// As [`index_select_grad`]; when `to` differs from `dy`'s global shape in another dim.
pub fn index_select_grad_to(
    dy: &Tensor,
    dim: isize,
    ids: &Tensor,
    to: &ShardedShape,
) -> Result<Tensor> {
    let dim = dy.dim(INDEX_SELECT_GRAD.name(), dim)?;
    let call = INDEX_SELECT_GRAD.call_to(&[dy, ids], to, &[dim], || {
        ShardingRule::index_select_grad(INDEX_SELECT_GRAD.name(), dy.shape().len(), dim)
    })?;
    let whole = dy.global_shape();
    if to.len() != whole.len() || **to != whole.with(dim, to[dim]) {
        let problem = format!(
            "`to` is {}, but `dy` has the global shape {whole}: only dim {dim} may differ; pass the \
             shape of the operand of index_select",
            &**to
        );
        return Err(INDEX_SELECT_GRAD.error(&[dy, ids], problem));
    }
    let (extent, range) = (to.local()[dim], to.indices(call.name(), dim)?);
    if dy.shape()[dim] != ids.elements() {
        let problem = format!("`dy` needs extent {} in dim {dim}, one per id", ids.elements());
        return Err(INDEX_SELECT_GRAD.error(&[dy, ids], problem));
    }
    let shape = with_extent(dy.shape(), dim, extent)?;
    let mut call = call.with_flops(dy.elements() as u64);
    if call.device().is_gpu() {
        let rows = Rows {
            numbers: Shape::new(&[extent])?,
            dim: 0,
            range,
            outer: shape[..dim].iter().product(),
            inner: shape[dim + 1..].iter().product(),
            every: true,
        };
        let (dy, dx) = (contiguous(dy)?, call.output_of(shape, dy.dtype())?);
        call.launch(|gpu| {
            let to = Target::uninit(gpu, &dx)?;
            launch::index_sums::sum_rows(gpu, &call, [&dy, ids], &rows, &to)
        })?;
        return Ok(dx.finish());
    }
    let mut sum = RoundedOnce::new(&mut call, shape, dy.dtype())?;

    let (dy, ids) = (contiguous(dy)?, as_i64(ids)?);
    call.compute(|| {
        let ids = Flat::new(&ids)?;
        let ids = checked(&call, &ids, range, extent)?;
        for_float!(dy.dtype(), T => {
            let dy = Flat::<T>::new(&dy)?;
            sum.fill::<T>(|sum| kernels::index_add::<T>(&dy, indexed_dim(&shape, dim), &ids, sum))
        })
    })?;
    Ok(sum.out.finish())
}

/// Gathers along dim `dim`: y\[c\] = x\[c'\], where c' is c with index\[c\] as coordinate `dim`.
///
/// # Shapes
/// `x` any dtype; `index` of an index dtype with the same number of dims and extents at most those
/// of `x`, except in `dim`; returns `index`'s shape and `x`'s dtype. If dim `dim` of `x` is
/// sharded, each rank has zeros for the indices of others: the result is a partial sum.
///
/// # Errors
/// When there is no such dim; when an index is out of range.
pub fn gather(x: &Tensor, dim: isize, index: &Tensor) -> Result<Tensor> {
    let dim = x.dim(GATHER.name(), dim)?;
    let mut call = GATHER.call_with(&[x, index], &[dim], || {
        ShardingRule::gather(GATHER.name(), &x.global_shape(), &index.global_shape(), dim)
    })?;
    check_fits(&GATHER, &[x, index], dim, x.shape())?;
    let mut y = call.output_of(*index.shape(), x.dtype())?;
    let range = x.sharded_shape().indices(call.name(), dim)?;

    if call.device().is_gpu() {
        call.launch(|gpu| launch::indexing::gather(gpu, x, (dim, range), index, &y))?;
        return Ok(y.finish());
    }
    let index = as_i64(index)?;
    call.compute(|| {
        let around = IndexedLayout::new(x.layout(), dim, index.shape());
        let index = Flat::new(&index)?;
        let index = checked(&call, &index, range, x.shape()[dim])?;
        for_any!(x.dtype(), T => {
            let x: ReadGuard<'_, T> = x.read()?;
            kernels::gather::<T>(&x, &around, &index, y.slice()?);
        });
        Ok(())
    })?;
    Ok(y.finish())
}

/// Adds `src` to zeros of `shape`: y\[c'\] += src\[c\], where c' is c with index\[c\] as coordinate
/// `dim`. If `src` is sharded, `shape` is the global shape. This is the gradient of [`gather`]; its
/// own gradient with respect to `src` is [`gather`].
///
/// # Shapes
/// `src` float and `index` of one shape, with the same number of dims as `shape` and extents at
/// most those of `shape`, except in `dim`; returns `shape`.
///
/// # Errors
/// When there is no such dim; when an index is out of range.
pub fn scatter_add(shape: &[usize], dim: isize, index: &Tensor, src: &Tensor) -> Result<Tensor> {
    scatter_add_to(&Shape::new(shape)?.into(), dim, index, src)
}

/// As [`scatter_add`], to a shape of which dim `dim` can be sharded: each rank adds the elements
/// with indices in its range.
///
/// # Errors
/// As [`scatter_add`].
pub fn scatter_add_to(
    to: &ShardedShape,
    dim: isize,
    index: &Tensor,
    src: &Tensor,
) -> Result<Tensor> {
    let dim = src.dim(SCATTER_ADD.name(), dim)?;
    let call = SCATTER_ADD.call_to(&[src, index], to, &[&[dim], &to[..]].concat(), || {
        ShardingRule::scatter_add(SCATTER_ADD.name(), to, &index.global_shape(), dim)
    })?;
    let shape = match to.sharding() {
        Some(_) => *to.local(),
        None => local_shape(to, dim, src)?,
    };
    check_fits(&SCATTER_ADD, &[src, index], dim, &shape)?;
    let range = to.indices(call.name(), dim)?;
    let mut call = call.with_flops(src.elements() as u64);
    if call.device().is_gpu() {
        let rows = Rows { numbers: shape, dim, range, outer: 1, inner: 1, every: true };
        let (src, y) = (contiguous(src)?, call.output_of(shape, src.dtype())?);
        call.launch(|gpu| {
            let to = Target::uninit(gpu, &y)?;
            launch::index_sums::sum_rows(gpu, &call, [&src, index], &rows, &to)
        })?;
        return Ok(y.finish());
    }
    let mut sum = RoundedOnce::new(&mut call, shape, src.dtype())?;

    let (src, index) = (contiguous(src)?, as_i64(index)?);
    call.compute(|| {
        let around = IndexedLayout::new(&crate::Layout::contiguous(shape, 0), dim, index.shape());
        let slabs = if dim == 0 { [1, 1] } else { [shape[0], index.shape()[0]] };
        let index = Flat::new(&index)?;
        let index = checked(&call, &index, range, shape[dim])?;
        for_float!(src.dtype(), T => {
            let src = Flat::<T>::new(&src)?;
            sum.fill::<T>(|sum| kernels::scatter_add::<T>(&src, &around, &index, slabs, sum))
        })
    })?;
    Ok(sum.out.finish())
}

/// The local shape of a result with the global shape `global`. Dims other than `dim` that have the
/// same extent in `like` are sharded as in `like`.
fn local_shape(global: &[usize], dim: usize, like: &Tensor) -> Result<Shape> {
    let mut shape = Shape::new(global)?;
    let (whole, part) = (like.global_shape(), like.shape());
    for at in (0..global.len().min(part.len())).filter(|at| *at != dim) {
        if global[at] == whole[at] {
            shape = shape.with(at, part[at]);
        }
    }
    Ok(shape)
}

/// Checks that the index, the last operand, fits into `shape` in all dims except `dim`.
fn check_fits(
    signature: &Signature,
    operands: &[&Tensor; 2],
    dim: usize,
    shape: &Shape,
) -> Result<()> {
    let index = operands[1].shape();
    let fits = |at: usize| at == dim || index[at] <= shape[at];
    match index.len() == shape.len() && (0..index.len()).all(fits) {
        true => Ok(()),
        false => {
            let problem = format!("`index` must not be larger than {shape}, except in dim {dim}");
            Err(signature.error(operands, problem))
        }
    }
}

fn indexed_dim(shape: &Shape, dim: usize) -> IndexedDim {
    IndexedDim { extent: shape[dim], inner: shape[dim + 1..].iter().product() }
}

fn with_extent(shape: &Shape, dim: usize, extent: usize) -> Result<Shape> {
    let mut extents = shape.to_vec();
    extents[dim] = extent;
    Shape::new(&extents)
}

fn as_i64(ids: &Tensor) -> Result<Tensor> {
    contiguous(&cast(ids, DType::I64)?)
}

/// The positions of `ids` among the `extent` indices of `range`; negative for those of other ranks.
fn checked<'a>(
    call: &Call,
    ids: &'a [i64],
    range: IndexRange,
    extent: usize,
) -> Result<Cow<'a, [i64]>> {
    check_indices(call.name(), ids, range.total, false)?;
    if extent == range.total {
        return Ok(Cow::Borrowed(ids));
    }
    let position = |id: &i64| range.position(*id, extent).map_or(-1, |at| at as i64);
    Ok(ids.iter().map(position).collect())
}

/// A result and, if its dtype is not its accumulator dtype, a workspace to accumulate in.
struct RoundedOnce {
    out: UninitTensor,
    wide: Option<UninitTensor>,
}

impl RoundedOnce {
    fn new(call: &mut Call, shape: Shape, dtype: DType) -> Result<RoundedOnce> {
        let (out, wide) = (call.output_of(shape, dtype)?, dtype.accumulator());
        let needed = wide != dtype;
        let wide = needed.then(|| call.workspace(shape.elements(), wide)).transpose()?;
        Ok(RoundedOnce { out, wide })
    }

    /// Calls `sum`, which must write every element, and rounds the sums to the result's dtype.
    fn fill<T: Float>(&mut self, sum: impl FnOnce(&mut [T::Wide])) -> Result<()> {
        let Some(wide) = &mut self.wide else {
            sum(self.out.slice()?);
            return Ok(());
        };
        sum(wide.slice()?);
        kernels::narrow::<T>(wide.slice()?, self.out.slice()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
