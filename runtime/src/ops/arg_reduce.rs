//! argmax, argmin and top-k. NaN comes before every number in all three; ties go to the lower
//! index.

use meshgrad_error::{bail, ensure};
use meshgrad_mesh::ShardingRule;

use crate::cpu::arg_reduce as kernels;
use crate::cpu::rows::Flat;
use crate::launch::top_k::{self as launch, Extreme};
use crate::ops::contiguous;
use crate::{Result, Shape, Signature, Tensor, for_float};

static ARGMAX: Signature = Signature::new("argmax", "x: F[*] -> indices: i64[*]", 1);
static ARGMIN: Signature = Signature::new("argmin", "x: F[*] -> indices: i64[*]", 1);
static TOP_K: Signature =
    Signature::new("top_k", "x: F[.. n!] -> values: F[.. k], indices: i64[.. k]", 0);

pub(super) static SIGNATURES: &[&Signature] = &[&ARGMAX, &ARGMIN, &TOP_K];

/// The index of the maximum along dim `dim`; the first index of ties or NaNs.
///
/// # Shapes
/// `x` any shape, float; returns `x`'s shape without `dim`, i64.
///
/// # Errors
/// When there is no such dim; when the dim is empty.
pub fn argmax(x: &Tensor, dim: isize) -> Result<Tensor> {
    first_best(&ARGMAX, Extreme::Max, x, dim)
}

/// The index of the minimum along dim `dim`; the first index of ties or NaNs.
///
/// # Shapes
/// As [`argmax`].
///
/// # Errors
/// As [`argmax`].
pub fn argmin(x: &Tensor, dim: isize) -> Result<Tensor> {
    first_best(&ARGMIN, Extreme::Min, x, dim)
}

fn first_best(
    signature: &'static Signature,
    extreme: Extreme,
    x: &Tensor,
    dim: isize,
) -> Result<Tensor> {
    let dim = x.dim(signature.name(), dim)?;
    let mut call = signature.call_with(&[x], &[dim], || {
        ShardingRule::reduction(signature.name(), x.shape().len(), &[dim], None)
    })?;
    let columns = x.shape()[dim];
    ensure!(columns != 0, Invalid, "{}: dim {dim} of shape {} is empty", call.name(), x.shape());

    let kept: Vec<usize> = (0..x.shape().len()).filter(|at| *at != dim).collect();
    let x = x.local().permute(&[&kept[..], &[dim]].concat())?;
    let shape = Shape::new(&x.shape()[..kept.len()])?;
    let mut indices = call.output_of(shape, crate::DType::I64)?;
    let x = contiguous(&x)?;
    if call.device().is_gpu() {
        launch::first_best(&call, extreme, &x, columns, &indices)?;
        return Ok(indices.finish());
    }
    call.compute(|| {
        for_float!(x.dtype(), T => {
            let (x, indices) = (Flat::<T>::new(&x)?, indices.slice()?);
            match extreme {
                Extreme::Max => {
                    kernels::argmax_by(&x, columns, kernels::largest::<T>, indices);
                }
                Extreme::Min => {
                    kernels::argmax_by(&x, columns, kernels::smallest::<T>, indices);
                }
            }
            Ok(())
        })
    })?;
    Ok(indices.finish())
}

/// The `k` largest elements along the last dim, in descending order, and their indices.
///
/// # Shapes
/// `x` [.., N] float; returns values [.., K] of `x`'s dtype and indices [.., K] i64.
///
/// # Errors
/// Unless 1 <= `k` <= N.
pub fn top_k(x: &Tensor, k: usize) -> Result<(Tensor, Tensor)> {
    let mut call = TOP_K.call(&[x])?;
    let columns = call.extent("n");
    if k == 0 || k > columns {
        bail!(
            Invalid,
            "{}: k = {k} is not in 1..={columns}, the extent of the last dim",
            call.name()
        );
    }

    call.set_extent("k", k);
    let mut call = call.with_flops(x.elements() as u64);
    let (mut values, mut indices) = (call.output(0)?, call.output(1)?);
    let x = contiguous(x)?;
    if call.device().is_gpu() {
        launch::top_k(&call, &x, [columns, k], &values, &indices)?;
        return Ok((values.finish(), indices.finish()));
    }
    call.compute(|| {
        for_float!(x.dtype(), T => {
            let x = Flat::<T>::new(&x)?;
            kernels::top_k(&x, columns, k, values.slice()?, indices.slice()?);
            Ok(())
        })
    })?;
    Ok((values.finish(), indices.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Device, assert_error, ops};

    fn coarse(device: &Device, shape: &[usize], dtype: DType) -> Tensor {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|i| ((i * i * 31 + i) % 97) as f64 - 48.0).collect();
        ops::cast(&Tensor::from_slice(device, shape, &values).unwrap(), dtype).unwrap()
    }

    fn values(x: &Tensor) -> Vec<f64> {
        ops::cast(x, DType::F64).unwrap().to_vec().unwrap()
    }

    #[test]
    fn argmax_and_argmin_return_the_first_extreme() {
        let device = Device::cpu();
        for dtype in [DType::F64, DType::F32, DType::BF16] {
            for shape in [[1, 1, 1], [3, 17, 2], [2, 1000, 3], [0, 4, 2], [40, 600, 1]] {
                let x = coarse(&device, &shape, dtype);
                for (dim, extent) in shape.into_iter().enumerate() {
                    if extent == 0 {
                        continue;
                    }
                    let (high, low) =
                        (argmax(&x, dim as isize).unwrap(), argmin(&x, dim as isize).unwrap());
                    let last = x.transpose(dim as isize, -1).unwrap();
                    let swapped = |indices: &Tensor| {
                        let indices =
                            indices.unsqueeze(dim).unwrap().transpose(dim as isize, -1).unwrap();
                        indices.to_vec::<i64>().unwrap()
                    };
                    let (high, low) = (swapped(&high), swapped(&low));
                    for (at, row) in values(&last).chunks(extent).enumerate() {
                        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        let least = row.iter().copied().fold(f64::INFINITY, f64::min);
                        assert_eq!(high[at] as usize, row.iter().position(|x| *x == most).unwrap());
                        assert_eq!(low[at] as usize, row.iter().position(|x| *x == least).unwrap());
                    }
                }
            }
        }
    }

    #[test]
    fn the_first_nan_is_the_extreme() {
        let device = Device::cpu();
        let mut elements = vec![0.0f32; 1000];
        elements[700] = 5.0;
        elements[900] = f32::NAN;
        elements[950] = f32::NAN;
        let x = Tensor::from_slice(&device, &[1000], &elements).unwrap();
        assert_eq!(argmax(&x, 0).unwrap().item::<i64>().unwrap(), 900);
        assert_eq!(argmin(&x, 0).unwrap().item::<i64>().unwrap(), 900);
        let (_, indices) = top_k(&x, 4).unwrap();
        assert_eq!(indices.to_vec::<i64>().unwrap(), [900, 950, 700, 0]);
    }

    /// Holds also for k = 200, which takes several passes.
    #[test]
    fn top_k_is_the_prefix_of_a_stable_sort() {
        let device = Device::cpu();
        for dtype in [DType::F64, DType::F32, DType::BF16] {
            for (rows, columns, k) in
                [(0, 3, 1), (1, 1, 1), (3, 17, 17), (70, 300, 5), (2, 700, 200)]
            {
                let x = coarse(&device, &[columns, rows], dtype).transpose(0, 1).unwrap();
                let (top, indices) = top_k(&x, k).unwrap();
                let (top, indices) = (values(&top), indices.to_vec::<i64>().unwrap());
                for (at, row) in values(&x).chunks(columns).enumerate() {
                    let mut order: Vec<usize> = (0..columns).collect();
                    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
                    for (j, place) in order[..k].iter().enumerate() {
                        assert_eq!(indices[at * k + j], *place as i64);
                        assert_eq!(top[at * k + j], row[*place]);
                    }
                }
            }
        }
    }

    #[test]
    fn an_empty_dim_is_an_error() {
        let device = Device::cpu();
        let x = coarse(&device, &[2, 0], DType::F32);
        assert_error(argmax(&x, 1), "argmax: dim 1 of shape");
        assert_eq!(argmax(&x, 0).unwrap().shape().to_vec(), [0]);
        assert_error(top_k(&x, 1), "top_k: k = 1 is not in 1..=0");
        assert_error(argmax(&x, 2), "has no dim 2");
        assert_error(argmax(&x, -3), "has no dim -3");
    }
}
