//! Kernels of the residual addition fused with an RMS norm.

use super::rows::{Flat, Rows, for_rows, rows_per_task, sum};
use super::{blocks, for_parts};
use crate::{Element, Float, Number, Result, Tensor};

#[inline(always)]
fn rms_norm_row<T: Float>(x: &[T], w: &[T], eps: T::Wide, y: &mut [T]) -> T::Wide {
    let mean = sum([x], |[x]| x * x) / T::Wide::from_f64(x.len() as f64);
    let inv_rms = T::Wide::ONE / (mean + eps).sqrt();
    for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
        *y = T::narrow(x.wide() * inv_rms * w.wide());
    }
    inv_rms
}

/// h = x + b, and y and inv_rms as the RMS norm of h, per row.
pub(crate) fn add_rms_norm<T: Float>(
    [x, b, w]: [&Tensor; 3],
    eps: f64,
    h: &mut [T],
    y: &mut [T],
    inv_rms: &mut [T::Wide],
) -> Result<()> {
    let (x, b, w) = (Rows::<T>::new(x)?, Rows::<T>::new(b)?, Flat::<T>::new(w)?);
    let w = &*w;
    let (eps, columns) = (T::Wide::from_f64(eps), w.len());
    if columns == 0 {
        inv_rms.fill(T::Wide::ONE / eps.sqrt());
        return Ok(());
    }

    let rows = rows_per_task(columns);
    let out = (blocks(h, rows * columns), blocks(y, rows * columns), blocks(inv_rms, rows));
    for_parts(out, |task, (h, y, inv_rms)| {
        vectorized!(T::Wide, || {
            let out = h.chunks_exact_mut(columns).zip(y.chunks_exact_mut(columns));
            for (at, ((h, y), inv_rms)) in out.zip(inv_rms).enumerate() {
                let row = task * rows + at;
                for ((h, x), b) in h.iter_mut().zip(x.row(row)).zip(b.row(row)) {
                    *h = T::narrow(x.wide() + b.wide());
                }
                *inv_rms = rms_norm_row(h, w, eps, y);
            }
        });
    });
    Ok(())
}

/// dx = dh + inv_rms (dy w - h inv_rms^2 mean(dy w h)), per row.
pub(crate) fn add_rms_norm_grad_input<T: Float>(
    [dh, dy, h, w, inv_rms]: [&Tensor; 5],
    dx: &mut [T],
) -> Result<()> {
    let (dh, dy, h) = (Rows::<T>::new(dh)?, Rows::<T>::new(dy)?, Rows::<T>::new(h)?);
    let (w, inv_rms) = (Flat::<T>::new(w)?, Flat::<T::Wide>::new(inv_rms)?);
    let (w, inv_rms) = (&*w, &*inv_rms);
    let inv_columns = T::Wide::ONE / T::Wide::from_f64(w.len() as f64);

    for_rows!(dx, w.len(), |row, dx| {
        let (dh, dy, h, inv_rms) = (dh.row(row), dy.row(row), h.row(row), inv_rms[row]);
        let dot = sum([dy, w, h], |[dy, w, h]| dy * w * h);
        let along_h = dot * inv_columns * inv_rms * inv_rms * inv_rms;
        for ((((dx, dh), dy), h), w) in dx.iter_mut().zip(dh).zip(dy).zip(h).zip(w) {
            let of_norm = dy.wide() * w.wide() * inv_rms - h.wide() * along_h;
            *dx = T::narrow(dh.wide() + of_norm);
        }
    });
    Ok(())
}
