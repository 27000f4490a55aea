//! Kernels of the rotary position embedding.

use super::rows::{Flat, Rows, for_rows, rows_per_task};
use super::{blocks, for_parts};
use crate::core::arguments::rope::{RopeStyle, Rotation};
use crate::{Element, Float, Number, Result, Tensor};

/// cos and sin of position * inv_freq, times `factor`, computed in f64.
pub(crate) fn tables(
    positions: &Tensor,
    inv_freq: &Tensor,
    factor: f64,
    cos: &mut [f32],
    sin: &mut [f32],
) -> Result<()> {
    let (positions, inv_freq) = (Flat::<i64>::new(positions)?, Flat::<f32>::new(inv_freq)?);
    let (positions, inv_freq) = (&*positions, &*inv_freq);
    let pairs = inv_freq.len();
    if pairs == 0 {
        return Ok(());
    }

    // A sine costs as much as many elementwise operations, so tasks are small.
    let rows = rows_per_task(16 * pairs);
    let out = (blocks(cos, rows * pairs), blocks(sin, rows * pairs));
    for_parts(out, |task, (cos, sin)| {
        let out = cos.chunks_exact_mut(pairs).zip(sin.chunks_exact_mut(pairs));
        for ((cos, sin), position) in out.zip(&positions[task * rows..]) {
            for ((cos, sin), inv_freq) in cos.iter_mut().zip(sin).zip(inv_freq) {
                let angle = *position as f64 * f64::from(*inv_freq);
                (*sin, *cos) = ((angle.sin() * factor) as f32, (angle.cos() * factor) as f32);
            }
        }
    });
    Ok(())
}

/// Rotates the pairs of every head. `cos` and `sin` have one row per position, which all `heads`
/// share.
pub(crate) fn rope<T: Float>(
    x: &Tensor,
    [cos, sin]: [&Tensor; 2],
    heads: usize,
    style: RopeStyle,
    rotation: Rotation,
    y: &mut [T],
) -> Result<()> {
    let features = x.shape()[3];
    let x = Rows::<T>::new(x)?;
    let (cos, sin) = (Rows::<f32>::new(cos)?, Rows::<f32>::new(sin)?);
    if features == 0 {
        return Ok(());
    }

    let pairs = cos.columns();
    for_rows!(y, heads * features, |position, y| {
        let angles = [cos.row(position), sin.row(position)];
        let heads = (0..heads).map(
            #[inline(always)]
            |head| x.row(position * heads + head),
        );
        match (features, pairs) {
            (32, 16) => rotate_sized::<T, 32, 16>(heads, angles, style, rotation, y),
            (64, 32) => rotate_sized::<T, 64, 32>(heads, angles, style, rotation, y),
            (128, 64) => rotate_sized::<T, 128, 64>(heads, angles, style, rotation, y),
            _ => {
                for (x, y) in heads.zip(y.chunks_exact_mut(features)) {
                    rotate_head(x, angles, style, rotation, y);
                }
            }
        }
    });
    Ok(())
}

/// Rotates heads of `N` features, all of them in `PAIRS` pairs. With constant sizes and local
/// arrays, which cannot overlap, a head becomes a few vector instructions.
#[inline(always)]
fn rotate_sized<'a, T: Float, const N: usize, const PAIRS: usize>(
    heads: impl Iterator<Item = &'a [T]>,
    [cos, sin]: [&[f32]; 2],
    style: RopeStyle,
    rotation: Rotation,
    y: &mut [T],
) {
    let (mut cos_row, mut sin_row) = ([0.0; PAIRS], [0.0; PAIRS]);
    cos_row.copy_from_slice(cos);
    sin_row.copy_from_slice(sin);
    for (x, y) in heads.zip(y.as_chunks_mut::<N>().0) {
        let (mut wide, mut rotated) = ([T::Wide::ZERO; N], [T::zeroed(); N]);
        for (wide, x) in wide.iter_mut().zip(x) {
            *wide = x.wide();
        }
        rotate_head(&wide, [&cos_row, &sin_row], style, rotation, &mut rotated);
        *y = rotated;
    }
}

/// Rotates one head. `x` or `y` may have elements of the other's wide type.
#[inline(always)]
pub(super) fn rotate_head<S: Float, T: Float<Wide = S::Wide>>(
    x: &[S],
    [cos, sin]: [&[f32]; 2],
    style: RopeStyle,
    rotation: Rotation,
    y: &mut [T],
) {
    match (style, rotation) {
        (RopeStyle::Half, Rotation::Forward) => half(x, cos, sin, |sin| sin, y),
        (RopeStyle::Half, Rotation::Inverse) => half(x, cos, sin, |sin| -sin, y),
        (RopeStyle::Interleaved, Rotation::Forward) => interleaved(x, cos, sin, |sin| sin, y),
        (RopeStyle::Interleaved, Rotation::Inverse) => interleaved(x, cos, sin, |sin| -sin, y),
    }
}

#[inline(always)]
fn half<S: Float, T: Float<Wide = S::Wide>>(
    x: &[S],
    cos: &[f32],
    sin: &[f32],
    sign: impl Fn(T::Wide) -> T::Wide,
    y: &mut [T],
) {
    let (x, unrotated) = x.split_at(2 * cos.len());
    let (y, rest) = y.split_at_mut(2 * cos.len());
    copy_unrotated(unrotated, rest);

    let (x_a, x_b) = x.split_at(cos.len());
    let (y_a, y_b) = y.split_at_mut(cos.len());
    let angles = cos.iter().zip(sin);
    for ((((cos, sin), x_a), x_b), (y_a, y_b)) in
        angles.zip(x_a).zip(x_b).zip(y_a.iter_mut().zip(y_b))
    {
        let (cos, sin) = (widen::<T>(*cos), sign(widen::<T>(*sin)));
        let (a, b) = (x_a.wide(), x_b.wide());
        (*y_a, *y_b) = (T::narrow(a * cos - b * sin), T::narrow(b * cos + a * sin));
    }
}

#[inline(always)]
fn interleaved<S: Float, T: Float<Wide = S::Wide>>(
    x: &[S],
    cos: &[f32],
    sin: &[f32],
    sign: impl Fn(T::Wide) -> T::Wide,
    y: &mut [T],
) {
    let (x, unrotated) = x.split_at(2 * cos.len());
    let (y, rest) = y.split_at_mut(2 * cos.len());
    copy_unrotated(unrotated, rest);

    let (x, y) = (x.as_chunks::<2>().0, y.as_chunks_mut::<2>().0);
    for (((cos, sin), x), y) in cos.iter().zip(sin).zip(x).zip(y) {
        let (cos, sin) = (widen::<T>(*cos), sign(widen::<T>(*sin)));
        let (a, b) = (x[0].wide(), x[1].wide());
        *y = [T::narrow(a * cos - b * sin), T::narrow(b * cos + a * sin)];
    }
}

/// Copies the features that are not rotated.
#[inline(always)]
fn copy_unrotated<S: Float, T: Float<Wide = S::Wide>>(x: &[S], y: &mut [T]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = T::narrow(x.wide());
    }
}

#[inline(always)]
fn widen<T: Float>(x: f32) -> T::Wide {
    T::Wide::from_f64(x.into())
}
