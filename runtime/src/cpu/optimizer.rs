//! Optimizer kernels: AdamW in one pass over parameter, gradient and state, and sums of squares.

use std::ops::Range;

use super::random::Words;
use super::strided::{CHUNK, Chunk, Source};
use super::{BLOCK, blocks as split, for_parts};
use crate::core::arguments::optimizer::AdamWConstants;
use crate::{Float, Number, Result, Tensor, Wide, for_float};

/// The factors of an AdamW step.
#[derive(Clone, Copy)]
pub(crate) struct Factors<W> {
    /// Factor of the gradient.
    scale: W,
    one_minus_beta1: W,
    beta2: W,
    one_minus_beta2: W,
    /// 1 - learning rate * weight decay.
    decay: W,
    /// Learning rate / (1 - beta1^step).
    step_size: W,
    /// 1 / sqrt(1 - beta2^step).
    inv_sqrt_correction: W,
    eps: W,
}

impl<W: Wide> Factors<W> {
    /// Computes the factors in f64, and rounds each once.
    pub(crate) fn new(of: AdamWConstants, learning_rate: f64, step: u32, scale: f64) -> Factors<W> {
        Factors {
            scale: W::from_f64(scale),
            one_minus_beta1: W::from_f64(1.0 - of.beta1),
            beta2: W::from_f64(of.beta2),
            one_minus_beta2: W::from_f64(1.0 - of.beta2),
            decay: W::from_f64(1.0 - learning_rate * of.weight_decay),
            step_size: W::from_f64(learning_rate / (1.0 - power(of.beta1, step))),
            inv_sqrt_correction: W::from_f64(1.0 / (1.0 - power(of.beta2, step)).sqrt()),
            eps: W::from_f64(of.eps),
        }
    }
}

/// base^exponent by squaring, because `pow` of the C library differs between machines.
fn power(mut base: f64, mut exponent: u32) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent % 2 == 1 {
            product *= base;
        }
        base *= base;
        exponent /= 2;
    }
    product
}

/// A parameter, its gradient and its state.
pub(crate) struct Update<'a, T: Float> {
    pub(crate) param: &'a mut [T],
    pub(crate) gradient: Source<'a, T::Wide>,
    pub(crate) exp_avg: &'a mut [T::Wide],
    pub(crate) exp_avg_sq: &'a mut [T::Wide],
    pub(crate) factors: Factors<T::Wide>,
    /// The random words of stochastic rounding, if enabled.
    pub(crate) words: Option<Words>,
}

/// One AdamW step of all parameters. The blocks of all parameters run in parallel.
pub(crate) fn adamw<T: Float>(updates: Vec<Update<'_, T>>) {
    let mut updates = updates;
    let mut steps: Vec<Block<'_, T>> = updates.iter_mut().flat_map(Update::blocks).collect();
    for_parts(split(&mut steps, 1), |_, step| step[0].run());
}

impl<T: Float> Update<'_, T> {
    fn blocks(&mut self) -> impl Iterator<Item = Block<'_, T>> {
        let params = self.param.chunks_mut(BLOCK);
        let states = self.exp_avg.chunks_mut(BLOCK).zip(self.exp_avg_sq.chunks_mut(BLOCK));
        let (gradient, factors) = (&self.gradient, &self.factors);
        let words = self.words.as_ref();
        let blocks = params.zip(states).enumerate();
        blocks.map(move |(at, (param, (exp_avg, exp_avg_sq)))| {
            let start = at * BLOCK;
            Block { param, gradient, start, exp_avg, exp_avg_sq, factors, words }
        })
    }
}

/// A block of one parameter, starting at element `start`.
struct Block<'a, T: Float> {
    param: &'a mut [T],
    gradient: &'a Source<'a, T::Wide>,
    start: usize,
    exp_avg: &'a mut [T::Wide],
    exp_avg_sq: &'a mut [T::Wide],
    factors: &'a Factors<T::Wide>,
    words: Option<&'a Words>,
}

impl<T: Float> Block<'_, T> {
    fn run(&mut self) {
        let Block { param, gradient, start, exp_avg, exp_avg_sq, factors, words } = self;
        let by = **factors;
        vectorized!(T::Wide, || {
            let mut chunk = Chunk::of(T::Wide::ZERO);
            let params = param.chunks_mut(CHUNK);
            let states = exp_avg.chunks_mut(CHUNK).zip(exp_avg_sq.chunks_mut(CHUNK));
            for (at, (param, (exp_avg, exp_avg_sq))) in params.zip(states).enumerate() {
                let chunk = &mut chunk[..param.len()];
                let start = *start + at * CHUNK;
                gradient.load_wide(start, chunk);
                let elements = param.iter().zip(exp_avg).zip(exp_avg_sq).zip(chunk.iter_mut());
                for (((p, m), v), stepped) in elements {
                    let g = *stepped * by.scale;
                    *m += by.one_minus_beta1 * (g - *m);
                    *v = by.beta2 * *v + by.one_minus_beta2 * g * g;

                    let root = v.sqrt() * by.inv_sqrt_correction + by.eps;
                    *stepped = p.wide() * by.decay - by.step_size * *m / root;
                }
                round(param, chunk, *words, start);
            }
        });
    }
}

/// Rounds elements to nearest or, with random words, stochastically. The first is element `start`.
#[inline(always)]
fn round<T: Float>(to: &mut [T], from: &[T::Wide], words: Option<&Words>, start: usize) {
    let elements = to.iter_mut().zip(from);
    let Some(words) = words else {
        return elements.for_each(|(to, from)| *to = T::narrow(*from));
    };
    let mut random = Chunk::of(0);
    words.load_high(start, &mut random[..from.len()]);
    for ((to, from), word) in elements.zip(random.iter()) {
        *to = T::narrow_at_random(*from, *word);
    }
}

/// The blocks that [`sum_of_squares`] sums: ranges of each tensor, in row-major order.
pub(crate) fn blocks<'a>(tensors: &[&'a Tensor]) -> Vec<(&'a Tensor, Range<usize>)> {
    let of = |tensor: &&'a Tensor| {
        let (tensor, elements) = (*tensor, tensor.elements());
        let starts = (0..elements).step_by(BLOCK);
        starts.map(move |start| (tensor, start..elements.min(start + BLOCK)))
    };
    tensors.iter().flat_map(of).collect()
}

/// The sum of the squares of all elements, in f64. `sums` has one element per block; the sums of
/// the blocks are added from first to last.
pub(crate) fn sum_of_squares(blocks: &[(&Tensor, Range<usize>)], sums: &mut [f64]) -> Result<f64> {
    let mut outcomes: Vec<Result<()>> = blocks.iter().map(|_| Ok(())).collect();
    for_parts((split(sums, 1), split(&mut outcomes, 1)), |at, (sum, outcome)| {
        let (tensor, range) = &blocks[at];
        outcome[0] = for_float!(tensor.dtype(), T => {
            Source::new(tensor).map(|x| sum[0] = block_of_squares::<T>(&x, range.clone()))
        });
    });
    outcomes.into_iter().collect::<Result<()>>()?;
    Ok(sums.iter().sum())
}

fn block_of_squares<T: Float>(x: &Source<'_, T>, range: Range<usize>) -> f64 {
    const LANES: usize = 32;

    vectorized!(T::Wide, || {
        let (mut lanes, mut chunk) = ([0.0f64; LANES], Chunk::of(0.0f64));
        for start in range.clone().step_by(CHUNK) {
            let chunk = &mut chunk[..CHUNK.min(range.end - start)];
            x.load(start, chunk, |element| element.to_f64());
            for group in chunk.chunks(LANES) {
                for (lane, value) in lanes.iter_mut().zip(group) {
                    *lane += value * value;
                }
            }
        }
        lanes.iter().sum()
    })
}
