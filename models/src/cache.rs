//! The cache of keys and values with which a sequence is continued token by token.

use meshgrad_autograd::Var;
use meshgrad_runtime::ops::AttentionSequences;
use meshgrad_runtime::{DType, Device, Kind, Tensor, ops};

use crate::config::Qwen3Config;
use crate::{Error, Result};

/// Keys and values of every layer, with room for a fixed number of tokens.
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
    /// Where the next token goes, i64 [1].
    end: Tensor,
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

    /// How many tokens it holds.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub(crate) fn layer(&self, layer: usize) -> Option<&LayerCache> {
        self.layers.get(layer)
    }

    /// Makes room for `tokens` more: where they stand, for attention.
    pub(crate) fn begin(&self, tokens: usize) -> Result<AttentionSequences> {
        let (used, capacity) = (self.used, self.capacity);
        if used + tokens > capacity {
            return Err(Error::CacheFull {
                capacity,
                used,
                given: tokens,
            });
        }
        let of = |value: usize| Tensor::from_slice(&self.device, &[1], &[value as i64]);
        Ok(AttentionSequences::Cached {
            q_offset: of(used)?,
            k_len: of(used + tokens)?,
        })
    }

    /// Says that every layer has taken in `tokens` more.
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
    /// Puts keys and values [b, t, g, c] behind those that are there; returns all, as constants: no
    /// gradient goes through a cache.
    pub(crate) fn extend(&self, keys: &Var, values: &Var) -> meshgrad_autograd::Result<(Var, Var)> {
        ops::copy_at_into(keys.value(), &self.keys, &self.end)?;
        ops::copy_at_into(values.value(), &self.values, &self.end)?;
        Ok((
            Var::constant(self.keys.clone()),
            Var::constant(self.values.clone()),
        ))
    }
}
