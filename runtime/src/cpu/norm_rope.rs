//! Kernels of RMS norm fused with rotary position embedding.

use super::column_sums::{add_partials, rows_per_partial};
use super::rope::rotate_head;
use super::rows::{Flat, Rows, rows_per_task, sum};
use super::{blocks, for_blocks, for_parts};
use crate::core::arguments::rope::{Angles, RopeStyle, Rotation};
use crate::{Element, Float, Number, Result, Tensor};

/// The cos and sin tables.
struct Tables<'a> {
    cos: Rows<'a, f32>,
    sin: Rows<'a, f32>,
    heads: usize,
    style: RopeStyle,
}

impl<'a> Tables<'a> {
    fn new(angles: &Angles<'a>) -> Result<Tables<'a>> {
        Ok(Tables {
            cos: Rows::new(angles.cos)?,
            sin: Rows::new(angles.sin)?,
            heads: angles.heads,
            style: angles.style,
        })
    }

    /// Calls `f` with each head of `first..end`, and cos and sin of its position.
    #[inline(always)]
    fn heads(&self, first: usize, end: usize, mut f: impl FnMut(usize, [&[f32]; 2])) {
        let mut head = first;
        while head < end {
            // Rows are looked up once per position: a lookup takes as long as half a head.
            let position = head / self.heads;
            let angles = [self.cos.row(position), self.sin.row(position)];
            let last = end.min((position + 1) * self.heads);
            while head < last {
                f(head, angles);
                head += 1;
            }
        }
    }
}

/// y = rotate(x w inv_rms) with inv_rms = 1 / sqrt(mean(x^2) + eps), per head.
pub(crate) fn norm_rope<T: Float>(
    [x, w]: [&Tensor; 2],
    angles: &Angles<'_>,
    eps: f64,
    y: &mut [T],
    inv_rms: &mut [T::Wide],
) -> Result<()> {
    let eps = T::Wide::from_f64(eps);
    let (columns, pairs) = (w.elements(), angles.cos.shape()[2]);
    if columns == 0 {
        inv_rms.fill(T::Wide::ONE / eps.sqrt());
        return Ok(());
    }

    let (x, w, tables) = (Rows::<T>::new(x)?, Flat::<T>::new(w)?, Tables::new(angles)?);
    let heads = Heads { x, w, tables, eps };
    let rows = rows_per_task(columns);
    let out = (blocks(y, rows * columns), blocks(inv_rms, rows));
    for_parts(out, |task, (y, inv_rms)| {
        vectorized!(T::Wide, || {
            let first = task * rows;
            heads.inverse_rms(first, inv_rms);
            match (columns, pairs) {
                (32, 16) => heads.rotate_sized::<32, 16>(first, inv_rms, y),
                (64, 32) => heads.rotate_sized::<64, 32>(first, inv_rms, y),
                (128, 64) => heads.rotate_sized::<128, 64>(first, inv_rms, y),
                _ => heads.rotate(first, inv_rms, y),
            }
        });
    });
    Ok(())
}

/// The operands of [`norm_rope`].
struct Heads<'a, T: Float> {
    x: Rows<'a, T>,
    w: Flat<'a, T>,
    tables: Tables<'a>,
    eps: T::Wide,
}

impl<T: Float> Heads<'_, T> {
    /// inv_rms of the heads from `first` on.
    ///
    /// Square roots and divisions are in a loop of their own, which is vectorized: one by one, they
    /// would take as long as the rest of a small head.
    #[inline(always)]
    fn inverse_rms(&self, first: usize, out: &mut [T::Wide]) {
        let columns = T::Wide::from_f64(self.w.len() as f64);
        for (row, squares) in (first..).zip(&mut *out) {
            *squares = sum([self.x.row(row)], |[x]| x * x);
        }
        for out in out {
            *out = T::Wide::ONE / (*out / columns + self.eps).sqrt();
        }
    }

    /// Normalizes and rotates the heads from `first` on.
    #[inline(always)]
    fn rotate(&self, first: usize, inv_rms: &[T::Wide], y: &mut [T]) {
        let columns = self.w.len();
        let mut normed = vec![T::Wide::ZERO; columns];
        let mut out = y.chunks_exact_mut(columns).zip(inv_rms);
        self.tables.heads(
            first,
            first + inv_rms.len(),
            #[inline(always)]
            |row, angles| {
                if let Some((y, inv_rms)) = out.next() {
                    normalize(self.x.row(row), &self.w, *inv_rms, &mut normed);
                    self.rotate_head(&normed, angles, y);
                }
            },
        );
    }

    /// As [`Heads::rotate`], for heads of `N` features, all of which are rotated in `PAIRS` pairs.
    ///
    /// A loop over a small head takes most of its time to begin and end. With constant sizes and
    /// local arrays, which cannot overlap, it becomes a few vector instructions.
    #[inline(always)]
    fn rotate_sized<const N: usize, const PAIRS: usize>(
        &self,
        first: usize,
        inv_rms: &[T::Wide],
        y: &mut [T],
    ) {
        let Some(w) = self.w.first_chunk::<N>().copied() else {
            return;
        };
        let mut out = y.as_chunks_mut::<N>().0.iter_mut().zip(inv_rms);
        self.tables.heads(
            first,
            first + inv_rms.len(),
            #[inline(always)]
            |row, [cos, sin]| {
                let x = self.x.row(row).first_chunk::<N>();
                let angles = (cos.first_chunk::<PAIRS>(), sin.first_chunk::<PAIRS>());
                let (Some((y, inv_rms)), Some(x), (Some(cos), Some(sin))) =
                    (out.next(), x.copied(), angles)
                else {
                    return;
                };
                let (cos, sin) = (*cos, *sin);
                let (mut normed, mut rotated) = ([T::Wide::ZERO; N], [T::zeroed(); N]);
                normalize(&x, &w, *inv_rms, &mut normed);
                self.rotate_head(&normed, [&cos, &sin], &mut rotated);
                *y = rotated;
            },
        );
    }

    #[inline(always)]
    fn rotate_head(&self, normed: &[T::Wide], angles: [&[f32]; 2], y: &mut [T]) {
        rotate_head(normed, angles, self.tables.style, Rotation::Forward, y);
    }
}

#[inline(always)]
fn normalize<T: Float>(x: &[T], w: &[T], inv_rms: T::Wide, normed: &mut [T::Wide]) {
    for ((normed, x), w) in normed.iter_mut().zip(x).zip(w) {
        *normed = x.wide() * inv_rms * w.wide();
    }
}

/// dx = inv_rms (dz w - x inv_rms^2 mean(dz w x)) per head, where dz is dy rotated by the negative
/// angle.
pub(crate) fn norm_rope_grad_input<T: Float>(
    [dy, x, w, inv_rms]: [&Tensor; 4],
    angles: &Angles<'_>,
    dx: &mut [T],
) -> Result<()> {
    let (dy, x, tables) = (Rows::<T>::new(dy)?, Rows::<T>::new(x)?, Tables::new(angles)?);
    let (w, inv_rms) = (Flat::<T>::new(w)?, Flat::<T::Wide>::new(inv_rms)?);
    let (w, inv_rms) = (&*w, &*inv_rms);
    let columns = w.len();
    if columns == 0 {
        return Ok(());
    }
    let inv_columns = T::Wide::ONE / T::Wide::from_f64(columns as f64);

    for_blocks(dx, rows_per_task(columns) * columns, |start, dx| {
        let (mut dzw, mut wide_x) = (vec![T::Wide::ZERO; columns], vec![T::Wide::ZERO; columns]);
        vectorized!(T::Wide, || {
            let first = start / columns;
            let end = first + dx.len() / columns;
            let mut out = dx.chunks_exact_mut(columns);
            tables.heads(
                first,
                end,
                #[inline(always)]
                |row, angles| {
                    let Some(dx) = out.next() else { return };
                    let inv_rms = inv_rms[row];
                    rotate_head(dy.row(row), angles, tables.style, Rotation::Inverse, &mut dzw);
                    for ((dzw, w), (wide, x)) in
                        dzw.iter_mut().zip(w).zip(wide_x.iter_mut().zip(x.row(row)))
                    {
                        *dzw *= w.wide();
                        *wide = x.wide();
                    }

                    let dot = sum([&dzw[..], &wide_x], |[dzw, x]| dzw * x);
                    let along_x = dot * inv_columns * inv_rms * inv_rms * inv_rms;
                    for ((dx, dzw), x) in dx.iter_mut().zip(&dzw).zip(&wide_x) {
                        *dx = T::narrow(*dzw * inv_rms - *x * along_x);
                    }
                },
            );
        });
    });
    Ok(())
}

/// dw = sum over heads of dz x inv_rms; overwrites `dw` if `empty`, else adds to it.
///
/// `partial` holds one sum for every [`rows_per_partial`] heads; these sums are added in order.
pub(crate) fn norm_rope_grad_weight<T: Float>(
    [dy, x, inv_rms]: [&Tensor; 3],
    angles: &Angles<'_>,
    partial: &mut [T::Wide],
    dw: &mut [T::Wide],
    empty: bool,
) -> Result<()> {
    let columns = dw.len();
    let (dy, x, tables) = (Rows::<T>::new(dy)?, Rows::<T>::new(x)?, Tables::new(angles)?);
    let inv_rms = Flat::<T::Wide>::new(inv_rms)?;
    let inv_rms = &*inv_rms;
    if columns == 0 {
        return Ok(());
    }

    let rows = rows_per_partial(columns);
    for_blocks(partial, columns, |start, sums| {
        let first = start / columns * rows;
        let last = inv_rms.len().min(first + rows);
        let mut dz = vec![T::Wide::ZERO; columns];
        vectorized!(T::Wide, || {
            sums.fill(T::Wide::ZERO);
            tables.heads(
                first,
                last,
                #[inline(always)]
                |row, angles| {
                    rotate_head(dy.row(row), angles, tables.style, Rotation::Inverse, &mut dz);
                    let inv_rms = inv_rms[row];
                    for ((sum, dz), x) in sums.iter_mut().zip(&dz).zip(x.row(row)) {
                        *sum += *dz * (x.wide() * inv_rms);
                    }
                },
            );
        });
    });
    add_partials::<T>(partial, dw, empty);
    Ok(())
}
