//! Ops that fill, copy and cast.

use std::ops::Range;

use bytemuck::Zeroable;
use half::bf16;
use meshgrad_mesh::ShardingRule;

use crate::core::dtype::not_an_index;
use crate::cpu::elementwise as cpu;
use crate::cpu::{BLOCK, for_blocks, index_out_of_range};
use crate::launch::Launcher;
use crate::launch::copies::{self as launch, CONTIGUOUS};
use crate::launch::elementwise::{self, Target};
use crate::{
    DType, Device, Element, Layout, Result, Shape, Signature, Tensor, UninitTensor, for_any,
};

static CAST: Signature = Signature::new("cast", "x: T[..] -> y: U[..]", 0);
static COPY_INTO: Signature =
    Signature::new("copy_into", "x: T[..], into: T[..] -> into: T[..]", 0).linear_in(&["x"]);
static FILL_INTO: Signature = Signature::new("fill_into", "into: T[..] -> into: T[..]", 0);
static SLICE_GRAD: Signature =
    Signature::new("slice_grad", "dy: T[*] -> dx: T[*]", 0).linear_in(&["dy"]);
static COPY_AT_INTO: Signature =
    Signature::new("copy_at_into", "x: T[*], into: T[*], at: i64[1] -> into: T[*]", 0);

pub(super) static SIGNATURES: &[&Signature] =
    &[&CONTIGUOUS, &CAST, &COPY_INTO, &FILL_INTO, &SLICE_GRAD, &COPY_AT_INTO];

/// A tensor of `shape` filled with `value`, rounded to `dtype`.
///
/// # Errors
/// For too many dims; when the tensor is larger than the address space.
pub fn full(device: &Device, shape: &[usize], dtype: DType, value: f64) -> Result<Tensor> {
    let mut out = UninitTensor::new(device, Shape::new(shape)?, dtype)?;
    for_any!(dtype, T => fill(&mut out, T::from_f64(value)))?;
    out.replicated()?;
    Ok(out.finish())
}

/// Sets every element to `value`.
fn fill<T: Element>(out: &mut UninitTensor, value: T) -> Result<()> {
    if bytemuck::bytes_of(&value).iter().all(|byte| *byte == 0) {
        return out.fill_zero();
    }
    let device = out.device().clone();
    if device.is_gpu() {
        let gpu = Launcher::new("full", &device);
        return launch::fill(&gpu, value, &Target::uninit(&gpu, out)?);
    }
    if device.computes() {
        for_blocks(out.slice::<T>()?, BLOCK, |_, part| part.fill(value));
    }
    Ok(())
}

/// 0, 1, .., `count` - 1.
///
/// # Shapes
/// `dtype` an index dtype; returns \[`count`\].
///
/// # Errors
/// For another dtype.
pub fn arange(device: &Device, count: usize, dtype: DType) -> Result<Tensor> {
    let mut out = UninitTensor::new(device, Shape::new(&[count])?, dtype)?;
    out.replicated()?;
    if device.is_gpu() {
        if !dtype.is_index() {
            return Err(not_an_index(dtype));
        }
        launch::arange(&Launcher::new("arange", device), &out)?;
        return Ok(out.finish());
    }
    crate::for_index!(dtype, T => {
        match device.computes() {
            true => out.copy_from("arange", &(0..count).map(|at| at as T).collect::<Vec<T>>()),
            false => Ok(()),
        }
    })?;
    Ok(out.finish())
}

/// `x` if it is contiguous, else a contiguous copy.
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    match x.is_contiguous() {
        true => Ok(x.clone()),
        false => copy(x),
    }
}

/// A contiguous copy of `x` in a new storage.
pub fn copy(x: &Tensor) -> Result<Tensor> {
    if x.device().is_gpu() {
        return launch::contiguous_copy(x);
    }
    let mut call = CONTIGUOUS.call(&[x])?;
    let mut y = call.output(0)?;
    call.compute(|| for_any!(x.dtype(), T => cpu::copy::<T>(x, y.slice()?)))?;
    Ok(y.finish())
}

/// The same elements in row-major order with another shape; a view if possible, else a copy.
///
/// # Errors
/// When the number of elements differs; for too many dims.
pub fn reshape(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if let Some(view) = x.view(shape)? {
        return Ok(view);
    }
    let whole = copy(x)?;
    // A contiguous tensor reshapes to any shape without a copy.
    Ok(whole.view(shape)?.unwrap_or(whole))
}

/// into = x, in place.
///
/// # Shapes
/// Both of one shape and dtype; `into` contiguous and of a mutable kind.
///
/// # Errors
/// When `into` is a value ([`Kind::Value`](crate::Kind)) or not contiguous.
pub fn copy_into(x: &Tensor, into: &Tensor) -> Result<()> {
    let call = COPY_INTO.call(&[x, into])?;
    let range = into.contiguous_range(call.name())?;
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::copy(gpu, x, &Target::changed(gpu, into)?)),
        false => call.compute(|| {
            for_any!(x.dtype(), T => {
                let mut to = into.write::<T>(call.name())?;
                cpu::copy::<T>(x, &mut to[range])
            })
        }),
    }
}

/// into[:, at..at + T] = x, in place: appends to a cache.
///
/// # Shapes
/// `x` [B, T, ..], `into` [B, S, ..] of one dtype, equal in all dims but the second; `at` i64
/// \[1\]. `into` contiguous and of a mutable kind. All dims but the second can be sharded.
///
/// # Errors
/// When `into` is a value ([`Kind::Value`](crate::Kind)) or not contiguous; when `at` is negative or
/// at + T exceeds S. A GPU reports such a position at the next synchronization, and copies nothing.
pub fn copy_at_into(x: &Tensor, into: &Tensor, at: &Tensor) -> Result<()> {
    let same = x.shape().len() == into.shape().len()
        && x.shape().len() >= 2
        && x.shape().with(1, 0) == into.shape().with(1, 0);
    let call = COPY_AT_INTO.call_with(&[x, into, at], &[x.shape().len()], || {
        let inner: String = (2..x.shape().len()).map(|dim| format!(" d{dim}")).collect();
        let signature = format!("x[b t!{inner}], into[b s!{inner}], at[n!] -> into[b s!{inner}]");
        ShardingRule::new(COPY_AT_INTO.name(), &signature)
    })?;
    if !same {
        let problem = "`x` and `into` must be equal in all dims but the second".into();
        return Err(COPY_AT_INTO.error(&[x, into, at], problem));
    }

    let range = into.contiguous_range(call.name())?;
    if call.device().is_gpu() {
        return call.launch(|gpu| launch::copy_at(gpu, x, into, at));
    }
    let x = contiguous(x)?;
    let (rows, capacity) = (x.shape()[1], into.shape()[1]);
    let inner: usize = x.shape()[2..].iter().product();
    call.compute(|| {
        let index = at.item::<i64>()?;
        let start = usize::try_from(index).ok().filter(|start| start + rows <= capacity);
        let start = start.ok_or_else(|| {
            index_out_of_range(call.name(), index, 0, (capacity + 1).saturating_sub(rows))
        })?;
        for_any!(x.dtype(), T => {
            let read = x.read::<T>()?;
            let from = &read[x.contiguous_range(call.name())?];
            let mut to = into.write::<T>(call.name())?;
            let pairs = to[range].chunks_mut((capacity * inner).max(1)).zip(from.chunks((rows * inner).max(1)));
            for (to, from) in pairs {
                to[start * inner..(start + rows) * inner].copy_from_slice(from);
            }
            Ok(())
        })
    })
}

/// The gradient of [`Tensor::slice`]: `dy` at the indices `range` of dim `dim`, and zeros
/// elsewhere. `shape` is the global shape of the result.
///
/// # Shapes
/// `dy` has `shape` with extent `range.len()` in dim `dim`; any dtype.
///
/// # Errors
/// When there is no such dim; when the range exceeds the dim; when `dy` has another shape.
pub fn slice_grad(dy: &Tensor, shape: &Shape, dim: usize, range: Range<usize>) -> Result<Tensor> {
    let extent = shape.get(dim).copied().unwrap_or(0);
    let mut call = SLICE_GRAD.call_with(&[dy], &[dim, extent], || {
        ShardingRule::slice(SLICE_GRAD.name(), dy.shape().len(), dim, extent)
    })?;
    let part = Layout::contiguous(*shape, 0).slice(dim, range.clone())?;
    if *part.shape() != dy.global_shape() {
        let problem = format!("`dy` must be {} to fill {range:?} of {shape}", part.shape());
        return Err(SLICE_GRAD.error(&[dy], problem));
    }

    let shape = dy.shape().with(dim, shape[dim]);
    let mut dx = call.output_of(shape, dy.dtype())?;
    if call.device().is_gpu() {
        dx.fill_zero()?;
        call.launch(|gpu| launch::copy(gpu, dy, &Target::part(gpu, &dx, dim, range)?))?;
        return Ok(dx.finish());
    }
    let dy = contiguous(dy)?;
    let inner: usize = shape[dim + 1..].iter().product();
    let (whole, kept) = (shape[dim] * inner, range.start * inner..range.end * inner);
    call.compute(|| {
        for_any!(dy.dtype(), T => {
            let read = dy.read::<T>()?;
            let dy = &read[dy.contiguous_range("slice_grad")?];
            for (at, row) in dx.slice::<T>()?.chunks_mut(whole.max(1)).enumerate() {
                row.fill(T::zeroed());
                row[kept.clone()].copy_from_slice(&dy[at * kept.len()..(at + 1) * kept.len()]);
            }
            Ok(())
        })
    })?;
    Ok(dx.finish())
}

/// into = value, in place.
///
/// # Shapes
/// `into` contiguous and of a mutable kind.
///
/// # Errors
/// When `into` is a value ([`Kind::Value`](crate::Kind)) or not contiguous; while the storage
/// is in use.
pub fn fill_into(into: &Tensor, value: f64) -> Result<()> {
    let call = FILL_INTO.call(&[into])?;
    let range = into.contiguous_range(call.name())?;
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let to = Target::changed(gpu, into)?;
            for_any!(into.dtype(), T => launch::fill(gpu, T::from_f64(value), &to))
        }),
        false => call.compute(|| {
            for_any!(into.dtype(), T => {
                let value = T::from_f64(value);
                let mut to = into.write::<T>(call.name())?;
                for_blocks(&mut to[range], BLOCK, |_, part| part.fill(value));
                Ok(())
            })
        }),
    }
}

/// `x` on `device`: `x` itself if it is on that device, else a copy. A copy to a meta device has no
/// values.
///
/// # Errors
/// From a meta device to one that computes.
pub fn to_device(x: &Tensor, device: &Device) -> Result<Tensor> {
    if x.device() == device {
        return Ok(x.clone());
    }
    let mut out = UninitTensor::new(device, *x.shape(), x.dtype())?;
    out.set_tag(x.tag().cloned());
    let x = &x.local();
    let through_host = device.is_gpu() || x.device().is_gpu();
    for_any!(x.dtype(), T => match device.computes() {
        true if through_host => out.copy_from("to_device", &x.to_vec::<T>()?),
        true => cpu::copy::<T>(x, out.slice()?),
        false => Ok(()),
    })?;
    Ok(out.finish())
}

/// `x` as `dtype`; `x` itself if it has that dtype.
///
/// - To float: rounds to nearest even (16-bit floats via f32).
/// - Float to integer: truncates towards zero and saturates.
/// - Integer to integer: keeps the low bits.
/// - To bool: `x != 0`.
pub fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype {
        return Ok(x.clone());
    }
    let is_linear = x.dtype().is_float() && dtype.is_float();
    let mut call = CAST.call_with(&[x], &[is_linear.into()], || match is_linear {
        true => CAST.sharding_rule().clone().linear_in(&["x"]),
        false => Ok(CAST.sharding_rule().clone()),
    })?;
    let mut y = call.output_of(*x.shape(), dtype)?;
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let to = Target::uninit(gpu, &y)?;
            match [x.dtype(), dtype].iter().all(is_elementwise) {
                true => elementwise::cast(gpu, x, &to),
                false => launch::cast(gpu, x, &to),
            }
        }),
        false => call.compute(|| match (x.dtype(), dtype) {
            (DType::F32, DType::BF16) => cpu::cast::<f32, bf16>(x, y.slice()?),
            (DType::BF16, DType::F32) => cpu::cast::<bf16, f32>(x, y.slice()?),
            (from, _) if from.is_float() => cpu::cast_via::<f64>(x, &mut y),
            _ => cpu::cast_via::<i64>(x, &mut y),
        }),
    }?;
    Ok(y.finish())
}

/// Whether elementwise kernels support `dtype`.
fn is_elementwise(dtype: &DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16 | DType::Bool)
}
