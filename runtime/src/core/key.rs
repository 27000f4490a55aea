//! Keys of random values. A random element is a function of a stateless [`Key`] and of the
//! element's index in the global tensor.
//!
//! So an element has the same value on any device, for any number of threads, and for any sharding.
//! For a shard, a [`Region`] specifies which elements of the global tensor it holds.
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

use meshgrad_error::{bail, ensure};
use meshgrad_kernels::philox::FOLD;

use crate::core::philox::philox;
use crate::{Layout, Result, Shape};

/// Domain separation: [`Key::fold_name`] xors the first word of Philox's key with this constant,
/// [`Key::fold`] with [`FOLD`]; random values use the key unchanged. Both are digits of pi.
const NAME: u32 = 0x85a3_08d3;

/// A 128-bit key of random values. Derive one key per use, by folding in the step, the microbatch
/// and the layer's name.
///
/// A key has no state: two ops with the same key generate the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    words: [u32; 4],
}

impl Key {
    /// The root key of a run, from `seed`.
    pub fn new(seed: u64) -> Key {
        let [low, high] = low_and_high(seed);
        Key { words: [low, high, 0, 0] }
    }

    /// The key derived from this one for a number: a step, a microbatch, a layer.
    ///
    /// The result is Philox4x32-10 of the counter (low and high word of `value`, key words 2 and 3)
    /// under the key (key word 0 xor 0x243f6a88, key word 1).
    pub fn fold(self, value: u64) -> Key {
        self.mix(FOLD, value)
    }

    /// The key derived from this one for `name`. The keys of two names, or of a name and a number,
    /// are equal with probability 2^-128.
    ///
    /// Folds in the UTF-8 length of `name`, then its bytes, eight at a time (little-endian, the
    /// last padded with zeros), each as [`Key::fold`] does but with the constant 0x85a308d3.
    pub fn fold_name(self, name: &str) -> Key {
        let start = self.mix(NAME, name.len() as u64);
        name.as_bytes().chunks(8).fold(start, |key, bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            key.mix(NAME, u64::from_le_bytes(word))
        })
    }

    /// This key for a tensor that holds `region` of a larger tensor.
    pub fn within(self, region: &Region) -> RegionKey {
        RegionKey { key: self, region: Some(region.clone()) }
    }

    fn mix(self, purpose: u32, value: u64) -> Key {
        let [a, b, c, d] = self.words;
        let [low, high] = low_and_high(value);
        let counter = [low, high, c, d].map(|word| [u64::from(word)]);
        Key { words: philox([a ^ purpose, b], counter).map(|[word]| word) }
    }

    pub(crate) fn words(self) -> [u32; 4] {
        self.words
    }
}

fn low_and_high(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// The elements of a global tensor that a shard holds: a box, with its dims in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// A layout over the contiguous global tensor: an element's offset is its global index.
    indices: Layout,
}

impl Region {
    /// All of a global tensor of shape `global`.
    ///
    /// # Errors
    /// For too many dims; when it has more than 2^63 elements.
    pub fn whole(global: &[usize]) -> Result<Region> {
        let shape = Shape::new(global)?;
        let elements =
            shape.iter().try_fold(1usize, |product, extent| product.checked_mul(*extent));
        if elements.is_none_or(|elements| elements > isize::MAX as usize) {
            bail!(Invalid, "region: shape {shape} has more than {} elements", isize::MAX);
        }
        Ok(Region { indices: Layout::contiguous(shape, 0) })
    }

    /// The part of this region with indices `range` in dim `dim`.
    ///
    /// # Errors
    /// When there is no such dim; when the range exceeds the dim.
    pub fn slice(&self, dim: usize, range: Range<usize>) -> Result<Region> {
        Ok(Region { indices: self.indices.slice(dim, range)? })
    }

    /// Reorders the dims to `order`, for a tensor whose dims are permuted relative to the global
    /// one.
    ///
    /// # Errors
    /// When `order` is not a permutation of the dims.
    pub fn permute(&self, order: &[usize]) -> Result<Region> {
        Ok(Region { indices: self.indices.permute(order)? })
    }

    /// The shape of a tensor that holds the region.
    pub fn shape(&self) -> &Shape {
        self.indices.shape()
    }
}

/// A key and the region whose elements it generates. A [`Key`] alone generates a whole tensor.
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

    /// Whether it generates a whole tensor.
    pub(crate) fn is_whole(&self) -> bool {
        self.region.is_none()
    }

    /// The global index of each element of a tensor of `shape`, as a layout.
    ///
    /// # Errors
    /// When the region has another shape.
    pub(crate) fn global_indices(&self, op: &'static str, shape: &Shape) -> Result<Layout> {
        let Some(region) = &self.region else {
            return Ok(Layout::contiguous(*shape, 0));
        };
        ensure!(
            region.shape() == shape,
            Invalid,
            "{op}: the tensor has shape {shape}, but the region of its key has shape {}",
            region.shape()
        );
        Ok(region.indices)
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
    use crate::assert_error;

    /// Later versions must reproduce runs, so these keys must never change.
    #[test]
    fn keys_never_change() {
        let key = Key::new(0x0123_4567_89ab_cdef);
        assert_eq!(key.words, [0x89ab_cdef, 0x0123_4567, 0, 0]);
        assert_eq!(key.fold(1).words, FOLDED);
        assert_eq!(key.fold_name("layers.0.mlp").words, NAMED);
    }

    const FOLDED: [u32; 4] = [0x9959_cbec, 0x3837_fc71, 0xf4ea_269d, 0x6c57_a06a];
    const NAMED: [u32; 4] = [0x8aee_852a, 0x9218_371d, 0x4b0b_cd92, 0x716c_bfff];

    #[test]
    fn folding_gives_distinct_keys() {
        let root = Key::new(1);
        let names =
            ["", "\0", "a", "a\0", "b", "layers.0", "layers.1", "layers.0.mlp", "layers.10"];
        let mut keys: Vec<Key> = names.iter().map(|name| root.fold_name(name)).collect();
        keys.extend((0..100).map(|step| root.fold(step)));
        keys.extend((0..100).map(|step| root.fold(1).fold(step)));
        keys.extend([root, Key::new(2), root.fold(2).fold(1), root.fold_name("a").fold_name("b")]);

        let distinct: HashSet<Key> = keys.iter().copied().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn regions_outside_of_the_tensor_are_rejected() {
        let region = Region::whole(&[4, 6]).unwrap();
        assert_error(region.slice(2, 0..1), "has no dim");
        assert_error(region.slice(1, 3..7), "is out of range for dim");
        assert!(Region::whole(&[usize::MAX, 2]).is_err());
    }
}
