//! Grouped-query attention with rotary positions.
//!
//! Legend: b batch, t queries, s keys, d hidden size, h query heads, g key-value heads, c features
//! per head.

use std::sync::{Arc, Mutex, PoisonError};

use meshgrad_autograd::{Init, Module, ModulePath, Result, Seam, Var, ops};
use meshgrad_collectives::redistribute;
use meshgrad_mesh::Placement;
use meshgrad_runtime::ops::{AttentionMask, AttentionSequences, RopeStyle};
use meshgrad_runtime::{Device, Tensor};

use crate::by_document::RowOrder;
use crate::cache::LayerCache;
use crate::config::Rope;
use crate::layers::Linear;
use crate::norms::RmsNorm;
use crate::ring::{Rings, Seen};

/// The positions of the tokens, shared by all layers of a forward pass.
#[derive(Clone)]
pub struct Positions {
    /// Cosines and sines of the rotary angles, each [b, t, c/2], f32, of each rotation of the model.
    pub rotations: Vec<(Tensor, Tensor)>,
    /// The numbers of the positions, i64 [b, t], for embeddings that depend on them.
    pub(crate) numbers: Option<Tensor>,
    /// Which keys queries see, if their rank has all that they may see.
    pub sequences: AttentionSequences,
    /// The words of all tokens of a row ([`ops::visible_keys`]), if ranks have parts of rows in documents.
    pub(crate) words: Option<Tensor>,
    /// Of keys whose ranks have all, if rows are divided by document.
    pub(crate) order: Option<RowOrder>,
    pub(crate) rings: Rings,
}

/// The sizes of an attention block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionSizes {
    /// d.
    pub inputs: usize,
    /// h.
    pub heads: usize,
    /// g, a divisor of h.
    pub kv_heads: usize,
    /// c.
    pub head_dim: usize,
}

/// The attention block of a layer.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Attention {
    /// Before the projections to heads.
    pub input: Seam,
    /// From d to h c features.
    pub q_proj: Linear,
    /// From d to g c features.
    pub k_proj: Linear,
    /// From d to g c features.
    pub v_proj: Linear,
    /// Of queries, before attention.
    pub queries: Seam,
    /// Of keys and values, before attention.
    pub keys: Seam,
    /// Of the result of attention.
    pub attended: Seam,
    /// From h c to d features.
    pub o_proj: Linear,
    /// After `o_proj`.
    pub output: Seam,
    /// Of queries, before their rotation: over the c features of a head, or over all h c.
    pub q_norm: Option<RmsNorm>,
    /// Of keys, before their rotation: over the c features of a head, or over all g c.
    pub k_norm: Option<RmsNorm>,
    /// c.
    pub head_dim: usize,
    /// The factor of scores, 1 / sqrt(c) at first.
    pub scale: f64,
    /// The number of its rotation among those of the model, 0 at first; `None` for none.
    pub rotation: Option<usize>,
    /// The number of keys that a query attends to, up to its own position; `None` for all.
    pub window: Option<usize>,
}

impl Attention {
    /// A block at the path `at`, without biases, norms and a window.
    pub fn new(at: &ModulePath, sizes: AttentionSizes, init: Init) -> Attention {
        let AttentionSizes { inputs: d, heads: h, kv_heads: g, head_dim: c } = sizes;
        let linear =
            |name: &str, inputs, outputs| Linear::new(at.sub(name), inputs, outputs).init(init);
        Attention {
            input: Seam::new(at.sub("input")),
            q_proj: linear("q_proj", d, h * c),
            k_proj: linear("k_proj", d, g * c),
            v_proj: linear("v_proj", d, g * c),
            queries: Seam::new(at.sub("queries")),
            keys: Seam::new(at.sub("keys")),
            attended: Seam::new(at.sub("attended")),
            o_proj: linear("o_proj", h * c, d),
            output: Seam::new(at.sub("output")),
            q_norm: None,
            k_norm: None,
            head_dim: c,
            scale: (c as f64).sqrt().recip(),
            rotation: Some(0),
            window: None,
        }
    }

    /// Its sizes.
    pub fn sizes(&self) -> AttentionSizes {
        let [of_queries, inputs] = [0, 1].map(|dim| self.q_proj.weight.shape()[dim]);
        let [heads, kv_heads] =
            [of_queries, self.k_proj.weight.shape()[0]].map(|features| features / self.head_dim);
        AttentionSizes { inputs, heads, kv_heads, head_dim: self.head_dim }
    }

    /// With biases of the projections to heads, and of the one from them.
    #[must_use]
    pub fn biases(mut self, of_heads: bool, of_output: bool) -> Attention {
        for projection in [&mut self.q_proj, &mut self.k_proj, &mut self.v_proj] {
            *projection = projection.clone().bias(of_heads);
        }
        self.o_proj = self.o_proj.bias(of_output);
        self
    }

    /// With norms of each head of queries and keys.
    #[must_use]
    pub fn head_norms(mut self, at: &ModulePath, eps: f64) -> Attention {
        let norm = |name: &str| Some(RmsNorm::new(at.sub(name), self.head_dim, eps));
        (self.q_norm, self.k_norm) = (norm("q_norm"), norm("k_norm"));
        self
    }

    /// With norms of all heads of queries, and of all of keys, together (OLMo et al. 2024).
    #[must_use]
    pub fn joint_norms(mut self, at: &ModulePath, eps: f64) -> Attention {
        let AttentionSizes { heads, kv_heads, head_dim, .. } = self.sizes();
        let norm = |name: &str, heads| Some(RmsNorm::new(at.sub(name), heads * head_dim, eps));
        (self.q_norm, self.k_norm) = (norm("q_norm", heads), norm("k_norm", kv_heads));
        self
    }

    /// Whether its norms are of all heads together.
    pub(crate) fn has_joint_norms(&self) -> bool {
        let norms = [&self.q_norm, &self.k_norm].into_iter().flatten();
        norms.into_iter().any(|norm| norm.weight.shape()[0] != self.head_dim)
    }

    /// Of which queries see at most `window` keys.
    #[must_use]
    pub fn window(mut self, window: Option<usize>) -> Attention {
        self.window = window;
        self
    }

    /// Maps `x_btd` to the same shape. With a `cache`, new keys and values are appended to it, and
    /// queries attend to all of it.
    ///
    /// # Errors
    /// When shapes do not match or the cache is full.
    pub fn forward(&self, x_btd: &Var, at: &Positions, cache: Option<&LayerCache>) -> Result<Var> {
        let projections = [&self.q_proj, &self.k_proj, &self.v_proj];
        let [q, k, v] = Linear::forward_after(&self.input, x_btd, projections)?;
        let q_bthc = self.normed_heads(q, self.q_norm.as_ref(), at)?;
        let k_btgc = self.normed_heads(k, self.k_norm.as_ref(), at)?;
        let v_btgc = ops::split_last(&v, self.head_dim)?;
        let (k_bsgc, v_bsgc) = match cache {
            Some(cache) => cache.extend(&k_btgc, &v_btgc)?,
            None => (k_btgc, v_btgc),
        };

        let mask =
            AttentionMask { causal: true, window: self.window, sequences: at.sequences.clone() };
        let shards = head_shards(q_bthc.value());
        let q_bthc = self.queries.redistribute(&q_bthc)?;
        let divides_heads = head_shards(q_bthc.value()) > shards;
        let [k_bsgc, v_bsgc] = [k_bsgc, v_bsgc].map(|x| {
            let x = if divides_heads { with_heads_for(&q_bthc, &x)? } else { x };
            let x = self.keys.redistribute(&x)?;
            match &at.order {
                Some(order) => order.of(&x),
                None => Ok(x),
            }
        });
        let (k_bsgc, v_bsgc) = (k_bsgc?, v_bsgc?);
        let tokens = k_bsgc.value().sharding().filter(|it| !it.axes_of_dim(1).is_empty());
        let out_bthc = match tokens {
            Some(tokens) => {
                let seen = Seen { tokens, words: at.words.as_ref(), window: self.window };
                at.rings.attention([&q_bthc, &k_bsgc, &v_bsgc], &seen, self.scale)?
            }
            None => ops::attention(&q_bthc, &k_bsgc, &v_bsgc, &mask, self.scale)?,
        };
        let out_bthc = self.attended.redistribute(&out_bthc)?;
        self.o_proj.forward_before(&ops::merge_last(&out_bthc)?, &self.output)
    }

    /// `at` for tokens with these words ([`ops::visible_keys`], [b, t]), which were at `places`: a range
    /// of keys for each query that attention has, or, where keys go around, the words of whole rows.
    pub(crate) fn in_documents(
        &self,
        at: Positions,
        words: &Tensor,
        places: Option<&Tensor>,
    ) -> Result<Positions> {
        let whole_along = |seam: &Seam, x: &Tensor| {
            let axes = seam.placements();
            let axes = axes.iter().map(|(axis, _)| (axis.as_str(), Placement::Replicate));
            redistribute(x, axes.collect::<Vec<_>>())
        };
        let of_keys = whole_along(&self.keys, words)?;
        let around = of_keys.sharding().map(|it| it.axes_of_dim(1)).unwrap_or_default();
        if !around.is_empty() {
            let around = around.into_iter().map(|axis| (axis, Placement::Replicate));
            let words = redistribute(&of_keys, around.collect::<Vec<_>>())?;
            return Ok(Positions { words: Some(words), ..at });
        }
        let order = places.map(|places| RowOrder::new(whole_along(&self.keys, places)?));
        let order = order.transpose()?;
        let of_keys = order.as_ref().map_or(Ok(of_keys.clone()), |order| order.of(&of_keys))?;
        let ranges = ops::visible_keys(&whole_along(&self.queries, words)?, &of_keys, None)?;
        Ok(Positions { sequences: AttentionSequences::Ranges(ranges), order, ..at })
    }

    /// The heads of queries or keys `x` [b, t, heads c], normalized and rotated: [b, t, heads, c].
    fn normed_heads(&self, x: Var, norm: Option<&RmsNorm>, at: &Positions) -> Result<Var> {
        let (x, of_heads) = match norm {
            Some(norm) if norm.weight.shape()[0] != self.head_dim => (norm.forward(&x)?, None),
            norm => (x, norm),
        };
        let x = ops::split_last(&x, self.head_dim)?;
        let rotation = self.rotation.map(|number| &at.rotations[number]);
        match (of_heads, rotation) {
            (Some(norm), Some((cos, sin))) => norm.forward_rotated(&x, cos, sin),
            (None, Some((cos, sin))) => ops::rope(&x, cos, sin, RopeStyle::Half),
            (Some(norm), None) => norm.forward(&x),
            (None, None) => Ok(x),
        }
    }
}

/// The number of shards of the heads of `x` [b, t, heads, c].
fn head_shards(x: &Tensor) -> usize {
    let axes =
        x.sharding().map(|it| it.axes_of_dim(2).into_iter().map(|axis| it.mesh().size(axis)));
    axes.map_or(1, |sizes| sizes.flatten().product())
}

/// `x` [b, s, g, c] with each head as often as is needed for as many shards of heads as `q` has.
fn with_heads_for(q: &Var, x: &Var) -> Result<Var> {
    let [b, s, g, c] = x.global_shape()[..] else { unreachable!("keys and values have four dims") };
    let shards = head_shards(q.value());
    let copies = (1..shards).find(|copies| (g * copies).is_multiple_of(shards)).unwrap_or(shards);
    if copies == 1 {
        return Ok(x.clone());
    }
    let each = ops::reshape(x, &[b, s, g, 1, c])?;
    let repeated = ops::broadcast_to(&each, &[b, s, g, copies, c])?;
    ops::reshape(&repeated, &[b, s, g * copies, c])
}

/// The frequencies of the rotary embedding. Clones share the copy on the device.
#[derive(Clone)]
pub struct Rotary {
    /// Radians per position, for each pair of features.
    frequencies: Vec<f32>,
    attention_factor: f64,
    /// The frequencies on the device that was used last, copied once.
    on_device: Arc<Mutex<Option<Tensor>>>,
}

impl Rotary {
    /// The frequencies of heads of `head_dim` features.
    pub fn new(rope: &Rope, head_dim: usize) -> Rotary {
        let frequencies = rope.inverse_frequencies(head_dim).into_iter();
        Rotary {
            frequencies: frequencies.map(|radians| radians as f32).collect(),
            attention_factor: rope.attention_factor(),
            on_device: Arc::default(),
        }
    }

    /// Cosines and sines for `positions`, i64 [b, t]: each [b, t, c/2], f32.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn tables(&self, positions: &Tensor) -> Result<(Tensor, Tensor)> {
        let frequencies = self.frequencies_on(positions.device())?;
        ops::rope_tables(positions, &frequencies, self.attention_factor)
    }

    fn frequencies_on(&self, device: &Device) -> Result<Tensor> {
        let mut cached = self.on_device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = &*cached
            && cached.device() == device
        {
            return cached.as_replicated();
        }
        let shape = [self.frequencies.len()];
        let frequencies = Tensor::from_slice(device, &shape, &self.frequencies)?;
        *cached = Some(frequencies.clone());
        frequencies.as_replicated()
    }
}
