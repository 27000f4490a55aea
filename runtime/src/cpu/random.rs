//! Random words for the elements of a tensor, and their conversion to floats.
//!
//! Element `i` of the global tensor has word `i % 4` of Philox block `i / 4`. An f64 also uses the
//! same word of a second block for its low bits, so narrower floats have the leading digits of the
//! f64.

use super::quantile::{normal_f32, normal_f64};
use super::strided::{CHUNK, Chunk, Source};
use super::{BLOCK, for_blocks};
use crate::core::philox::philox;
use crate::core::strides::Dims;
use crate::{Bool, Element, Float, Key, Layout, Number, Result, Tensor, Wide};

/// Philox blocks of four words that are computed in one vectorized batch.
const LANES: usize = 16;

/// The random words of a tensor's elements, in row-major order.
pub(crate) struct Words {
    key: [u32; 4],
    indices: Dims,
}

/// The high or the low word of an element.
#[derive(Clone, Copy)]
enum Part {
    High = 0,
    Low = 1,
}

impl Words {
    /// The words of `key` for elements whose global indices are the offsets of `indices`.
    pub(crate) fn new(key: Key, indices: &Layout) -> Words {
        Words { key: key.words(), indices: Dims::new(indices) }
    }

    /// Stores the high words of the elements from `start` on. f32 uses only these.
    pub(crate) fn load_high(&self, start: usize, to: &mut [u32]) {
        self.load(Part::High, start, to);
    }

    /// Stores the high or low words of the elements from `start` on.
    #[inline(always)]
    fn load(&self, part: Part, start: usize, to: &mut [u32]) {
        let mut filled = 0;
        self.indices.for_each_run(
            start,
            to.len(),
            #[inline(always)]
            |index, stride, run| {
                let to = &mut to[filled..filled + run];
                filled += run;
                if stride == 1 {
                    return self.load_run(part, index as u64, to);
                }
                for (i, word) in to.iter_mut().enumerate() {
                    let index = (index as isize + i as isize * stride) as u64;
                    self.load_run(part, index, std::slice::from_mut(word));
                }
            },
        );
    }

    /// Stores the words of elements with consecutive global indices from `first` on.
    #[inline(always)]
    fn load_run(&self, part: Part, first: u64, mut to: &mut [u32]) {
        let mut block = first / 4;
        let mut skip = (first % 4) as usize;
        while !to.is_empty() {
            // Short runs compute one block at a time: most runs of a narrow shard are short.
            let mut words = [0; 4 * LANES];
            let made = match skip + to.len() <= LANES {
                true => self.blocks::<1>(part, block, &mut words),
                false => self.blocks::<LANES>(part, block, &mut words),
            };

            let taken = to.len().min(made - skip);
            let (now, rest) = to.split_at_mut(taken);
            now.copy_from_slice(&words[skip..skip + taken]);
            (to, block, skip) = (rest, block + made as u64 / 4, 0);
        }
    }

    /// Stores `N` blocks of four words from block `first` on; returns the number of words.
    #[inline(always)]
    fn blocks<const N: usize>(&self, part: Part, first: u64, to: &mut [u32; 4 * LANES]) -> usize {
        let [a, b, c, d] = self.key;
        // Block indices have 62 bits, so the top bit of the counter's second word is free.
        let part = (part as u64) << 31;
        let mut counters = [[0; N], [part; N], [c.into(); N], [d.into(); N]];
        #[allow(
            clippy::needless_range_loop,
            reason = "the compiler does not inline all iterators into a body of this size"
        )]
        for lane in 0..N {
            let block = first + lane as u64;
            counters[0][lane] = block & 0xffff_ffff;
            counters[1][lane] |= block >> 32;
        }

        let words = philox::<N>([a, b], counters);
        for lane in 0..N {
            for word in 0..4 {
                to[4 * lane + word] = words[word][lane];
            }
        }
        4 * N
    }
}

/// A float type that random words are converted to: one word for f32, two for f64. The low word of
/// an f64 only adds digits.
pub(crate) trait Variate: Wide {
    /// Whether the type uses the low word.
    const WIDE: bool;

    /// Uniform in [0, 1): 24 bits in f32, 53 in f64.
    fn unit(high: u32, low: u32) -> Self;

    /// Standard normal.
    fn normal(high: u32, low: u32) -> Self;
}

impl Variate for f32 {
    const WIDE: bool = false;

    #[inline(always)]
    fn unit(high: u32, _: u32) -> f32 {
        const STEP: f32 = 1.0 / (1 << 24) as f32;
        (high >> 8) as i32 as f32 * STEP
    }

    #[inline(always)]
    fn normal(high: u32, _: u32) -> f32 {
        normal_f32(high)
    }
}

impl Variate for f64 {
    const WIDE: bool = true;

    #[inline(always)]
    fn unit(high: u32, low: u32) -> f64 {
        const STEP: f64 = 1.0 / (1u64 << 53) as f64;
        (join(high, low) >> 11) as i64 as f64 * STEP
    }

    #[inline(always)]
    fn normal(high: u32, low: u32) -> f64 {
        normal_f64(join(high, low))
    }
}

#[inline(always)]
fn join(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// `out[i] = value(high, low)` with the random words of element i. `value` must be
/// `#[inline(always)]`: otherwise it is compiled without vector instructions.
pub(crate) fn fill<T: Float<Wide: Variate>>(
    words: &Words,
    out: &mut [T],
    value: impl Fn(u32, u32) -> T + Sync,
) {
    for_blocks(out, BLOCK, |start, part| {
        vectorized!(T::Wide, || {
            let (mut high, mut low) = (Chunk::of(0), Chunk::of(0));
            for (at, out) in part.chunks_mut(CHUNK).enumerate() {
                let start = start + at * CHUNK;
                words.load(Part::High, start, &mut high[..out.len()]);
                if T::Wide::WIDE {
                    words.load(Part::Low, start, &mut low[..out.len()]);
                }
                for (out, (high, low)) in out.iter_mut().zip(high.iter().zip(low.iter())) {
                    *out = value(*high, *low);
                }
            }
        });
    });
}

/// `out[i] = x[i] * scale` if the random word of element i is at least `threshold`, else 0.
pub(crate) fn dropout<T: Float>(
    x: &Tensor,
    words: &Words,
    threshold: u32,
    scale: f64,
    out: &mut [T],
) -> Result<()> {
    let x = Source::<T>::new(x)?;
    let scale = T::Wide::from_f64(scale);
    for_blocks(out, BLOCK, |start, part| {
        vectorized!(T::Wide, || {
            let (mut random, mut x_part) = (Chunk::of(0), Chunk::of(T::Wide::ZERO));
            for (at, out) in part.chunks_mut(CHUNK).enumerate() {
                let start = start + at * CHUNK;
                words.load(Part::High, start, &mut random[..out.len()]);
                x.load_wide(start, &mut x_part[..out.len()]);
                for (out, (random, x)) in out.iter_mut().zip(random.iter().zip(x_part.iter())) {
                    let kept = if *random >= threshold { *x * scale } else { T::Wide::ZERO };
                    *out = T::narrow(kept);
                }
            }
        });
    });
    Ok(())
}

/// Whether the random word of each element is at least `threshold`.
pub(crate) fn mask(words: &Words, threshold: u32, out: &mut [Bool]) {
    for_blocks(out, BLOCK, |start, part| {
        vectorized!(f32, || {
            let mut random = Chunk::of(0);
            for (at, out) in part.chunks_mut(CHUNK).enumerate() {
                words.load(Part::High, start + at * CHUNK, &mut random[..out.len()]);
                for (out, random) in out.iter_mut().zip(random.iter()) {
                    *out = Bool::from(*random >= threshold);
                }
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Region, Shape};

    /// The expected words were computed by another program, from the definition in the module docs.
    /// They must never change.
    #[test]
    fn words_are_frozen() {
        let elements = [
            (0, 0xb850_222e, 0xbde0_4e29),
            (1, 0xc58c_b04b, 0xcd24_d769),
            (4, 0xadca_1466, 0xa0fb_359c),
            (1_000_003, 0xcdd4_a776, 0x9c0f_a207),
            ((1 << 34) + 5, 0x5fe7_20cb, 0x4f60_0015),
        ];
        let whole = Region::whole(&[1 << 40]).unwrap();
        for (index, high, low) in elements {
            let one = whole.slice(0, index..index + 1).unwrap();
            let draw = Key::new(0x0123_4567_89ab_cdef).within(&one);
            let indices = draw.global_indices("test", &Shape::new(&[1]).unwrap()).unwrap();
            let words = Words::new(draw.key(), &indices);

            let mut drawn = [0; 2];
            words.load(Part::High, 0, &mut drawn[..1]);
            words.load(Part::Low, 0, &mut drawn[1..]);
            assert_eq!(drawn, [high, low], "element {index}");
        }
    }

    /// Words do not depend on the start and length of the run, nor on the batching of blocks.
    #[test]
    fn runs_agree_with_single_elements() {
        let indices = Layout::contiguous(Shape::new(&[500]).unwrap(), 0);
        let words = Words::new(Key::new(3), &indices);
        let mut whole = [0; 500];
        for (at, word) in whole.iter_mut().enumerate() {
            words.load(Part::High, at, std::slice::from_mut(word));
        }
        for (start, len) in [(0, 500), (1, 3), (2, 17), (3, 64), (5, 200), (7, 0)] {
            let mut run = vec![0; len];
            words.load(Part::High, start, &mut run);
            assert_eq!(run, whole[start..start + len]);
        }
    }
}
