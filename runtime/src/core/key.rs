//! Where random values come from: a [`Key`], which is a value and never a counter, and the global
//! index of an element.
//!
//! The same key gives the same element the same value on any device, for any number of threads, and
//! however the tensor is cut into shards: a shard says by a [`Region`] which elements of the whole
//! tensor it holds.
//!
//! ```
//! use meshgrad_runtime::{DType, Device, Key, Region, Result, ops};
//!
//! # fn main() -> Result<()> {
//! let device = Device::cpu();
//! let key = Key::new(42).fold_name("layers.0.mlp.up").fold(7);
//! let whole = ops::normal(&device, &[4, 6], DType::F32, key, 0.0, 1.0)?;
//!
//! let region = Region::whole(&[4, 6])?.slice(1, 2..5)?;
//! let shard = ops::normal(&device, &[4, 3], DType::F32, key.within(&region), 0.0, 1.0)?;
//! assert_eq!(shard.to_vec::<f32>()?, whole.slice(1, 2..5)?.to_vec::<f32>()?);
//! # Ok(())
//! # }
//! ```

use std::ops::Range;

use meshgrad_kernels::philox::FOLD;

use crate::core::philox::philox;
use crate::{Error, Layout, Result, Shape};

/// What tells the uses of one key apart: the first word of Philox's key is combined with this or with
/// [`FOLD`]. Draws use the key as it is. The digits of the fraction of pi, so that nobody chose them.
const NAME: u32 = 0x85a3_08d3;

/// The root of random values: 128 bits. Derive a key for each use by folding in what distinguishes
/// it.
///
/// A key holds no state. Two draws from one key give the same values: fold the step, the
/// microbatch, the layer's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    words: [u32; 4],
}

impl Key {
    /// The key of a run: the 128-bit number `seed`.
    pub fn new(seed: u64) -> Key {
        let [low, high] = low_and_high(seed);
        Key {
            words: [low, high, 0, 0],
        }
    }

    /// The key for number `value` under this one: a step, a microbatch, a layer.
    ///
    /// Philox4x32-10 of the counter (value's low word, its high word, key words 2 and 3) under the
    /// key (key word 0 xor 0x243f6a88, key word 1).
    pub fn fold(self, value: u64) -> Key {
        self.mix(FOLD, value)
    }

    /// The key for `name` under this one. Names and numbers never give equal keys but by a chance
    /// of 2^-128.
    ///
    /// The UTF-8 length of `name` is folded in, then its bytes, eight at a time (little-endian, the
    /// last filled up with zeros), each as [`Key::fold`] does with 0x85a308d3 in place of its
    /// constant.
    pub fn fold_name(self, name: &str) -> Key {
        let start = self.mix(NAME, name.len() as u64);
        name.as_bytes().chunks(8).fold(start, |key, bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            key.mix(NAME, u64::from_le_bytes(word))
        })
    }

    /// Draws from this key for a tensor that holds the elements `region` of a larger one.
    pub fn within(self, region: &Region) -> RegionKey {
        RegionKey {
            key: self,
            region: Some(region.clone()),
        }
    }

    fn mix(self, purpose: u32, value: u64) -> Key {
        let [a, b, c, d] = self.words;
        let [low, high] = low_and_high(value);
        let counter = [low, high, c, d].map(|word| [u64::from(word)]);
        Key {
            words: philox([a ^ purpose, b], counter).map(|[word]| word),
        }
    }

    pub(crate) fn words(self) -> [u32; 4] {
        self.words
    }
}

fn low_and_high(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Which elements of a global tensor a tensor holds: a box of it, seen through views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The global tensor laid out contiguously: an element's place is its global index.
    places: Layout,
}

impl Region {
    /// All of a global tensor of shape `global`.
    ///
    /// # Errors
    /// [`Error::TooManyDims`]; [`Error::Argument`] when it has more than 2^63 elements.
    pub fn whole(global: &[usize]) -> Result<Region> {
        let shape = Shape::new(global)?;
        let elements = shape
            .iter()
            .try_fold(1usize, |product, extent| product.checked_mul(*extent));
        if elements.is_none_or(|elements| elements > isize::MAX as usize) {
            let problem = format!("shape {shape} has more than {} elements", isize::MAX);
            return Err(Error::Argument {
                op: "region",
                problem,
            });
        }
        Ok(Region {
            places: Layout::contiguous(shape, 0),
        })
    }

    /// The part of dim `dim` in `range`.
    ///
    /// # Errors
    /// [`Error::NoDim`], [`Error::SliceRange`].
    pub fn slice(&self, dim: usize, range: Range<usize>) -> Result<Region> {
        Ok(Region {
            places: self.places.slice(dim, range)?,
        })
    }

    /// Dims in the order `order`, for a tensor that holds the global one's elements permuted.
    ///
    /// # Errors
    /// [`Error::Permutation`].
    pub fn permute(&self, order: &[usize]) -> Result<Region> {
        Ok(Region {
            places: self.places.permute(order)?,
        })
    }

    /// The shape of the tensor that holds the region.
    pub fn shape(&self) -> &Shape {
        self.places.shape()
    }
}

/// The random values an op draws: those of a key at the elements of a region. A [`Key`] alone
/// stands for the whole tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionKey {
    key: Key,
    region: Option<Region>,
}

impl RegionKey {
    /// The key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The global index of each element of a tensor of `shape`, as a layout.
    ///
    /// # Errors
    /// [`Error::Argument`], naming `op`, when the region has another shape.
    pub(crate) fn places(&self, op: &'static str, shape: &Shape) -> Result<Layout> {
        let Some(region) = &self.region else {
            return Ok(Layout::contiguous(*shape, 0));
        };
        if region.shape() != shape {
            let problem = format!(
                "the tensor has shape {shape} but its region has shape {}",
                region.shape()
            );
            return Err(Error::Argument { op, problem });
        }
        Ok(region.places)
    }
}

impl From<Key> for RegionKey {
    fn from(key: Key) -> RegionKey {
        RegionKey { key, region: None }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Runs must be repeatable by every later version: these keys may never change.
    #[test]
    fn keys_are_frozen() {
        let key = Key::new(0x0123_4567_89ab_cdef);
        assert_eq!(key.words, [0x89ab_cdef, 0x0123_4567, 0, 0]);
        assert_eq!(key.fold(1).words, FOLDED);
        assert_eq!(key.fold_name("layers.0.mlp").words, NAMED);
    }

    const FOLDED: [u32; 4] = [0x9959_cbec, 0x3837_fc71, 0xf4ea_269d, 0x6c57_a06a];
    const NAMED: [u32; 4] = [0x8aee_852a, 0x9218_371d, 0x4b0b_cd92, 0x716c_bfff];

    #[test]
    fn folding_tells_everything_apart() {
        let root = Key::new(1);
        let names = [
            "",
            "\0",
            "a",
            "a\0",
            "b",
            "layers.0",
            "layers.1",
            "layers.0.mlp",
            "layers.10",
        ];
        let mut keys: Vec<Key> = names.iter().map(|name| root.fold_name(name)).collect();
        keys.extend((0..100).map(|step| root.fold(step)));
        keys.extend((0..100).map(|step| root.fold(1).fold(step)));
        keys.extend([
            root,
            Key::new(2),
            root.fold(2).fold(1),
            root.fold_name("a").fold_name("b"),
        ]);

        let distinct: HashSet<Key> = keys.iter().copied().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn regions_must_exist() {
        let region = Region::whole(&[4, 6]).unwrap();
        assert!(matches!(region.slice(2, 0..1), Err(Error::NoDim { .. })));
        assert!(matches!(
            region.slice(1, 3..7),
            Err(Error::SliceRange { .. })
        ));
        assert!(Region::whole(&[usize::MAX, 2]).is_err());
    }
}
