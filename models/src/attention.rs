//! Grouped-query attention with normalized queries and keys and rotary positions, as in Qwen3.
//!
//! Legend: b batch, t queries, s keys, d hidden size, h query heads, g key-value heads, c features
//! per head.

use std::sync::{Arc, OnceLock};

use meshgrad_autograd::{Module, Param, Result, Var, ops};
use meshgrad_runtime::ops::{AttentionMask, AttentionSequences};
use meshgrad_runtime::{Device, Tensor, ops as values};

use crate::cache::LayerCache;
use crate::config::Qwen3Config;
use crate::layers::{Linear, RmsNorm};

/// The positions of the tokens, shared by all layers of a forward pass.
#[derive(Clone)]
pub struct Positions {
    /// Cosines of the rotary angles, [b, t, c/2], f32.
    pub cos: Tensor,
    /// Sines of the rotary angles, of the same shape.
    pub sin: Tensor,
    /// The positions of queries and keys in their sequences.
    pub sequences: AttentionSequences,
}

/// The attention block of a layer.
#[derive(Clone)]
pub struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    head_dim: usize,
    window: Option<usize>,
}

impl Attention {
    /// The attention of layer `layer`. The names of its parameters start with `name`.
    ///
    /// # Errors
    /// None for a valid configuration.
    pub fn new(name: &str, config: &Qwen3Config, layer: usize) -> Result<Attention> {
        let (d, c) = (config.hidden_size, config.head_dim());
        let (h, g) = (config.num_attention_heads, config.num_kv_heads());
        let (bias, std, eps) = (
            config.attention_bias,
            config.initializer_range,
            config.rms_norm_eps,
        );
        Ok(Attention {
            q_proj: Linear::new(&format!("{name}.q_proj"), d, h * c, bias, std)?,
            k_proj: Linear::new(&format!("{name}.k_proj"), d, g * c, bias, std)?,
            v_proj: Linear::new(&format!("{name}.v_proj"), d, g * c, bias, std)?,
            o_proj: Linear::new(&format!("{name}.o_proj"), h * c, d, bias, std)?,
            q_norm: RmsNorm::new(&format!("{name}.q_norm"), c, eps)?,
            k_norm: RmsNorm::new(&format!("{name}.k_norm"), c, eps)?,
            head_dim: c,
            window: config.window(layer),
        })
    }

    /// Maps `x_btd` to the same shape. With a `cache`, new keys and values are appended to it, and
    /// queries attend to all of it.
    ///
    /// # Errors
    /// When shapes do not match or the cache is full.
    pub fn forward(&self, x_btd: &Var, at: &Positions, cache: Option<&LayerCache>) -> Result<Var> {
        let q_bthc = self.heads(&self.q_proj.forward(x_btd)?)?;
        let k_btgc = self.heads(&self.k_proj.forward(x_btd)?)?;
        let v_btgc = self.heads(&self.v_proj.forward(x_btd)?)?;

        let q_bthc = self.q_norm.forward_rotated(&q_bthc, &at.cos, &at.sin)?;
        let k_btgc = self.k_norm.forward_rotated(&k_btgc, &at.cos, &at.sin)?;
        let (k_bsgc, v_bsgc) = match cache {
            Some(cache) => cache.extend(&k_btgc, &v_btgc)?,
            None => (k_btgc, v_btgc),
        };

        let mask = AttentionMask {
            causal: true,
            window: self.window,
            sequences: at.sequences.clone(),
        };
        let scale = (self.head_dim as f64).sqrt().recip();
        let out_bthc = ops::attention(&q_bthc, &k_bsgc, &v_bsgc, &mask, scale)?;
        self.o_proj.forward(&ops::merge_last(&out_bthc)?)
    }

    /// [b, t, heads * c] as [b, t, heads, c], for any number of heads.
    fn heads(&self, x: &Var) -> Result<Var> {
        ops::split_last(x, self.head_dim)
    }
}

impl Module for Attention {
    fn visit(&self, visitor: &mut dyn FnMut(&Param)) {
        let projections = [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj];
        projections
            .into_iter()
            .for_each(|projection| projection.visit(visitor));
        [&self.q_norm, &self.k_norm]
            .into_iter()
            .for_each(|norm| norm.visit(visitor));
    }
}

/// The frequencies of the rotary embedding. Clones share the copy on the device.
#[derive(Clone)]
pub struct Rotary {
    /// Radians per position, for each pair of features.
    frequencies: Vec<f32>,
    attention_factor: f64,
    /// The frequencies on the model's device, copied once.
    on_device: Arc<OnceLock<Tensor>>,
}

impl Rotary {
    /// The frequencies of a configuration.
    ///
    /// # Errors
    /// When its rotary scaling is invalid.
    pub fn new(config: &Qwen3Config) -> crate::Result<Rotary> {
        let rope = config.rope()?;
        let frequencies = rope.inverse_frequencies(config.head_dim()).into_iter();
        Ok(Rotary {
            frequencies: frequencies.map(|radians| radians as f32).collect(),
            attention_factor: rope.attention_factor(),
            on_device: Arc::default(),
        })
    }

    /// Cosines and sines for `positions`, i64 [b, t]: each [b, t, c/2], f32.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn tables(&self, positions: &Tensor) -> crate::Result<(Tensor, Tensor)> {
        let frequencies = self.frequencies_on(positions.device())?;
        let tables = values::rope_tables(positions, &frequencies, self.attention_factor);
        Ok(tables?)
    }

    fn frequencies_on(&self, device: &Device) -> crate::Result<Tensor> {
        if let Some(cached) = self.on_device.get()
            && cached.device() == device
        {
            return Ok(cached.clone());
        }
        let shape = [self.frequencies.len()];
        let frequencies = Tensor::from_slice(device, &shape, &self.frequencies)?;
        // Only the first device is cached.
        let _ = self.on_device.set(frequencies.clone());
        Ok(frequencies)
    }
}
