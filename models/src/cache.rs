//! The key-value cache for decoding.

use std::sync::OnceLock;

use meshgrad_autograd::{Result, Var};
use meshgrad_error::ensure;
use meshgrad_mesh::Sharding;
use meshgrad_runtime::ops::AttentionSequences;
use meshgrad_runtime::{Device, Kind, ShardedShape, Tensor, ops};

/// Keys and values of every layer, with a fixed capacity.
pub struct Cache {
    layers: Vec<LayerCache>,
    capacity: usize,
    used: usize,
    device: Device,
}

/// Keys and values of one layer: those heads that this rank has.
pub struct LayerCache {
    capacity: usize,
    /// [b, capacity, g, c], allocated for the first keys.
    keys: OnceLock<Tensor>,
    values: OnceLock<Tensor>,
    /// The position of the next token, i64 [1].
    end: Tensor,
}

impl Cache {
    /// An empty cache of `layers` layers, for sequences of up to `capacity` tokens. The first keys
    /// and values decide its dtype, the number of sequences and, on a mesh, its shards.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(layers: usize, device: &Device, capacity: usize) -> Result<Cache> {
        let end = position(device, 0)?;
        let layer = |_| LayerCache {
            capacity,
            keys: OnceLock::new(),
            values: OnceLock::new(),
            end: end.clone(),
        };
        Ok(Cache {
            layers: (0..layers).map(layer).collect(),
            capacity,
            used: 0,
            device: device.clone(),
        })
    }

    /// Number of tokens in the cache.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub(crate) fn layer(&self, layer: usize) -> Option<&LayerCache> {
        self.layers.get(layer)
    }

    /// Checks that `tokens` more fit, and returns their positions for attention.
    pub(crate) fn begin(&self, tokens: usize) -> Result<AttentionSequences> {
        let (used, capacity) = (self.used, self.capacity);
        ensure!(
            used + tokens <= capacity,
            Invalid,
            "cache capacity is {capacity} tokens; {used} are used and {tokens} more do not fit"
        );
        Ok(AttentionSequences::Cached {
            q_offset: position(&self.device, used)?,
            k_len: position(&self.device, used + tokens)?,
        })
    }

    /// Counts `tokens` more, after every layer has appended them.
    pub(crate) fn advance(&mut self, tokens: usize) -> Result<()> {
        self.used += tokens;
        if let Some(layer) = self.layers.first() {
            ops::copy_into(&position(&self.device, self.used)?, &layer.end)?;
        }
        Ok(())
    }
}

/// A position in a sequence, i64 [1], that can be overwritten.
fn position(device: &Device, at: usize) -> Result<Tensor> {
    let position = Tensor::from_slice(device, &[1], &[at as i64])?.as_replicated()?;
    let kept = Tensor::zeros(device, &[1], position.dtype(), Kind::Cache)?.as_replicated()?;
    ops::copy_into(&position, &kept)?;
    Ok(kept)
}

impl LayerCache {
    /// Appends keys and values [b, t, g, c] and returns the whole cache, as constants: no gradient
    /// flows through a cache.
    pub(crate) fn extend(&self, keys: &Var, values: &Var) -> Result<(Var, Var)> {
        let keys = self.append(keys.value(), &self.keys)?;
        let values = self.append(values.value(), &self.values)?;
        Ok((Var::constant(keys), Var::constant(values)))
    }

    fn append(&self, new: &Tensor, to: &OnceLock<Tensor>) -> Result<Tensor> {
        let kept = match to.get() {
            Some(kept) => kept,
            None => {
                let empty = self.empty(new)?;
                to.get_or_init(|| empty)
            }
        };
        ops::copy_at_into(new, kept, &self.end)?;
        Ok(kept.clone())
    }

    /// Zeros for as many tokens as fit, with the other extents and the shards of `like`.
    fn empty(&self, like: &Tensor) -> Result<Tensor> {
        let shape = like.global_shape().with(1, self.capacity);
        let shape = match (like.sharding(), like.sharded_shape().rank()) {
            (Some(own), Some(rank)) => {
                let sharding = Sharding::new(own.mesh(), own.placements(), &shape)?;
                ShardedShape::new(&sharding, rank)?
            }
            _ => ShardedShape::from(shape),
        };
        shape.zeros(like.device(), like.dtype(), Kind::Cache)
    }
}
