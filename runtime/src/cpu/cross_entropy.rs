//! Kernels of the cross entropy fused with its linear layer. Logits are computed tile by tile and
//! reduced while they are in the cache.

use std::ops::Range;

use super::gemm::{self, MatrixMut, MatrixRef, Update, gemm};
use super::rows::{Flat, for_rows, max, rows_per_task, sum};
use super::{BLOCK, blocks, for_blocks, for_parts};
use crate::core::arguments::cross_entropy::Targets;
use crate::cpu::index_out_of_range;
use crate::{Float, Number, Result, Tensor, Wide};

/// The extents of a tile of logits. With more rows, `w` (and `dw`) are read less often. With more
/// classes, the sums for `dx` are updated less often.
const TILE_ROWS: usize = 512;
const TILE_CLASSES: usize = 2048;

/// The tiling of [rows, classes] logits of a layer with `features` inputs. It depends only on the
/// sizes, so the bits are the same on any number of threads.
pub(crate) struct Tiles {
    pub(crate) rows: usize,
    pub(crate) classes: usize,
    pub(crate) features: usize,
}

impl Tiles {
    /// Rows of a tile.
    pub(crate) fn rows(&self) -> usize {
        self.rows.min(TILE_ROWS)
    }

    /// Elements of a tile.
    pub(crate) fn elements(&self) -> usize {
        self.rows() * self.classes.min(TILE_CLASSES)
    }

    fn row_ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        ranges(self.rows, TILE_ROWS)
    }

    fn class_ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        ranges(self.classes, TILE_CLASSES)
    }
}

fn ranges(extent: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..extent).step_by(step).map(move |start| start..extent.min(start + step))
}

/// Checked labels, and the first class of this shard.
pub(crate) struct Labels<'a> {
    labels: Flat<'a, i64>,
    ignore_index: i64,
    start: usize,
}

impl<'a> Labels<'a> {
    /// # Errors
    /// When an index is out of range.
    pub(crate) fn new(
        op: &'static str,
        labels: &'a Tensor,
        targets: Targets<'_>,
    ) -> Result<Labels<'a>> {
        let (ignore_index, extent) = (targets.ignore_index, targets.vocab_total);
        let labels = Flat::<i64>::new(labels)?;
        let outside = |label: &i64| {
            *label != ignore_index && usize::try_from(*label).map_or(true, |label| label >= extent)
        };
        if let Some(position) = labels.iter().position(outside) {
            let index = labels[position];
            return Err(index_out_of_range(op, index, position, extent));
        }
        Ok(Labels { labels, ignore_index, start: targets.vocab_start })
    }

    fn is_counted(&self, row: usize) -> bool {
        self.labels[row] != self.ignore_index
    }

    /// The index within `classes` of the label of `row`, if it is one of them and not ignored.
    fn within(&self, row: usize, classes: &Range<usize>) -> Option<usize> {
        let first = self.start + classes.start;
        let at = usize::try_from(self.labels[row]).ok()?.checked_sub(first)?;
        (self.is_counted(row) && at < classes.len()).then_some(at)
    }
}

/// A float type that `gemm` accumulates in its wide type.
pub(crate) trait GemmFloat:
    Float<Wide: gemm::Output<<Self as gemm::Element>::Sum>> + gemm::Element
{
}

impl<T: Float<Wide: gemm::Output<<T as gemm::Element>::Sum>> + gemm::Element> GemmFloat for T {}

/// Fills [max, sum_exp, label_logit], one value per row.
pub(crate) fn statistics<T: GemmFloat>(
    x: &Tensor,
    w: &Tensor,
    labels: &Labels<'_>,
    tiles: &Tiles,
    logits: &mut [T::Wide],
    [max, sum_exp, label_logit]: [&mut [T::Wide]; 3],
) -> Result<()> {
    let (x, w) = (Flat::<T>::new(x)?, Flat::<T>::new(w)?);
    max.fill(T::Wide::NEG_INFINITY);
    sum_exp.fill(T::Wide::ZERO);
    label_logit.fill(T::Wide::ZERO);

    for rows in tiles.row_ranges() {
        for classes in tiles.class_ranges() {
            let tile = &mut logits[..rows.len() * classes.len()];
            multiply_logits::<T>(&x, &w, tiles.features, [&rows, &classes], tile);

            let out = [&mut *max, &mut *sum_exp, &mut *label_logit];
            fold_tile(tile, &classes, labels, rows.start, out.map(|out| &mut out[rows.clone()]));
        }
    }
    Ok(())
}

/// tile = x[rows] w[classes]^T.
fn multiply_logits<T: GemmFloat>(
    x: &[T],
    w: &[T],
    features: usize,
    [rows, classes]: [&Range<usize>; 2],
    tile: &mut [T::Wide],
) {
    let x = matrix(x, rows, features);
    let w = matrix(w, classes, features);
    product(x, w.transposed(), tile, Update::Replace);
}

/// Updates the statistics with a tile of logits, whose first row is row `first` of all rows.
fn fold_tile<W: Wide>(
    tile: &[W],
    classes: &Range<usize>,
    labels: &Labels<'_>,
    first: usize,
    [max, sum_exp, label_logit]: [&mut [W]; 3],
) {
    let columns = classes.len();
    let rows = rows_per_task(columns);
    let out = (blocks(max, rows), blocks(sum_exp, rows), blocks(label_logit, rows));
    for_parts(out, |task, (max, sum_exp, label_logit)| {
        let out = max.iter_mut().zip(sum_exp).zip(label_logit);
        for (at, ((max, sum_exp), label_logit)) in out.enumerate() {
            let row = task * rows + at;
            let logits = &tile[row * columns..][..columns];
            (*max, *sum_exp) = vectorized!(W, || fold_row(logits, *max, *sum_exp));
            if let Some(label) = labels.within(first + row, classes) {
                *label_logit = logits[label];
            }
        }
    });
}

/// Updates the running maximum and the sum of e^(logit - maximum) with more logits.
#[inline(always)]
fn fold_row<W: Wide>(logits: &[W], before: W, sum_before: W) -> (W, W) {
    let tile_max = max(logits);
    let now = if tile_max > before { tile_max } else { before };

    let more = sum([logits], |[logit]| (logit - now).exp());
    let kept = if sum_before == W::ZERO { W::ZERO } else { sum_before * (before - now).exp() };
    (now, kept + more)
}

/// Computes dx, dw or both.
pub(crate) struct Gradient<'a, T: Float> {
    /// x, w, lse and dloss.
    pub(crate) operands: [&'a Tensor; 4],
    pub(crate) labels: &'a Labels<'a>,
    pub(crate) tiles: &'a Tiles,
    pub(crate) logits: &'a mut [T::Wide],
    pub(crate) dlogits: &'a mut [T],
}

impl<T: GemmFloat> Gradient<'_, T> {
    /// `dx` comes with a buffer for the sums of one tile of rows, `dw` with a flag whether to
    /// overwrite it.
    pub(crate) fn compute(
        self,
        mut dx: Option<(&mut [T], &mut [T::Wide])>,
        mut dw: Option<(&mut [T::Wide], bool)>,
    ) -> Result<()> {
        let [x, w, lse, dloss] = self.operands;
        let (x, w) = (Flat::<T>::new(x)?, Flat::<T>::new(w)?);
        let (lse, dloss) = (Flat::<T::Wide>::new(lse)?, Flat::<T::Wide>::new(dloss)?);
        let features = self.tiles.features;
        if let (Some((dw, true)), 0) = (&mut dw, self.tiles.rows) {
            dw.fill(T::Wide::ZERO);
        }
        if let (Some((dx, _)), 0) = (&mut dx, self.tiles.classes) {
            dx.fill(T::narrow(T::Wide::ZERO));
        }

        for rows in self.tiles.row_ranges() {
            for classes in self.tiles.class_ranges() {
                let size = rows.len() * classes.len();
                let (logits, dlogits) = (&mut self.logits[..size], &mut self.dlogits[..size]);
                multiply_logits::<T>(&x, &w, features, [&rows, &classes], logits);
                let (lse, dloss) = (&lse[rows.clone()], &dloss[rows.clone()]);
                differentiate(logits, [lse, dloss], self.labels, [&rows, &classes], dlogits);

                let dlogits = MatrixRef::new(dlogits, [rows.len(), classes.len()]);
                if let Some((_, sums)) = &mut dx {
                    let sums = &mut sums[..rows.len() * features];
                    let update = update(classes.start == 0);
                    product(dlogits, matrix(&w, &classes, features), sums, update);
                }
                if let Some((dw, empty)) = &mut dw {
                    let dw = &mut dw[classes.start * features..classes.end * features];
                    let update = update(*empty && rows.start == 0);
                    product(dlogits.transposed(), matrix(&x, &rows, features), dw, update);
                }
            }

            if let (Some((dx, sums)), 1..) = (&mut dx, self.tiles.classes) {
                round(sums, &mut dx[rows.start * features..rows.end * features]);
            }
        }
        Ok(())
    }
}

/// dlogit = dloss (e^(logit - lse) - onehot(label)), and 0 in ignored rows.
fn differentiate<T: Float>(
    logits: &[T::Wide],
    [lse, dloss]: [&[T::Wide]; 2],
    labels: &Labels<'_>,
    [rows, classes]: [&Range<usize>; 2],
    dlogits: &mut [T],
) {
    let columns = classes.len();
    for_rows!(dlogits, columns, |at, dlogits| {
        let row = rows.start + at;
        if !labels.is_counted(row) {
            return dlogits.fill(T::narrow(T::Wide::ZERO));
        }

        let (lse, dloss) = (lse[at], dloss[at]);
        let logits = &logits[at * columns..(at + 1) * columns];
        for (dlogit, logit) in dlogits.iter_mut().zip(logits) {
            *dlogit = T::narrow(dloss * (*logit - lse).exp());
        }
        if let Some(label) = labels.within(row, classes) {
            let softmax = (logits[label] - lse).exp();
            dlogits[label] = T::narrow(dloss * (softmax - T::Wide::ONE));
        }
    });
}

fn round<T: Float>(wide: &[T::Wide], out: &mut [T]) {
    for_blocks(out, BLOCK, |start, out| {
        vectorized!(T::Wide, || {
            for (out, wide) in out.iter_mut().zip(&wide[start..]) {
                *out = T::narrow(*wide);
            }
        });
    });
}

/// The sum of lse - label_logit over the rows that are not ignored, and the number of these rows.
pub(crate) fn row_losses<T: Float>(
    lse: &Tensor,
    label_logit: &Tensor,
    labels: &Tensor,
    ignore_index: i64,
) -> Result<(T, T)> {
    let (lse, label_logit) = (Flat::<T>::new(lse)?, Flat::<T>::new(label_logit)?);
    let labels = Flat::<i64>::new(labels)?;
    let rows = lse.iter().zip(&*label_logit).zip(&*labels);
    let counted = rows.filter(|(_, label)| **label != ignore_index);

    let (mut sum, mut count) = (0.0, 0.0);
    for ((lse, label_logit), _) in counted {
        sum += lse.to_f64() - label_logit.to_f64();
        count += 1.0;
    }
    Ok((T::from_f64(sum), T::from_f64(count)))
}

fn update(first: bool) -> Update {
    if first { Update::Replace } else { Update::Add }
}

/// The given rows of a row-major matrix.
fn matrix<'a, T: Copy>(whole: &'a [T], rows: &Range<usize>, columns: usize) -> MatrixRef<'a, T> {
    let part = &whole[rows.start * columns..rows.end * columns];
    MatrixRef::new(part, [rows.len(), columns])
}

fn product<T: GemmFloat>(
    a: MatrixRef<'_, T>,
    b: MatrixRef<'_, T>,
    out: &mut [T::Wide],
    how: Update,
) {
    gemm(a, b, MatrixMut::new(out, [a.rows(), b.cols()]), how);
}
