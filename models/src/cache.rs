//! The key-value cache for decoding.

use meshgrad_autograd::{Error, Result, Var};
use meshgrad_runtime::ops::AttentionSequences;
use meshgrad_runtime::{DType, Device, Kind, Tensor, ops};

use crate::config::Qwen3Config;

/// Keys and values of every layer, with a fixed capacity.
pub struct Cache {
    layers: Vec<LayerCache>,
    capacity: usize,
    used: usize,
    device: Device,
}

/// Keys and values of one layer.
#[derive(Clone)]
pub struct LayerCache {
    /// [b, capacity, g, c].
    keys: Tensor,
    values: Tensor,
    /// The position of the next token, i64 [1].
    end: Tensor,
}

/// A sequence that does not fit into a cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cache capacity is {capacity} tokens; {used} are used and {given} more do not fit")]
pub struct CacheFull {
    /// Capacity in tokens.
    pub capacity: usize,
    /// Tokens in the cache.
    pub used: usize,
    /// New tokens.
    pub given: usize,
}

impl Cache {
    /// An empty cache for `batch` sequences of up to `capacity` tokens.
    ///
    /// # Errors
    /// [`OutOfMemory`](meshgrad_runtime::Error::OutOfMemory).
    pub fn new(
        config: &Qwen3Config,
        device: &Device,
        dtype: DType,
        batch: usize,
        capacity: usize,
    ) -> Result<Cache> {
        let shape = [batch, capacity, config.num_kv_heads(), config.head_dim()];
        let zeros = || Tensor::zeros(device, &shape, dtype, Kind::Cache);
        let end = Tensor::zeros(device, &[1], DType::I64, Kind::Cache)?;
        let layers = (0..config.num_hidden_layers).map(|_| {
            Ok(LayerCache {
                keys: zeros()?,
                values: zeros()?,
                end: end.clone(),
            })
        });
        let layers: Result<Vec<LayerCache>> = layers.collect();
        Ok(Cache {
            layers: layers?,
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
        if used + tokens > capacity {
            return Err(Error::other(CacheFull {
                capacity,
                used,
                given: tokens,
            }));
        }
        let of = |value: usize| Tensor::from_slice(&self.device, &[1], &[value as i64]);
        Ok(AttentionSequences::Cached {
            q_offset: of(used)?,
            k_len: of(used + tokens)?,
        })
    }

    /// Counts `tokens` more, after every layer has appended them.
    pub(crate) fn advance(&mut self, tokens: usize) -> Result<()> {
        self.used += tokens;
        if let Some(layer) = self.layers.first() {
            let end = Tensor::from_slice(&self.device, &[1], &[self.used as i64])?;
            ops::copy_into(&end, &layer.end)?;
        }
        Ok(())
    }
}

impl LayerCache {
    /// Appends keys and values [b, t, g, c] and returns the whole cache, as constants: no gradient
    /// flows through a cache.
    pub(crate) fn extend(&self, keys: &Var, values: &Var) -> Result<(Var, Var)> {
        ops::copy_at_into(keys.value(), &self.keys, &self.end)?;
        ops::copy_at_into(values.value(), &self.values, &self.end)?;
        Ok((
            Var::constant(self.keys.clone()),
            Var::constant(self.values.clone()),
        ))
    }
}
