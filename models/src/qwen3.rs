//! Qwen3, dense and mixture-of-experts, for causal language modeling (Yang et al. 2025).
//!
//! Legend: b batch, t tokens per sequence, d hidden size, v vocabulary.

use meshgrad_autograd::{Init, Module, Param, Result as TapeResult, Var, checkpoint, ops};
use meshgrad_runtime::ops::AttentionSequences;
use meshgrad_runtime::{DType, Device, Tensor, ops as values};

use crate::Result;
use crate::attention::{Attention, Positions, Rotary};
use crate::balance::{load_balancing_loss, router_z_loss};
use crate::cache::{Cache, LayerCache};
use crate::config::Qwen3Config;
use crate::layers::RmsNorm;
use crate::mlp::Mlp;
use crate::moe::{Moe, RouterBias, Routing};

/// The label of positions that the loss ignores, as in PyTorch.
pub const IGNORE_INDEX: i64 = -100;

/// A Qwen3 model. Building one allocates nothing; materialize it, or load it with
/// [`hf::load`](crate::hf::load).
#[derive(Clone)]
pub struct Qwen3 {
    config: Qwen3Config,
    embed_tokens: Param,
    rotary: Rotary,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// [v, d]; the embedding if they are tied.
    lm_head: Param,
}

/// One layer: attention, then a feed-forward block, each with a norm before it and a residual
/// connection.
#[derive(Clone)]
pub struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

/// The feed-forward block of a layer.
#[derive(Clone)]
pub enum FeedForward {
    /// An MLP.
    Dense(Mlp),
    /// A mixture of experts.
    Sparse(Moe),
}

/// Options of a forward pass.
#[derive(Clone, Copy, Debug)]
pub struct Compute {
    /// The dtype of activations and of the weights' compute copies.
    pub dtype: DType,
    /// Whether each layer saves only its input and recomputes the rest in the backward pass.
    pub checkpointing: bool,
}

/// Weights of the balancing losses; zero disables a loss.
#[derive(Clone, Copy, Debug, Default)]
pub struct Balancing {
    /// Weight of [`load_balancing_loss`].
    pub auxiliary: f64,
    /// Weight of [`router_z_loss`].
    pub z: f64,
}

/// A loss as a sum over tokens, with its weight. Sums and weights add up over microbatches and
/// ranks; the mean is `total / weight`.
pub struct Loss {
    /// Cross-entropy summed over the tokens that are not ignored, in nats, plus the balancing
    /// losses times `weight`; a scalar, f32; tracked.
    pub total: Var,
    /// The summed cross-entropy without balancing losses; a scalar, f32.
    pub cross_entropy: Tensor,
    /// Number of tokens that are not ignored; a scalar, f32.
    pub weight: Tensor,
    /// The load-balancing loss, if there are experts; a scalar, f32.
    pub auxiliary: Option<Tensor>,
    /// Tokens per expert, \[experts\] f32, of each sparse layer.
    pub expert_counts: Vec<Tensor>,
}

impl Qwen3 {
    /// The model of a configuration.
    ///
    /// # Errors
    /// When the configuration is invalid, with all problems.
    pub fn new(config: &Qwen3Config) -> Result<Qwen3> {
        config.validate()?;
        let (v, d) = (config.vocab_size, config.hidden_size);
        let init = Init::Normal {
            std: config.initializer_range,
        };
        let embed_tokens = Param::new("model.embed_tokens.weight", &[v, d], init)?;
        let lm_head = match config.tie_word_embeddings {
            true => embed_tokens.clone(),
            false => Param::new("lm_head.weight", &[v, d], init)?,
        };
        let layers = (0..config.num_hidden_layers).map(|layer| Layer::new(config, layer));
        let layers: TapeResult<Vec<Layer>> = layers.collect();
        Ok(Qwen3 {
            config: config.clone(),
            embed_tokens,
            rotary: Rotary::new(config)?,
            layers: layers?,
            norm: RmsNorm::new("model.norm", d, config.rms_norm_eps)?,
            lm_head,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Qwen3Config {
        &self.config
    }

    /// Adds a bias of zeros to every router. Biases are state, not parameters, and not part of a
    /// Hugging Face folder; [`update_router_bias`](crate::balance::update_router_bias) changes
    /// them. Existing clones are not affected.
    ///
    /// # Errors
    /// [`OutOfMemory`](meshgrad_runtime::Error::OutOfMemory).
    pub fn add_router_biases(&mut self, device: &Device) -> Result<()> {
        for layer in &mut self.layers {
            if let FeedForward::Sparse(moe) = &mut layer.mlp {
                moe.add_bias(device)?;
            }
        }
        Ok(())
    }

    /// The router biases of the sparse layers, in the order of [`Loss::expert_counts`]; none before
    /// [`Qwen3::add_router_biases`].
    pub fn router_biases(&self) -> impl Iterator<Item = &RouterBias> {
        self.layers.iter().filter_map(|layer| match &layer.mlp {
            FeedForward::Sparse(moe) => moe.bias(),
            FeedForward::Dense(_) => None,
        })
    }

    /// The residual stream after the last norm, [b, t, d], and the routing of each sparse layer.
    ///
    /// `ids_bt` i64 [b, t], at positions `at`.
    fn hidden(
        &self,
        ids_bt: &Tensor,
        at: &Positions,
        compute: Compute,
        cache: Option<&Cache>,
    ) -> TapeResult<(Var, Vec<Routing>)> {
        let embedding = self.embed_tokens.var_as(compute.dtype)?;
        let mut x_btd = ops::embedding(&embedding, ids_bt)?.as_activation()?;
        let mut routings = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            let cache = cache.and_then(|cache| cache.layer(index));
            let routing;
            (x_btd, routing) = match compute.checkpointing {
                true => layer.checkpointed(&x_btd, at)?,
                false => layer.forward(&x_btd, at, cache)?,
            };
            routings.extend(routing);
        }
        Ok((self.norm.forward(&x_btd)?, routings))
    }

    /// The logits of every next token, [b, t, v] in `compute.dtype`. For a loss use
    /// [`Qwen3::loss`], which never holds all of them.
    ///
    /// # Errors
    /// When an id is out of range.
    pub fn logits(&self, ids_bt: &Tensor, compute: Compute) -> Result<Var> {
        let at = self.positions(ids_bt, 0, AttentionSequences::Rows)?;
        let (x_btd, _) = self.hidden(ids_bt, &at, compute, None)?;
        Ok(ops::linear(&x_btd, &self.lm_head.var_as(compute.dtype)?)?)
    }

    /// The logits of the token after the last of `ids_bt`, [b, v]. `ids_bt` continue the sequences
    /// in `cache` and are appended to it. Nothing is recorded.
    ///
    /// # Errors
    /// As [`Qwen3::logits`]; [`Error::CacheFull`](crate::Error::CacheFull).
    pub fn next_logits(&self, ids_bt: &Tensor, cache: &mut Cache, dtype: DType) -> Result<Tensor> {
        let tokens = ids_bt.extent(-1)?;
        let sequences = cache.begin(tokens)?;
        let at = self.positions(ids_bt, cache.len(), sequences)?;
        let compute = Compute {
            dtype,
            checkpointing: false,
        };
        let (x_btd, _) = self.hidden(ids_bt, &at, compute, Some(cache))?;
        cache.advance(tokens)?;

        let last_bd = values::reshape(
            &x_btd.value().slice(1, tokens - 1..tokens)?,
            &[ids_bt.shape()[0], x_btd.shape()[2]],
        )?;
        Ok(values::linear(
            &last_bd,
            self.lm_head.var_as(dtype)?.value(),
        )?)
    }

    /// The cross-entropy of `labels_bt` (i64, aligned with positions; [`IGNORE_INDEX`] is ignored),
    /// plus the balancing losses.
    ///
    /// # Errors
    /// When an id or label is out of range.
    pub fn loss(
        &self,
        ids_bt: &Tensor,
        labels_bt: &Tensor,
        compute: Compute,
        balancing: Balancing,
    ) -> Result<Loss> {
        let at = self.positions(ids_bt, 0, AttentionSequences::Rows)?;
        let (x_btd, routings) = self.hidden(ids_bt, &at, compute, None)?;
        let head = self.lm_head.var_as(compute.dtype)?;
        let (cross_entropy, weight) =
            ops::linear_cross_entropy(&x_btd, &head, labels_bt, IGNORE_INDEX)?;

        let auxiliary = load_balancing_loss(&routings)?;
        let z = if balancing.z > 0.0 {
            router_z_loss(&routings)?
        } else {
            None
        };
        let mut total = cross_entropy.clone();
        for (factor, loss) in [(balancing.auxiliary, &auxiliary), (balancing.z, &z)] {
            if let (true, Some(loss)) = (factor > 0.0, loss) {
                let weighted = ops::mul(loss, &Var::constant(weight.clone()))?;
                total = ops::add(&total, &ops::affine(&weighted, factor, 0.0)?)?;
            }
        }
        Ok(Loss {
            total,
            cross_entropy: cross_entropy.value().clone(),
            weight,
            auxiliary: auxiliary.map(|loss| loss.value().clone()),
            expert_counts: routings.into_iter().map(|routing| routing.counts).collect(),
        })
    }

    /// Positions for rows that start at position `first`.
    fn positions(
        &self,
        ids_bt: &Tensor,
        first: usize,
        sequences: AttentionSequences,
    ) -> Result<Positions> {
        let t = ids_bt.extent(-1)?;
        let positions = values::arange(ids_bt.device(), first + t, DType::I64)?;
        let positions = positions.slice(0, first..first + t)?.unsqueeze(0)?;
        let (cos, sin) = self.rotary.tables(&positions)?;
        // All rows of the batch share one table.
        let shape = [ids_bt.shape()[0], t, cos.extent(-1)?];
        let (cos, sin) = (cos.broadcast_to(&shape)?, sin.broadcast_to(&shape)?);
        Ok(Positions {
            cos,
            sin,
            sequences,
        })
    }

    /// A model with initial values on `device`.
    ///
    /// # Errors
    /// [`OutOfMemory`](meshgrad_runtime::Error::OutOfMemory).
    pub fn materialized(config: &Qwen3Config, device: &Device, seed: u64) -> Result<Qwen3> {
        let model = Qwen3::new(config)?;
        model.materialize(device, seed)?;
        Ok(model)
    }
}

impl Module for Qwen3 {
    fn visit(&self, visitor: &mut dyn FnMut(&Param)) {
        visitor(&self.embed_tokens);
        self.layers.iter().for_each(|layer| layer.visit(visitor));
        self.norm.visit(visitor);
        if self.lm_head.id() != self.embed_tokens.id() {
            visitor(&self.lm_head);
        }
    }
}

impl Layer {
    /// Layer `layer` of the model.
    ///
    /// # Errors
    /// None for a valid configuration.
    pub fn new(config: &Qwen3Config, layer: usize) -> TapeResult<Layer> {
        let named = |part: &str| format!("model.layers.{layer}.{part}");
        let norm = |part: &str| RmsNorm::new(&named(part), config.hidden_size, config.rms_norm_eps);
        let mlp = match config.is_moe_layer(layer) {
            true => FeedForward::Sparse(Moe::new(&named("mlp"), config)?),
            false => FeedForward::Dense(Mlp::new(&named("mlp"), config)?),
        };
        Ok(Layer {
            input_layernorm: norm("input_layernorm")?,
            self_attn: Attention::new(&named("self_attn"), config, layer)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp,
        })
    }

    /// Maps `x_btd` to the same shape, and returns the routing of a sparse layer.
    ///
    /// # Errors
    /// When shapes do not match or the cache is full.
    pub fn forward(
        &self,
        x_btd: &Var,
        at: &Positions,
        cache: Option<&LayerCache>,
    ) -> TapeResult<(Var, Option<Routing>)> {
        let attended = self
            .self_attn
            .forward(&self.input_layernorm.forward(x_btd)?, at, cache)?;
        let (x_btd, normed) = self
            .post_attention_layernorm
            .forward_sum(x_btd, &attended)?;
        let (out, routing) = match &self.mlp {
            FeedForward::Dense(mlp) => (mlp.forward(&normed)?, None),
            FeedForward::Sparse(moe) => moe
                .forward(&normed)
                .map(|(y, routing)| (y, Some(routing)))?,
        };
        Ok((ops::add(&x_btd, &out)?, routing))
    }

    /// As [`Layer::forward`], saving only `x_btd` for backward.
    fn checkpointed(&self, x_btd: &Var, at: &Positions) -> TapeResult<(Var, Option<Routing>)> {
        let (layer, at) = (self.clone(), at.clone());
        match &self.mlp {
            FeedForward::Dense(_) => {
                let [out] = checkpoint([x_btd], move |[x]| Ok([layer.forward(&x, &at, None)?.0]))?;
                Ok((out, None))
            }
            FeedForward::Sparse(_) => {
                let [out, logits_ne, probabilities_ne, counts] =
                    checkpoint([x_btd], move |[x]| layer.routed(&x, &at))?;
                let counts = counts.value().clone();
                Ok((
                    out,
                    Some(Routing {
                        logits_ne,
                        probabilities_ne,
                        counts,
                    }),
                ))
            }
        }
    }

    /// A sparse layer's results as an array for `checkpoint`.
    fn routed(&self, x_btd: &Var, at: &Positions) -> TapeResult<[Var; 4]> {
        let (out, routing) = self.forward(x_btd, at, None)?;
        let none = || Var::constant(out.value().clone());
        let Some(routing) = routing else {
            return Ok([out.clone(), none(), none(), none()]);
        };
        Ok([
            out,
            routing.logits_ne,
            routing.probabilities_ne,
            Var::constant(routing.counts),
        ])
    }
}

impl Module for Layer {
    fn visit(&self, visitor: &mut dyn FnMut(&Param)) {
        self.input_layernorm.visit(visitor);
        self.self_attn.visit(visitor);
        self.post_attention_layernorm.visit(visitor);
        match &self.mlp {
            FeedForward::Dense(mlp) => mlp.visit(visitor),
            FeedForward::Sparse(moe) => moe.visit(visitor),
        }
    }
}
