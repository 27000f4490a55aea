//! Random values and dropout. The value of an element depends only on a key and its global index,
//! through [`philox`](crate::philox).
//!
//! Two forms, chosen by [`RandomSpace::form`]:
//!
//! - **Blocks**: elements are contiguous and their indices are consecutive from a multiple of 4. A
//!   thread moves 16 bytes per access and uses all four words of each Philox block.
//! - **Strided**: everything else, such as a shard that is a box of a larger tensor. A thread
//!   computes the index of each of its elements, and one block per element.

mod blocks;
pub mod quantile;
mod strided;

use meshgrad_error::Result;

use crate::Dtype;
use crate::assembler::{
    Argument, ArgumentFor, Arguments, F32, In, Kernel, Launch, Out, Ptx, Target, U32, Variant,
};
use crate::elementwise::strided::Space;
use crate::elementwise::{Element, IterationSpace, Layout};
use crate::params;

/// Threads per CTA.
const THREADS: u32 = 256;

/// The distribution of random values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Uniform in an interval.
    Uniform,
    /// Normal.
    Normal,
    /// The scaled operand, or 0.
    Dropout,
    /// Whether dropout keeps the element, as a byte.
    Mask,
}

/// A distribution with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DistributionParams {
    /// low + length u with u in [0, 1), limited to at most `last`.
    Uniform {
        /// The lower end.
        low: f32,
        /// The upper end minus the lower end.
        length: f32,
        /// The largest value that may be drawn.
        last: f32,
    },
    /// mean + std z.
    Normal {
        /// The mean.
        mean: f32,
        /// The standard deviation.
        std: f32,
    },
    /// x scale if the word is at least `threshold`, otherwise 0.
    Dropout {
        /// The smallest word that keeps its element.
        threshold: u32,
        /// The factor of kept elements.
        scale: f32,
    },
    /// 1 if the word is at least `threshold`, otherwise 0.
    Mask {
        /// The smallest word that keeps its element.
        threshold: u32,
    },
}

impl DistributionParams {
    /// The distribution without its parameters.
    pub fn distribution(&self) -> Distribution {
        match self {
            DistributionParams::Uniform { .. } => Distribution::Uniform,
            DistributionParams::Normal { .. } => Distribution::Normal,
            DistributionParams::Dropout { .. } => Distribution::Dropout,
            DistributionParams::Mask { .. } => Distribution::Mask,
        }
    }
}

params! {
    /// The layout of the result, its global indices and an optional operand.
    pub struct RandomSpace for variant: Random {
        /// The global index of the first element.
        first: u64,
        /// Extents, and strides of the result, the global indices and the operand.
        space: IterationSpace = variant.layout.form(2 + usize::from(variant.has_operand())),
    }
}

impl RandomSpace {
    /// The space of elements of shape `extents`. `result` and `operand` are the strides of the
    /// tensors. The global index of an element is `first` plus its coordinates times `places`.
    ///
    /// # Errors
    /// As [`IterationSpace::new`].
    pub fn new(
        extents: &[usize],
        result: &[isize],
        (first, places): (u64, &[isize]),
        operand: Option<&[isize]>,
    ) -> Result<RandomSpace> {
        let space = match operand {
            Some(operand) => IterationSpace::new(extents, result, &[places, operand]),
            None => IterationSpace::new(extents, result, &[places]),
        };
        Ok(RandomSpace { space: space?, first })
    }

    /// The form of the kernel for this space. `aligned`: whether result and operand begin at
    /// multiples of 16 bytes.
    pub fn form(&self, aligned: bool) -> Layout {
        self.space.layout(aligned && self.first.is_multiple_of(4))
    }
}

/// A kernel that draws random values or applies dropout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Random {
    distribution: Distribution,
    format: Element,
    layout: Layout,
}

impl Random {
    /// The kernel for a distribution. The result and the operand of dropout have `dtype`; a mask
    /// ignores it.
    pub fn new(distribution: Distribution, dtype: Dtype, layout: Layout) -> Random {
        let format = match distribution {
            Distribution::Mask => Element::Bool,
            _ => Element::Float(dtype),
        };
        Random { distribution, format, layout }
    }

    /// The launch over elements; `None` if there are no elements.
    pub fn launch(&self, elements: u64) -> Option<Launch> {
        let tile = match self.layout {
            Layout::Contiguous => blocks::tile(self),
            Layout::Strided { .. } => strided::TILE,
        };
        let ctas = elements.div_ceil(u64::from(tile));
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], THREADS)
    }

    /// The layout of its elements.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    fn has_operand(&self) -> bool {
        self.distribution == Distribution::Dropout
    }
}

params! {
    /// Arguments of [`Random`].
    pub struct RandomArguments => Parameters for variant: Random {
        /// The address of the operand's first element, which only dropout reads.
        operand: Option<In> = variant.has_operand(),
        /// The address of the result's first element.
        result: Out,
        /// The four words of the key.
        key: [u32; 4],
        /// The distribution with its parameters.
        values: DistributionParams = variant.distribution,
        /// The layout and global indices of the elements.
        space: RandomSpace = *variant,
    }
}

impl Variant for Random {
    type Arguments = RandomArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let parameters = self.parameters(k);
        match (&parameters.space.space, self.layout) {
            (Space::Narrow(space), Layout::Contiguous) => {
                blocks::write(k, self, &parameters, space.elements);
            }
            (Space::Narrow(space), _) => strided::write(k, self, &parameters, space),
            (Space::Wide(space), _) => strided::write(k, self, &parameters, space),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        let distribution = match self.distribution {
            Distribution::Uniform => "uniform",
            Distribution::Normal => "normal",
            Distribution::Dropout => "dropout",
            Distribution::Mask => "dropout_mask",
        };
        let layout = match self.layout {
            Layout::Contiguous => "blocks".to_owned(),
            Layout::Strided { dims, wide: false } => format!("strided{dims}"),
            Layout::Strided { dims, wide: true } => format!("strided{dims}_wide"),
        };
        format!("{distribution}_{}_{layout}", self.format.name())
    }
}

/// [`DistributionParams`] in registers.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub enum Rule<'k> {
    Uniform { low: F32<'k>, length: F32<'k>, last: F32<'k> },
    Normal { mean: F32<'k>, std: F32<'k> },
    Dropout { threshold: U32<'k>, scale: F32<'k> },
    Mask { threshold: U32<'k> },
}

impl Argument for DistributionParams {
    type InKernel<'k> = Rule<'k>;
}

impl ArgumentFor<Distribution> for DistributionParams {
    #[track_caller]
    fn declare<'k>(k: &'k Kernel, _: &str, distribution: &Distribution) -> Rule<'k> {
        match distribution {
            Distribution::Uniform => Rule::Uniform {
                low: f32::declare(k, "low", &()),
                length: f32::declare(k, "length", &()),
                last: f32::declare(k, "last", &()),
            },
            Distribution::Normal => Rule::Normal {
                mean: f32::declare(k, "mean", &()),
                std: f32::declare(k, "std", &()),
            },
            Distribution::Dropout => Rule::Dropout {
                threshold: u32::declare(k, "threshold", &()),
                scale: f32::declare(k, "scale", &()),
            },
            Distribution::Mask => Rule::Mask { threshold: u32::declare(k, "threshold", &()) },
        }
    }

    fn push(&self, _: &Distribution, arguments: &mut Arguments) {
        match *self {
            DistributionParams::Uniform { low, length, last } => {
                [low, length, last].push(&(), arguments);
            }
            DistributionParams::Normal { mean, std } => [mean, std].push(&(), arguments),
            DistributionParams::Dropout { threshold, scale } => {
                threshold.push(&(), arguments);
                scale.push(&(), arguments);
            }
            DistributionParams::Mask { threshold } => threshold.push(&(), arguments),
        }
    }
}

impl<'k> Rule<'k> {
    /// The value of an element from its random word and its operand, if it has one. Only uniform
    /// values are rounded to `format`, because `last` limits the rounded value.
    #[track_caller]
    fn value(&self, format: Element, word: U32<'k>, operand: Option<F32<'k>>) -> F32<'k> {
        match (self, operand) {
            (Rule::Uniform { low, length, last }, _) => {
                let unit = (word >> 8).signed().to_f32() * (1.0 / (1u32 << 24) as f32);
                let value = format.rounded(unit * *length + *low);
                value.gt(*last).select(*last, value)
            }
            (Rule::Normal { mean, std }, _) => quantile::normal(word) * *std + *mean,
            (Rule::Dropout { threshold, scale }, Some(x)) => {
                word.ge(*threshold).select(x * *scale, 0.0)
            }
            (Rule::Dropout { threshold, .. } | Rule::Mask { threshold }, _) => {
                word.ge(*threshold).select(1.0, 0.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only indices that start at a multiple of 4 use the form for blocks.
    #[test]
    fn form_depends_on_the_first_index() {
        let form = |first| {
            let space = RandomSpace::new(&[3, 4], &[4, 1], (first, &[4, 1]), None).unwrap();
            space.form(true)
        };
        assert_eq!(form(8), Layout::Contiguous);
        let (dims, wide) = (1, false);
        assert_eq!(form(6), Layout::Strided { dims, wide });
        let dropped = Random::new(Distribution::Mask, Dtype::F32, form(8));
        assert_eq!(dropped.launch(0), None);
        assert_eq!(dropped.launch(2049).unwrap().grid, [2, 1, 1]);
    }
}
