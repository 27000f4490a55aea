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

use crate::Dtype;
use crate::assembler::{Arguments, F32, GlobalAddress, Kernel, Launch, Ptx, Target, U32, Variant};
use crate::elementwise::{Element, IterationSpace, Layout};
use crate::error::Result;
use crate::philox::{Key, push_key};

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

    fn push(&self, arguments: &mut Arguments) {
        match *self {
            DistributionParams::Uniform { low, length, last } => {
                arguments.push_f32(low).push_f32(length).push_f32(last);
            }
            DistributionParams::Normal { mean, std } => {
                arguments.push_f32(mean).push_f32(std);
            }
            DistributionParams::Dropout { threshold, scale } => {
                arguments.push_u32(threshold).push_f32(scale);
            }
            DistributionParams::Mask { threshold } => {
                arguments.push_u32(threshold);
            }
        }
    }
}

/// The layout of the result, its global indices and an optional operand.
#[derive(Clone, Copy, Debug)]
pub struct RandomSpace {
    space: IterationSpace,
    first: u64,
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
        Ok(RandomSpace {
            space: space?,
            first,
        })
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
        Random {
            distribution,
            format,
            layout,
        }
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

    fn parameters<'k>(&self, k: &'k Kernel) -> Parameters<'k> {
        let operand = (self.distribution == Distribution::Dropout).then(|| k.pointer("x"));
        let (result, key) = (k.pointer("y"), Key::parameters(k));
        Parameters {
            format: self.format,
            operand,
            result,
            key,
            rule: Rule::parameters(k, self.distribution),
        }
    }
}

impl Variant for Random {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        match self.layout {
            Layout::Contiguous => blocks::write(k, self),
            Layout::Strided { dims, wide: false } => strided::write::<u32, i32>(k, self, dims),
            Layout::Strided { dims, wide: true } => strided::write::<u64, i64>(k, self, dims),
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

/// Arguments of [`Random`].
#[derive(Clone, Copy, Debug)]
pub struct RandomArguments<'a> {
    /// The address of the operand's first element, which only dropout reads.
    pub operand: u64,
    /// The address of the result's first element.
    pub result: u64,
    /// The four words of the key.
    pub key: [u32; 4],
    /// The distribution with its parameters.
    pub values: DistributionParams,
    /// The layout and global indices of the elements.
    pub space: &'a RandomSpace,
}

impl RandomArguments<'_> {
    /// The bytes of the parameters of `variant`.
    pub fn arguments(&self, variant: &Random) -> Arguments {
        let mut arguments = Arguments::new();
        if variant.distribution == Distribution::Dropout {
            arguments.push_pointer(self.operand);
        }
        arguments.push_pointer(self.result);
        push_key(&mut arguments, self.key);
        self.values.push(&mut arguments);
        arguments.push_u64(self.space.first);
        match variant.layout {
            Layout::Contiguous => {
                arguments.push_u64(self.space.space.elements());
            }
            Layout::Strided { wide, .. } => {
                crate::elementwise::push_space(&mut arguments, &self.space.space, wide);
            }
        }
        arguments
    }
}

/// The first parameters of both forms.
struct Parameters<'k> {
    format: Element,
    operand: Option<GlobalAddress<'k>>,
    result: GlobalAddress<'k>,
    key: Key<'k>,
    rule: Rule<'k>,
}

/// [`DistributionParams`] in registers.
enum Rule<'k> {
    Uniform {
        low: F32<'k>,
        length: F32<'k>,
        last: F32<'k>,
    },
    Normal {
        mean: F32<'k>,
        std: F32<'k>,
    },
    Dropout {
        threshold: U32<'k>,
        scale: F32<'k>,
    },
    Mask {
        threshold: U32<'k>,
    },
}

impl<'k> Rule<'k> {
    fn parameters(k: &'k Kernel, distribution: Distribution) -> Rule<'k> {
        match distribution {
            Distribution::Uniform => Rule::Uniform {
                low: k.f32_param("low"),
                length: k.f32_param("length"),
                last: k.f32_param("last"),
            },
            Distribution::Normal => Rule::Normal {
                mean: k.f32_param("mean"),
                std: k.f32_param("std"),
            },
            Distribution::Dropout => Rule::Dropout {
                threshold: k.u32_param("threshold"),
                scale: k.f32_param("scale"),
            },
            Distribution::Mask => Rule::Mask {
                threshold: k.u32_param("threshold"),
            },
        }
    }

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

    #[test]
    fn arguments_fill_the_parameter_space() {
        let strides = [1; IterationSpace::MAX_DIMS];
        let space = RandomSpace::new(&[7; 6], &strides, (4, &strides), Some(&strides)).unwrap();
        let fill = RandomSpace::new(&[7; 6], &strides, (4, &strides), None).unwrap();
        let (threshold, scale) = (7, 2.0);
        let of = [
            (DistributionParams::Mask { threshold }, &fill),
            (DistributionParams::Dropout { threshold, scale }, &space),
            (
                DistributionParams::Normal {
                    mean: 0.0,
                    std: 1.0,
                },
                &fill,
            ),
            (
                DistributionParams::Uniform {
                    low: 0.0,
                    length: 1.0,
                    last: 1.0,
                },
                &fill,
            ),
        ];
        let strided = |wide| Layout::Strided { dims: 6, wide };
        for (values, space) in of {
            for layout in [Layout::Contiguous, strided(false), strided(true)] {
                let variant = Random::new(values.distribution(), Dtype::Bf16, layout);
                let arguments = RandomArguments {
                    operand: 256,
                    result: 512,
                    key: [1, 2, 3, 4],
                    values,
                    space,
                };
                let bytes = arguments.arguments(&variant);
                let parameters = variant.ptx().parameter_bytes();
                assert_eq!(bytes.bytes().len(), parameters, "{variant:?}");
            }
        }
    }

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
