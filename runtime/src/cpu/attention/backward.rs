//! Gradients of attention from the saved log-sum-exp; the weights are recomputed block by block.
//!
//! ```text
//! P  = e^(scale Q K^T - lse),  delta = rowsum(dO * O)
//! dS = P * (dO V^T - delta) scale
//! dV = P^T dO,  dQ = dS K,  dK = dS^T Q
//! ```
//!
//! (Dao 2023.) A gradient of lse is subtracted from delta, because d lse / d s = P.
//!
//! A task owns some queries of one key-value head. It alone writes their dQ, and it sums dK and dV
//! in its own slab of the workspace.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::forward::load;
use super::group::{Group, KEYS, STRIP, Strip, padded, transpose};
use super::product::{Order, Product, lanes};
use super::real::{Element, Real};
use super::rows::Rows;
use super::scratch::with_blocks;
use super::slabs::{Slabs, add_slabs};
use super::{Attention, Shape, check_len, check_rows};
use crate::cpu::{SharedSlice, blocks, for_parts};

/// Strips that share a loaded block of keys and values.
const STRIPS: usize = 4;

/// Rows that are processed together.
const ROWS: usize = STRIPS * STRIP;

/// The results of the forward pass, and their gradients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved<'a, E: Element> {
    /// Output of the forward pass, [B, Tq, Hq, D].
    pub(crate) out: Rows<'a, E>,
    /// Log-sum-exp of the forward pass, [B, Hq, Tq].
    pub(crate) lse: &'a [E::Real],
    /// Gradient of `out`.
    pub(crate) dout: Rows<'a, E>,
    /// Gradient of `lse`, if it was used.
    pub(crate) dlse: Option<&'a [E::Real]>,
}

/// The gradients to write; all contiguous.
#[derive(Debug)]
pub(crate) struct Gradients<'a, E> {
    /// [B, Tq, Hq, D].
    pub(crate) dq: &'a mut [E],
    /// [B, Tk, Hkv, D]; zero for keys that no query attends to.
    pub(crate) dk: &'a mut [E],
    /// [B, Tk, Hkv, D]; zero for keys that no query attends to.
    pub(crate) dv: &'a mut [E],
}

impl<E: Element> Saved<'_, E> {
    pub(super) fn check(&self, shape: &Shape) {
        check_rows("out", &self.out, shape.of_queries());
        check_rows("dout", &self.dout, shape.of_queries());

        let rows = shape.batch * shape.heads * shape.queries;
        check_len("lse", self.lse.len(), rows);
        if let Some(dlse) = self.dlse {
            check_len("dlse", dlse.len(), rows);
        }
    }
}

impl<E> Gradients<'_, E> {
    pub(super) fn check(&self, shape: &Shape) {
        let queries = shape.of_queries().iter().product();
        let keys = shape.of_keys().iter().product();
        check_len("dq", self.dq.len(), queries);
        check_len("dk", self.dk.len(), keys);
        check_len("dv", self.dv.len(), keys);
    }
}

pub(super) fn run<E: Element>(
    attention: &Attention<E>,
    saved: &Saved<E>,
    gradients: Gradients<E>,
    workspace: &mut [E::Real],
) {
    let shape = attention.shape;
    let slabs = Slabs::of(&shape);
    let Gradients { dq, dk, dv } = gradients;

    // Without keys or queries, the workspace is empty.
    if workspace.is_empty() {
        for gradient in [dq, dk, dv] {
            gradient.fill(E::from_real(Real::ZERO));
        }
        return;
    }

    let dq = SharedSlice::new(dq);
    for_parts(blocks(workspace, slabs.len), |task, slab| {
        let (index, head) = (task % slabs.count, task / slabs.count);
        let (kv_head, batch) = (head % shape.kv_heads, head / shape.kv_heads);

        slab.fill(Real::ZERO);
        for segment in attention.mask.segments(batch, &shape) {
            let rows = slabs.rows(index, &segment, shape.group());
            for start in rows.clone().step_by(ROWS) {
                let rows = start..rows.end.min(start + ROWS);
                let group = Group { attention, segment: &segment, kv_head, rows };
                backward_group(&group, saved, slab, &dq);
            }
        }
    });

    let half = slabs.len / 2;
    for (to, offset) in [(dk, 0), (dv, half)] {
        add_slabs(&shape, &slabs, &workspace[..], offset, to);
    }
}

fn backward_group<E: Element>(
    group: &Group<E>,
    saved: &Saved<E>,
    slab: &mut [E::Real],
    dq: &SharedSlice<E>,
) {
    let width = padded(group.attention.shape.head_dim);
    let strips = group.rows.len().div_ceil(STRIP) * STRIP * width;

    let (block, scores) = (KEYS * width, KEYS * STRIP);
    let lengths = [strips, strips, strips, strips, strips, block, block, scores, scores];
    with_blocks(lengths, |blocks| {
        let [q, q_columns, dout, dout_columns, dq_sums, keys, values, weights, dscores] = blocks;
        let (dk, dv) = slab.split_at_mut(slab.len() / 2);
        let run = BackwardGroup {
            group,
            saved,
            q,
            q_columns,
            dout,
            dout_columns,
            dq_sums,
            keys,
            values,
            weights,
            dscores,
            dk,
            dv,
            dq,
        };
        Arch::new().dispatch(run);
    });
}

/// The buffers of one group of rows. W is the padded head dimension.
struct BackwardGroup<'a, E: Element> {
    group: &'a Group<'a, E>,
    saved: &'a Saved<'a, E>,
    /// [strips, STRIP, W].
    q: &'a mut [E::Real],
    /// [strips, W, STRIP].
    q_columns: &'a mut [E::Real],
    /// [strips, STRIP, W].
    dout: &'a mut [E::Real],
    /// [strips, W, STRIP].
    dout_columns: &'a mut [E::Real],
    /// [strips, STRIP, W].
    dq_sums: &'a mut [E::Real],
    /// [KEYS, W].
    keys: &'a mut [E::Real],
    /// [KEYS, W].
    values: &'a mut [E::Real],
    /// [KEYS, STRIP]: scores, then P.
    weights: &'a mut [E::Real],
    /// [KEYS, STRIP]: dP, then dS.
    dscores: &'a mut [E::Real],
    /// [Tk, W].
    dk: &'a mut [E::Real],
    /// [Tk, W].
    dv: &'a mut [E::Real],
    dq: &'a SharedSlice<'a, E>,
}

/// Statistics of a strip's rows.
#[derive(Clone, Copy)]
struct PerRow<R> {
    lse: [R; STRIP],
    delta: [R; STRIP],
}

impl<E: Element> WithSimd for BackwardGroup<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let strips: [_; STRIPS] = std::array::from_fn(|index| self.group.strip(index));
        let mut per_row = [PerRow { lse: [Real::ZERO; STRIP], delta: [Real::ZERO; STRIP] }; STRIPS];
        for (index, strip) in strips.iter().enumerate() {
            if strip.rows > 0 {
                self.load_strip(simd, index, strip, &mut per_row[index]);
            }
        }

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
                    self.softmax_grad(simd, index, strip, &keys, offset, &per_row[index]);
                    self.add_products(simd, index, strip, &keys, offset);
                }
            }
        }

        for (index, strip) in strips.iter().enumerate() {
            self.store(index, strip);
        }
    }
}

impl<E: Element> BackwardGroup<'_, E> {
    #[inline(always)]
    fn load_strip<S: Simd>(
        &mut self,
        simd: S,
        index: usize,
        strip: &Strip<E::Real>,
        per_row: &mut PerRow<E::Real>,
    ) {
        let Shape { queries, heads, head_dim, .. } = self.group.attention.shape;
        let width = padded(head_dim);
        let at = index * STRIP * width..(index + 1) * STRIP * width;
        let (q, dout) = (&mut self.q[at.clone()], &mut self.dout[at.clone()]);

        let sums = &mut self.dq_sums[at.clone()];

        self.group.load_rows(&self.group.attention.q, strip, q);
        transpose(q, sums, &mut self.q_columns[at.clone()]);

        self.group.load_rows(&self.saved.dout, strip, dout);
        transpose(dout, sums, &mut self.dout_columns[at]);

        self.group.load_rows(&self.saved.out, strip, sums);
        for (row, [b, t, h]) in (0..strip.rows).zip(self.group.row_indices(strip.first)) {
            let at = (b * heads + h) * queries + t;

            // A row that attends to no key has no weights, so any finite numbers work; its dlse can be
            // NaN.
            let lse = self.saved.lse[at];
            if lse == Real::NEG_INFINITY {
                (per_row.lse[row], per_row.delta[row]) = (Real::ZERO, Real::ZERO);
                continue;
            }

            let (out, dout) = (&sums[row * width..][..width], &dout[row * width..][..width]);
            let dlse = self.saved.dlse.map_or(E::Real::ZERO, |dlse| dlse[at]);
            per_row.delta[row] = dot(simd, out, dout) - dlse;
            per_row.lse[row] = lse;
        }
        sums.fill(Real::ZERO);
    }

    /// Computes P and dS for a block of keys, which starts at `offset` within the loaded keys.
    #[inline(always)]
    fn softmax_grad<S: Simd>(
        &mut self,
        simd: S,
        index: usize,
        strip: &Strip<E::Real>,
        keys: &Range<usize>,
        offset: usize,
        per_row: &PerRow<E::Real>,
    ) {
        let head_dim = self.group.attention.shape.head_dim;
        let width = padded(head_dim);

        let scores = [
            (&*self.keys, &*self.q_columns, &mut *self.weights),
            (&*self.values, &*self.dout_columns, &mut *self.dscores),
        ];
        for (a, b, c) in scores {
            simd.vectorize(Product {
                order: Order::Rows,
                a: &a[offset * width..],
                a_stride: width,
                b: &b[index * STRIP * width..],
                b_stride: STRIP,
                c,
                c_stride: STRIP,
                extents: [keys.len(), strip.lanes(), head_dim],
                accumulate: false,
            });
        }

        simd.vectorize(SoftmaxGradStep {
            weights: self.weights,
            dscores: self.dscores,
            strip,
            keys: keys.clone(),
            scale: Real::from_f64(self.group.attention.scale),
            per_row,
        });
    }

    /// dV += P^T dO, dK += dS^T Q, dQ += dS K.
    #[inline(always)]
    fn add_products<S: Simd>(
        &mut self,
        simd: S,
        index: usize,
        strip: &Strip<E::Real>,
        keys: &Range<usize>,
        offset: usize,
    ) {
        let width = padded(self.group.attention.shape.head_dim);
        let of_strip = index * STRIP * width;
        let of_keys = (self.group.segment.keys.start + keys.start) * width;

        let sums = [
            (&*self.weights, &*self.dout, &mut *self.dv),
            (&*self.dscores, &*self.q, &mut *self.dk),
        ];
        for (a, b, c) in sums {
            simd.vectorize(Product {
                order: Order::Rows,
                a,
                a_stride: STRIP,
                b: &b[of_strip..],
                b_stride: width,
                c: &mut c[of_keys..],
                c_stride: width,
                extents: [keys.len(), width, strip.rows],
                accumulate: true,
            });
        }

        simd.vectorize(Product {
            order: Order::Columns,
            a: self.dscores,
            a_stride: STRIP,
            b: &self.keys[offset * width..],
            b_stride: width,
            c: &mut self.dq_sums[of_strip..],
            c_stride: width,
            extents: [strip.rows, width, keys.len()],
            accumulate: true,
        });
    }

    #[inline(always)]
    fn store(&self, index: usize, strip: &Strip<E::Real>) {
        let Shape { queries, heads, head_dim, .. } = self.group.attention.shape;
        let width = padded(head_dim);

        for (row, [b, t, h]) in (0..strip.rows).zip(self.group.row_indices(strip.first)) {
            // SAFETY: rows are split among tasks, so only this task writes row (b, t, h), and once.
            let dq = unsafe { self.dq.part(((b * queries + t) * heads + h) * head_dim, head_dim) };
            for (dq, sum) in dq.iter_mut().zip(&self.dq_sums[(index * STRIP + row) * width..]) {
                *dq = E::from_real(*sum);
            }
        }
    }
}

/// Replaces scores by P and dP by dS, both [keys, STRIP].
struct SoftmaxGradStep<'a, R> {
    weights: &'a mut [R],
    dscores: &'a mut [R],
    strip: &'a Strip<R>,
    keys: Range<usize>,
    scale: R,
    per_row: &'a PerRow<R>,
}

impl<R: Real> WithSimd for SoftmaxGradStep<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let lanes = lanes::<S, R>();
        let in_use = self.strip.lanes();

        let mut lane = 0;
        while lane + 2 * lanes <= in_use {
            self.lanes::<S, 2>(simd, lane);
            lane += 2 * lanes;
        }
        while lane < in_use {
            self.lanes::<S, 1>(simd, lane);
            lane += lanes;
        }
    }
}

impl<R: Real> SoftmaxGradStep<'_, R> {
    #[inline(always)]
    fn lanes<S: Simd, const N: usize>(&mut self, simd: S, lane: usize) {
        let low = load::<S, R, N>(&self.strip.low[lane..]);
        let high = load::<S, R, N>(&self.strip.high[lane..]);
        let lse = load::<S, R, N>(&self.per_row.lse[lane..]);
        let delta = load::<S, R, N>(&self.per_row.delta[lane..]);
        let masks = self.strip.masks(&self.keys);
        let scale = R::splat(simd, self.scale);

        let weights = self.weights.chunks_exact_mut(STRIP);
        let dscores = self.dscores.chunks_exact_mut(STRIP);
        for (key, (weights, dscores)) in self.keys.clone().zip(weights.zip(dscores)) {
            let weights = &mut R::vectors_mut::<S>(&mut weights[lane..])[..N];
            let dscores = &mut R::vectors_mut::<S>(&mut dscores[lane..])[..N];
            for n in 0..N {
                let mut score = R::mul_lanes(simd, weights[n], scale);
                if masks {
                    let at = R::splat(simd, R::from_count(key));
                    score = R::visible(simd, score, at, [low[n], high[n]]);
                }
                weights[n] = R::exp_lanes(simd, R::sub_lanes(simd, score, lse[n]));

                let weight = R::mul_lanes(simd, weights[n], scale);
                dscores[n] = R::mul_lanes(simd, weight, R::sub_lanes(simd, dscores[n], delta[n]));
            }
        }
    }
}

/// Dot product of two rows, whose lengths are multiples of the vector length.
#[inline(always)]
fn dot<S: Simd, R: Real>(simd: S, a: &[R], b: &[R]) -> R {
    let mut sum = R::splat(simd, R::ZERO);
    for (a, b) in R::vectors::<S>(a).iter().zip(R::vectors::<S>(b)) {
        sum = R::mul_add_lanes(simd, *a, *b, sum);
    }
    R::sum_lanes(simd, sum)
}
