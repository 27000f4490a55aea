//! Kernels of the optimizer: one pass over parameter, gradient and state.

use rayon::prelude::*;

use super::{BLOCK, vectorised};
use crate::ops::AdamW;
use crate::{Element, Float, Wide};

/// What a step is multiplied by, from constants and the step's scalars.
pub(crate) struct Factors<W> {
    beta1: W,
    beta2: W,
    eps: W,
    /// 1 - learning rate * decay.
    keep: W,
    /// Learning rate over the first bias correction.
    rate: W,
    /// The root of the second bias correction, inverted.
    unbias: W,
    scale: W,
}

impl<W: Wide> Factors<W> {
    pub(crate) fn new(adamw: AdamW, learning_rate: f64, step: f64, scale: f64) -> Factors<W> {
        let correction = |beta: f64| 1.0 - beta.powf(step);
        Factors {
            beta1: W::from_f64(adamw.beta1),
            beta2: W::from_f64(adamw.beta2),
            eps: W::from_f64(adamw.eps),
            keep: W::from_f64(1.0 - learning_rate * adamw.weight_decay),
            rate: W::from_f64(learning_rate / correction(adamw.beta1)),
            unbias: W::from_f64(correction(adamw.beta2).sqrt().recip()),
            scale: W::from_f64(scale),
        }
    }
}

/// One AdamW step on slices of one length.
pub(crate) fn adamw<P: Float>(
    param: &mut [P],
    gradient: &[P::Wide],
    mean: &mut [P::Wide],
    square: &mut [P::Wide],
    factors: &Factors<P::Wide>,
) {
    let block = |(((param, gradient), mean), square): Block<'_, P>| {
        vectorised(|| {
            for (((p, g), m), v) in param.iter_mut().zip(gradient).zip(mean).zip(square) {
                let g = *g * factors.scale;
                *m = factors.beta1 * *m + (P::Wide::ONE - factors.beta1) * g;
                *v = factors.beta2 * *v + (P::Wide::ONE - factors.beta2) * g * g;
                let denominator = v.sqrt() * factors.unbias + factors.eps;
                *p = P::narrow(p.wide() * factors.keep - factors.rate * *m / denominator);
            }
        });
    };

    if param.len() <= BLOCK {
        return block((((param, gradient), mean), square));
    }
    param
        .par_chunks_mut(BLOCK)
        .zip(gradient.par_chunks(BLOCK))
        .zip(mean.par_chunks_mut(BLOCK))
        .zip(square.par_chunks_mut(BLOCK))
        .for_each(block);
}

/// A block of parameter, gradient, mean and square.
type Block<'a, P> = (
    (
        (&'a mut [P], &'a [<P as Float>::Wide]),
        &'a mut [<P as Float>::Wide],
    ),
    &'a mut [<P as Float>::Wide],
);

/// The sum of squares, in f64: blocks in parallel, added from first to last.
pub(crate) fn sum_of_squares<T: Float>(values: &[T]) -> f64 {
    const LANES: usize = 16;

    let block = |block: &[T]| {
        let mut lanes = [0.0f64; LANES];
        vectorised(|| {
            for group in block.chunks(LANES) {
                for (lane, value) in lanes.iter_mut().zip(group) {
                    let value = value.to_f64();
                    *lane += value * value;
                }
            }
        });
        lanes.iter().sum::<f64>()
    };
    let sums: Vec<f64> = values.par_chunks(BLOCK).map(block).collect();
    sums.iter().sum()
}
