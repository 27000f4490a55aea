//! The table that describes the parameters of a launch.

use super::{CHUNK, Kind};
use crate::assembler::{F32, F64, GlobalAddress, Kernel, Register, Stored, U32, U64};
use crate::philox::Key;

/// Maximum number of dims of [`GlobalIndices`].
pub(super) const DIMS: usize = 6;

/// 64-bit words per entry.
const WORDS: usize = 28;

/// The hyperparameters of AdamW, except for the learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConstants {
    /// Decay of exp_avg, the running mean of the gradient.
    pub beta1: f64,
    /// Decay of exp_avg_sq, the running mean of the squared gradient.
    pub beta2: f64,
    /// Added to the square root of exp_avg_sq.
    pub eps: f64,
    /// Decoupled weight decay, multiplied by the learning rate.
    pub weight_decay: f64,
}

/// The global indices of a parameter's elements, which select their random words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalIndices {
    /// The index of the first element.
    pub first: u64,
    /// Extent and stride of each dim, innermost first. The kernel ignores dims after the sixth.
    pub dims: Vec<(u64, u64)>,
}

impl GlobalIndices {
    /// Whether every four consecutive elements share one Philox block.
    fn come_in_blocks(&self) -> bool {
        let Some(((extent, stride), outer)) = self.dims.split_first() else {
            return false;
        };
        let whole = |count: &u64| count.is_multiple_of(4);
        let inner = *stride == 1 && (outer.is_empty() || whole(extent));
        whole(&self.first) && inner && outer.iter().all(|(_, stride)| whole(stride))
    }
}

/// How a parameter is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// An f32.
    F32,
    /// A bf16, rounded to nearest.
    Bf16,
    /// A bf16 with stochastic rounding: rounded up or down at random, such that the expected result
    /// is the exact value. The random word is a function of the key, the step and the global index.
    Bf16Stochastic {
        /// The key.
        key: [u32; 4],
        /// The global indices.
        indices: GlobalIndices,
    },
}

impl Rounding {
    fn kind(&self) -> Kind {
        match self {
            Rounding::F32 => Kind::F32,
            Rounding::Bf16 => Kind::Bf16,
            Rounding::Bf16Stochastic { .. } => Kind::Bf16Stochastic,
        }
    }
}

/// A parameter with its gradient and optimizer state, all contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWEntry {
    /// Addresses of parameter, gradient, exp_avg and exp_avg_sq; all but the parameter are f32.
    pub addresses: [u64; 4],
    /// Elements per array.
    pub elements: u64,
    /// How the parameter is stored.
    pub rounding: Rounding,
    /// The hyperparameters.
    pub constants: AdamWConstants,
}

impl AdamWEntry {
    /// The entry in the layout of the table.
    pub fn words(&self) -> [u64; WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let of = self.constants;
        let float = |x: f64| (x as f32).to_bits();
        let mut words = [0; WORDS];
        words[..4].copy_from_slice(&self.addresses);
        words[ELEMENTS] = self.elements;
        words[BETAS..][..3]
            .copy_from_slice(&[of.beta1, of.beta2, of.weight_decay].map(f64::to_bits));
        words[GAINS] = pair(float(1.0 - of.beta1), float(of.beta2));
        words[GAINS + 1] = pair(float(1.0 - of.beta2), float(of.eps));
        words[KIND] = pair(self.rounding.kind().code(), u32::from(self.moves_groups()));
        if let Rounding::Bf16Stochastic { key, indices } = &self.rounding {
            let [a, b, c, d] = *key;
            words[KEY..][..2].copy_from_slice(&[pair(a, b), pair(c, d)]);
            words[FIRST] = indices.first;
            words[FIRST + 1] = indices.dims.len().min(DIMS) as u64;
            let dims = indices.dims.iter().take(DIMS);
            for (to, (extent, stride)) in
                words[PLACES..].as_chunks_mut::<2>().0.iter_mut().zip(dims)
            {
                *to = [*extent, *stride];
            }
        }
        words
    }

    /// The kinds of parameters that a table of such entries needs.
    pub fn variant(entries: &[AdamWEntry]) -> super::AdamW {
        let has = |kind| entries.iter().any(|entry| entry.rounding.kind() == kind);
        super::AdamW {
            f32: has(Kind::F32),
            bf16: has(Kind::Bf16),
            bf16_stochastic: has(Kind::Bf16Stochastic),
        }
    }

    /// Whether the kernel moves four elements per access. Requires that all addresses are 16-byte
    /// aligned and that the four elements share one Philox block.
    fn moves_groups(&self) -> bool {
        let blocks = match &self.rounding {
            Rounding::Bf16Stochastic { indices, .. } => indices.come_in_blocks(),
            Rounding::F32 | Rounding::Bf16 => true,
        };
        blocks && self.addresses.iter().all(|at| at.is_multiple_of(16))
    }
}

/// One word per CTA: the index of the entry in the lower half, the chunk of the entry in the upper
/// half.
pub fn chunk_words(entries: &[AdamWEntry]) -> Vec<u64> {
    let chunks = |(at, entry): (usize, &AdamWEntry)| {
        let chunks = 0..entry.elements.div_ceil(CHUNK.into());
        chunks.map(move |chunk| at as u64 | chunk << 32)
    };
    entries.iter().enumerate().flat_map(chunks).collect()
}

const ELEMENTS: usize = 4;
/// beta1, beta2 and weight decay, f64 each.
const BETAS: usize = 5;
/// 1 - beta1, beta2, 1 - beta2 and eps, f32 each.
const GAINS: usize = 8;
/// The code of the kind, and whether the kernel moves four elements per access.
const KIND: usize = 10;
const KEY: usize = 11;
/// The first global index, and the number of dims.
const FIRST: usize = 13;
/// Extent and stride of each dim.
const PLACES: usize = 16;

/// An entry on the GPU.
#[derive(Clone, Copy)]
pub(super) struct Entry<'k>(GlobalAddress<'k>);

impl<'k> Entry<'k> {
    #[track_caller]
    pub(super) fn new(table: GlobalAddress<'k>, index: U32<'k>) -> Entry<'k> {
        Entry(table.byte_add(index.mul_wide(8 * WORDS as u32)))
    }

    #[track_caller]
    fn word<T: Stored>(self, at: usize) -> Register<'k, T> {
        self.0.offset(8 * at as i64).load()
    }

    /// The address of one of the four arrays.
    #[track_caller]
    pub(super) fn array(self, at: usize) -> GlobalAddress<'k> {
        self.word::<u64>(at).to_global()
    }

    #[track_caller]
    pub(super) fn elements(self) -> U64<'k> {
        self.word(ELEMENTS)
    }

    #[track_caller]
    pub(super) fn betas_and_decay(self) -> [F64<'k>; 3] {
        [0, 1, 2].map(|at| self.word(BETAS + at))
    }

    /// 1 - beta1, beta2, 1 - beta2, eps.
    #[track_caller]
    pub(super) fn gains(self) -> [F32<'k>; 4] {
        self.0.offset(8 * GAINS as i64).load_vector()
    }

    /// The code of the kind, and 1 if the kernel moves four elements per access.
    #[track_caller]
    pub(super) fn kind(self) -> [U32<'k>; 2] {
        self.0.offset(8 * KIND as i64).load_vector()
    }

    #[track_caller]
    pub(super) fn key(self) -> Key<'k> {
        let [a, b] = self.0.offset(8 * KEY as i64).load_vector();
        let [c, d] = self.0.offset(8 * (KEY + 1) as i64).load_vector();
        Key([a, b, c, d])
    }

    #[track_caller]
    pub(super) fn indices(self) -> GlobalIndicesOnGpu<'k> {
        let dims = self.0.offset(8 * PLACES as i64);
        GlobalIndicesOnGpu {
            first: self.word(FIRST),
            count: self.word(FIRST + 1),
            innermost: [self.word(PLACES), self.word(PLACES + 1)],
            outer: dims.offset(16),
        }
    }
}

/// [`GlobalIndices`] on the GPU.
pub(super) struct GlobalIndicesOnGpu<'k> {
    first: U64<'k>,
    count: U64<'k>,
    innermost: [U64<'k>; 2],
    /// Extents and strides of the outer dims.
    outer: GlobalAddress<'k>,
}

impl<'k> GlobalIndicesOnGpu<'k> {
    /// The global index of an element: `first` plus its coordinates times the strides. With a
    /// single dim, no division is needed.
    #[track_caller]
    pub(super) fn of(&self, k: &'k Kernel, element: U64<'k>) -> U64<'k> {
        let (rest, index) = (k.var(element), k.var(self.first));
        let [extent, stride] = self.innermost.map(|word| k.var(word));
        let outer = self.outer.to_variable();
        k.for_range(1u64, self.count, 1, |_| {
            let quotient = *rest / *extent;
            index.add((*rest - quotient * *extent) * *stride);
            rest.set(quotient);
            let next = outer.get().load_vector::<u64, 2>();
            extent.set(next[0]);
            stride.set(next[1]);
            outer.advance(16);
        });
        *index + *rest * *stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(first: u64, dims: &[(u64, u64)]) -> GlobalIndices {
        let dims = dims.to_vec();
        GlobalIndices { first, dims }
    }

    #[test]
    fn blocks_of_four_elements_are_recognized() {
        let blocks = |first, dims: &[(u64, u64)]| indices(first, dims).come_in_blocks();
        assert!(blocks(0, &[(7, 1)]));
        assert!(blocks(8, &[(12, 1), (3, 100)]));
        assert!(!blocks(6, &[(8, 1)]), "the first element is inside a block");
        assert!(!blocks(0, &[(8, 2)]));
        assert!(!blocks(0, &[(7, 1), (3, 100)]), "a row ends inside a block");
        assert!(!blocks(0, &[(8, 1), (3, 101)]), "a row begins inside a block");
    }

    #[test]
    fn each_cta_gets_one_chunk() {
        let entry = |elements| AdamWEntry {
            addresses: [16; 4],
            elements,
            rounding: Rounding::F32,
            constants: AdamWConstants { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
        };
        let chunk = u64::from(CHUNK);
        let words = chunk_words(&[entry(chunk + 1), entry(0), entry(chunk)]);
        assert_eq!(words, [0, 1 << 32, 2]);
    }
}
