//! out = softmax(scale Q K^T) V with a running maximum and sum. The [Tq, Tk] scores are never
//! stored.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::group::{Group, KEYS, STRIP, Strip, padded, transpose};
use super::product::{Order, Product, lanes};
use super::real::{Element, Real};
use super::scratch::with_blocks;
use super::{Attention, Shape};
use crate::cpu::{SharedSlice, for_tasks};

/// Strips that share a loaded block of keys and values.
const STRIPS: usize = 4;

/// Rows per task.
const ROWS: usize = STRIPS * STRIP;

/// Runs one task per batch row, key-value head and [`ROWS`] rows. The split depends only on the
/// shape.
pub(super) fn run<E: Element>(attention: &Attention<E>, out: &mut [E], lse: &mut [E::Real]) {
    let shape = attention.shape;
    let (out, lse) = (SharedSlice::new(out), SharedSlice::new(lse));

    let parts = (shape.queries * shape.group()).div_ceil(ROWS);
    let tasks = shape.batch * shape.kv_heads * parts;
    for_tasks(tasks, &|task| {
        let (part, head) = (task % parts, task / parts);
        let (kv_head, batch) = (head % shape.kv_heads, head / shape.kv_heads);
        let rows = part * ROWS..(part + 1) * ROWS;

        for segment in attention.mask.segments(batch, &shape) {
            let start = segment.queries.start * shape.group();
            let end = segment.queries.end * shape.group();
            let rows = rows.start.max(start)..rows.end.min(end);
            if !rows.is_empty() {
                let rows = rows.start - start..rows.end - start;
                let group = Group { attention, segment: &segment, kv_head, rows };
                forward_group(&group, &out, &lse);
            }
        }
    });
}

fn forward_group<E: Element>(group: &Group<E>, out: &SharedSlice<E>, lse: &SharedSlice<E::Real>) {
    let shape = &group.attention.shape;
    let width = padded(shape.head_dim);
    let strips = group.rows.len().div_ceil(STRIP);

    let lengths =
        [strips * STRIP * width, strips * STRIP * width, KEYS * width, KEYS * width, KEYS * STRIP];
    with_blocks(lengths, |[queries, sums, keys, values, scores]| {
        let run = ForwardGroup { group, queries, sums, keys, values, scores, out, lse };
        Arch::new().dispatch(run);
    });
}

/// The buffers of one task. W is the padded head dimension.
struct ForwardGroup<'a, E: Element> {
    group: &'a Group<'a, E>,
    /// [strips, W, STRIP]: queries, transposed.
    queries: &'a mut [E::Real],
    /// [strips, STRIP, W]: sums of e^(score - maximum) times value.
    sums: &'a mut [E::Real],
    /// [KEYS, W].
    keys: &'a mut [E::Real],
    /// [KEYS, W].
    values: &'a mut [E::Real],
    /// [KEYS, STRIP]: scores, then weights.
    scores: &'a mut [E::Real],
    out: &'a SharedSlice<'a, E>,
    lse: &'a SharedSlice<'a, E::Real>,
}

/// Running softmax statistics of a strip's rows.
#[derive(Clone, Copy)]
struct Running<R> {
    maximum: [R; STRIP],
    sum: [R; STRIP],
}

impl<E: Element> WithSimd for ForwardGroup<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let start = Running { maximum: [Real::NEG_INFINITY; STRIP], sum: [Real::ZERO; STRIP] };
        let mut running = [start; STRIPS];
        let strips: [_; STRIPS] = std::array::from_fn(|index| self.group.strip(index));
        self.load_queries(&strips);

        let visible = || strips.iter().map(|strip| &strip.keys).filter(|keys| !keys.is_empty());
        let first = visible().map(|keys| keys.start).min().unwrap_or(0);
        let end = visible().map(|keys| keys.end).max().unwrap_or(0);

        for block in (first / KEYS * KEYS..end).step_by(KEYS) {
            let loaded = block.max(first)..(block + KEYS).min(end);
            self.group.load_keys(&self.group.attention.k, loaded.clone(), self.keys);
            self.group.load_keys(&self.group.attention.v, loaded.clone(), self.values);

            for (index, strip) in strips.iter().enumerate() {
                let keys = loaded.start.max(strip.keys.start)..loaded.end.min(strip.keys.end);
                if !keys.is_empty() {
                    let offset = keys.start - loaded.start;
                    self.attend(simd, index, strip, keys, offset, &mut running[index]);
                }
            }
        }

        for (index, strip) in strips.iter().enumerate() {
            self.store(index, strip, &running[index]);
        }
    }
}

impl<E: Element> ForwardGroup<'_, E> {
    #[inline(always)]
    fn load_queries(&mut self, strips: &[Strip<E::Real>]) {
        let width = padded(self.group.attention.shape.head_dim);
        let queries = self.queries.chunks_exact_mut(STRIP * width);
        let sums = self.sums.chunks_exact_mut(STRIP * width);

        // Until keys are loaded, `keys` and `sums` serve as scratch space.
        for ((strip, queries), sums) in strips.iter().zip(queries).zip(sums) {
            let spare = &mut self.keys[..STRIP * width];
            self.group.load_rows(&self.group.attention.q, strip, sums);
            transpose(sums, spare, queries);
            sums.fill(Real::ZERO);
        }
    }

    /// Adds a block of keys, which starts at `offset` within the loaded keys, to a strip's sums.
    #[inline(always)]
    fn attend<S: Simd>(
        &mut self,
        simd: S,
        index: usize,
        strip: &Strip<E::Real>,
        keys: Range<usize>,
        offset: usize,
        running: &mut Running<E::Real>,
    ) {
        let head_dim = self.group.attention.shape.head_dim;
        let width = padded(head_dim);

        simd.vectorize(Product {
            order: Order::Rows,
            a: &self.keys[offset * width..],
            a_stride: width,
            b: &self.queries[index * STRIP * width..],
            b_stride: STRIP,
            c: self.scores,
            c_stride: STRIP,
            extents: [keys.len(), strip.lanes(), head_dim],
            accumulate: false,
        });

        let sums = &mut self.sums[index * STRIP * width..];
        let step = SoftmaxStep {
            scores: &mut *self.scores,
            strip,
            keys: keys.clone(),
            scale: Real::from_f64(self.group.attention.scale),
            running,
        };
        let decay = simd.vectorize(step);
        decay_rows(simd, &decay[..strip.rows], sums, width);

        simd.vectorize(Product {
            order: Order::Columns,
            a: self.scores,
            a_stride: STRIP,
            b: &self.values[offset * width..],
            b_stride: width,
            c: sums,
            c_stride: width,
            extents: [strip.rows, width, keys.len()],
            accumulate: true,
        });
    }

    /// out = sums / sum, lse = maximum + ln(sum).
    #[inline(always)]
    fn store(&self, index: usize, strip: &Strip<E::Real>, running: &Running<E::Real>) {
        let Shape { queries, heads, head_dim, .. } = self.group.attention.shape;
        let width = padded(head_dim);

        for (row, [b, t, h]) in (0..strip.rows).zip(self.group.row_indices(strip.first)) {
            let (maximum, sum) = (running.maximum[row], running.sum[row]);

            // SAFETY: rows are split among tasks, so only this task writes row (b, t, h), and once.
            let (out, lse) = unsafe {
                let out = self.out.part(((b * queries + t) * heads + h) * head_dim, head_dim);
                (out, self.lse.part((b * heads + h) * queries + t, 1))
            };

            let none = sum == E::Real::ZERO;
            let factor = if none { sum } else { E::Real::ONE / sum };
            lse[0] = if none { E::Real::NEG_INFINITY } else { maximum + sum.ln() };

            let sums = &self.sums[(index * STRIP + row) * width..];
            for (out, sum) in out.iter_mut().zip(sums) {
                // Adding 0 turns -0 into 0. Otherwise the sign would depend on whether masked keys,
                // which add 0, are part of a block.
                *out = E::from_real(*sum * factor + Real::ZERO);
            }
        }
    }
}

/// Multiplies each row by its factor.
#[inline(always)]
fn decay_rows<S: Simd, R: Real>(simd: S, factors: &[R], rows: &mut [R], width: usize) {
    for (row, factor) in rows.chunks_exact_mut(width).zip(factors) {
        let factor = R::splat(simd, *factor);
        for x in R::vectors_mut::<S>(row) {
            *x = R::mul_lanes(simd, *x, factor);
        }
    }
}

/// Replaces [keys, STRIP] scores by weights e^(scale score - maximum); returns the factors that
/// rescale the earlier sums of each row.
struct SoftmaxStep<'a, R> {
    scores: &'a mut [R],
    strip: &'a Strip<R>,
    keys: Range<usize>,
    scale: R,
    running: &'a mut Running<R>,
}

impl<R: Real> WithSimd for SoftmaxStep<'_, R> {
    type Output = [R; STRIP];

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) -> [R; STRIP] {
        let lanes = lanes::<S, R>();
        let in_use = self.strip.lanes();
        let mut decay = [R::ZERO; STRIP];

        let mut lane = 0;
        while lane + 2 * lanes <= in_use {
            self.lanes::<S, 2>(simd, lane, &mut decay);
            lane += 2 * lanes;
        }
        while lane < in_use {
            self.lanes::<S, 1>(simd, lane, &mut decay);
            lane += lanes;
        }
        decay
    }
}

impl<R: Real> SoftmaxStep<'_, R> {
    #[inline(always)]
    fn lanes<S: Simd, const N: usize>(&mut self, simd: S, lane: usize, decay: &mut [R; STRIP]) {
        let before = load::<S, R, N>(&self.running.maximum[lane..]);
        let low = load::<S, R, N>(&self.strip.low[lane..]);
        let high = load::<S, R, N>(&self.strip.high[lane..]);
        let masks = self.strip.masks(&self.keys);
        let scale = R::splat(simd, self.scale);

        let mut maximum = before;
        for (key, scores) in self.keys.clone().zip(self.scores.chunks_exact_mut(STRIP)) {
            let scores = &mut R::vectors_mut::<S>(&mut scores[lane..])[..N];
            for n in 0..N {
                scores[n] = R::mul_lanes(simd, scores[n], scale);
                if masks {
                    let at = R::splat(simd, R::from_count(key));
                    scores[n] = R::visible(simd, scores[n], at, [low[n], high[n]]);
                }
                maximum[n] = R::max_lanes(simd, scores[n], maximum[n]);
            }
        }

        // If a row attended to no key so far, its maximum is minus infinity, which must not be
        // subtracted.
        let shift: [_; N] = std::array::from_fn(|n| R::finite_or_zero(simd, maximum[n]));
        let mut sum = [R::splat(simd, R::ZERO); N];
        for scores in self.scores.chunks_exact_mut(STRIP).take(self.keys.len()) {
            let scores = &mut R::vectors_mut::<S>(&mut scores[lane..])[..N];
            for n in 0..N {
                scores[n] = R::exp_lanes(simd, R::sub_lanes(simd, scores[n], shift[n]));
                sum[n] = R::add_lanes(simd, sum[n], scores[n]);
            }
        }

        let total = R::vectors_mut::<S>(&mut self.running.sum[lane..]);
        let decay = R::vectors_mut::<S>(&mut decay[lane..]);
        for n in 0..N {
            decay[n] = R::exp_lanes(simd, R::sub_lanes(simd, before[n], shift[n]));
            total[n] = R::mul_add_lanes(simd, total[n], decay[n], sum[n]);
        }
        R::vectors_mut::<S>(&mut self.running.maximum[lane..])[..N].copy_from_slice(&maximum);
    }
}

#[inline(always)]
pub(super) fn load<S: Simd, R: Real, const N: usize>(from: &[R]) -> [R::Vector<S>; N] {
    let from = &R::vectors::<S>(from)[..N];
    std::array::from_fn(|n| from[n])
}
