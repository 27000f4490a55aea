//! A decoder: a model that predicts the next token of a text. Its blocks are those of a [family](crate::families).
//!
//! Legend: b batch, t tokens per sequence, d hidden size, v vocabulary.

mod adapter;
mod plan;
mod whole;

use std::ops::Range;
use std::sync::Arc;

use meshgrad_autograd::{Buffer, Module, Result, Var, Vars, ops};
use meshgrad_ckpt::mapping::Mapping;
use meshgrad_collectives::redistribute_like;
use meshgrad_error::{Error, ensure, error};
use meshgrad_mesh::{Placement, Sharding};
use meshgrad_runtime::ops::AttentionSequences;
use meshgrad_runtime::{DType, Device, Tensor};

use crate::attention::{Positions, Rotary};
use crate::cache::Cache;
use crate::ends::{Embedding, Head, sharded_like};
use crate::family::{FamilyConfig, json_of_f32};
use crate::hf::Experts;
use crate::layer::{FeedForward, Layer};
use crate::lora::LoraConfig;
use crate::model::{Compute, Decoded, Flow, Generate, Loss, Metrics, Model, TokenBatch};
pub use crate::moe::balance::{Balance, Balancing};
use crate::moe::balance::{PooledRouting, expert_metrics, update_router_bias};
use crate::moe::{Dispatch, Moe, Routing, overflow};
use crate::parts::Parts;
use crate::residual::Residual;
use crate::ring::Rings;
use crate::stage::Stage;
use crate::{ModelParallelism, ModelPlan};
pub use whole::ParameterCount;
use whole::Whole;

/// A decoder, or some stages of one. Building one allocates nothing; materialize it, or load it with
/// [`hf::load`](crate::hf::load).
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Decoder {
    /// `None` without the first stage.
    pub embedding: Option<Embedding>,
    /// Its layers, in order.
    pub layers: Vec<Layer>,
    /// `None` without the last stage.
    pub head: Option<Head>,
    /// How the load of experts is balanced in training.
    #[module(skip)]
    pub balancing: Balancing,
    /// The numbers of `layers` in the whole model.
    #[module(skip)]
    numbers: Vec<usize>,
    #[module(skip)]
    rotations: Vec<Rotary>,
    #[module(skip)]
    whole: Arc<Whole>,
    #[module(skip)]
    companions: Vec<(String, String)>,
    #[module(skip)]
    adapter: Option<Arc<LoraConfig>>,
}

/// What flows from one stage of a model to the next.
#[derive(Clone)]
pub struct Stream {
    /// The residual stream, [b, t, d].
    pub x: Residual,
    /// Sums over the sparse layers so far, for the losses of balancing.
    pub pooled: PooledRouting,
}

impl Stream {
    /// With one variable for the residual stream.
    fn summed(self) -> Result<Stream> {
        Ok(Stream { x: Residual::new(self.x.sum()?), ..self })
    }
}

impl Vars for Stream {
    fn each_var(&mut self, f: &mut dyn FnMut(&mut Var)) {
        self.x.each_var(f);
        self.pooled.each_var(f);
    }
}

impl Decoder {
    /// The model of a configuration.
    ///
    /// # Errors
    /// When the configuration is invalid, with all problems.
    pub fn new(config: &dyn FamilyConfig) -> Result<Decoder> {
        config.validate()?;
        let parts = config.parts()?;
        let whole = Arc::new(Whole::of(config.shared(), &parts));
        let Parts { embedding, layers, head, rotations } = parts;
        Ok(Decoder {
            embedding: Some(embedding),
            numbers: (0..layers.len()).collect(),
            layers,
            head: Some(head),
            balancing: Balancing::default(),
            rotations,
            whole,
            companions: Vec::new(),
            adapter: None,
        })
    }

    /// The configuration of the whole model.
    pub fn config(&self) -> &dyn FamilyConfig {
        &*self.whole.config
    }

    /// The parameters of the whole model.
    pub fn parameter_count(&self) -> ParameterCount {
        self.whole.parameters
    }

    /// Whether it has all stages.
    pub fn is_whole(&self) -> bool {
        let has_ends = self.embedding.is_some() && self.head.is_some();
        has_ends && self.layers.len() == self.layers()
    }

    /// Sets how the load of experts is balanced. Parameters stay shared with clones of the model.
    #[must_use]
    pub fn balanced(mut self, balancing: Balancing) -> Decoder {
        self.balancing = balancing;
        self
    }

    /// Sets the files that are saved with the model, such as the [companions](crate::hf::companions) of the folder
    /// that it was loaded from.
    #[must_use]
    pub fn with_companions(mut self, files: Vec<(String, String)>) -> Decoder {
        self.companions = files;
        self
    }

    /// Adds a bias to every router, as [`Moe::add_router_bias`]. Materialize it with
    /// [`Module::materialize`] or load it with a checkpoint.
    pub fn add_router_biases(&mut self) {
        for layer in &mut self.layers {
            if let FeedForward::Sparse(moe) = &mut layer.mlp {
                moe.add_router_bias();
            }
        }
    }

    /// Sets how tokens are dispatched to experts on other ranks, as [`Moe::dispatch_by`].
    pub fn dispatch_experts_by(&mut self, dispatch: Dispatch) {
        for layer in &mut self.layers {
            if let FeedForward::Sparse(moe) = &mut layer.mlp {
                moe.dispatch_by(dispatch);
            }
        }
    }

    /// Lets the slots of dispatches adapt, as [`Moe::adapt_slots`].
    pub fn adapt_expert_slots(&self, adapts: bool) {
        self.sparse_blocks().for_each(|moe| moe.adapt_slots(adapts));
    }

    /// The stream before the first layer, for `ids_bt` i64 [b, t] at the positions `at`.
    ///
    /// # Errors
    /// When an id or a position is out of range; without the first stage.
    pub fn embed(&self, ids_bt: &Tensor, at: &Positions, compute: Compute) -> Result<Stream> {
        let embedding = self.embedding.as_ref().ok_or_else(|| {
            error!(Invalid, "these stages have no embedding: only the first stage can embed ids")
        })?;
        let x_btd = embedding.forward(ids_bt, at.numbers.as_ref(), compute.dtype)?;
        Ok(Stream { x: Residual::new(x_btd), pooled: PooledRouting::default() })
    }

    /// The stream after all layers, for tokens at the positions `at`, and the
    /// [statistics](crate::moe::Routing::statistics) of each sparse layer, which begin with its tokens
    /// per expert, f32.
    ///
    /// # Errors
    /// When shapes do not match.
    pub fn advance(
        &self,
        stream: Stream,
        at: &Positions,
        compute: Compute,
    ) -> Result<(Stream, Vec<Tensor>)> {
        let all = 0..self.layers.len();
        let (stream, routings) = self.advance_with(all, stream, at, compute, None, None)?;
        Ok((stream, routings.into_iter().map(|routing| routing.statistics).collect()))
    }

    /// How each sparse layer routes the tokens of a batch, by a pass of its own. Its experts, reshaped from
    /// [b t, k] to [b, t, k], can be replayed by [`TokenBatch::experts`].
    ///
    /// # Errors
    /// As [`Model::loss`]; without the first stage.
    pub fn route(&self, batch: &TokenBatch, compute: Compute) -> Result<Vec<Routing>> {
        let (all, at) = (0..self.layers.len(), self.positions_of(batch)?);
        let stream = self.embed(&batch.ids, &at, compute)?;
        let (_, routings) =
            self.advance_with(all, stream, &at, compute, batch.experts.as_deref(), None)?;
        Ok(routings)
    }

    /// [`Decoder::advance`] through the layers at `places`, with the `replayed` experts of all sparse
    /// layers, and a cache.
    fn advance_with(
        &self,
        places: Range<usize>,
        mut stream: Stream,
        at: &Positions,
        compute: Compute,
        replayed: Option<&[Tensor]>,
        cache: Option<&Cache>,
    ) -> Result<(Stream, Vec<Routing>)> {
        let mut routings = Vec::new();
        let numbers = &self.numbers[places.clone()];
        for (index, (layer, number)) in self.layers[places].iter().zip(numbers).enumerate() {
            let cache = cache.and_then(|cache| cache.layer(index));
            let replayed = match replayed {
                Some(all) if self.whole.sparse[*number] => Some(self.experts_of(all, *number)?),
                _ => None,
            };
            let routing;
            (stream.x, routing) = match compute.checkpointing {
                true => layer.checkpointed(&stream.x.sum()?, at, replayed)?,
                false => layer.forward(&stream.x, at, replayed, cache)?,
            };
            if let Some(routing) = routing {
                // Decoding has no loss, but its stream has the tensors of one that has.
                if cache.is_none() || stream.pooled.is_empty() {
                    stream.pooled.add(&routing, &self.balancing)?;
                }
                routings.push(routing);
            }
        }
        Ok((stream, routings))
    }

    /// Those of the sparse layer `number`, of the experts of `all` sparse layers.
    fn experts_of<'a>(&self, all: &'a [Tensor], number: usize) -> Result<&'a Tensor> {
        let sparse = self.whole.sparse[..number].iter().filter(|is_sparse| **is_sparse).count();
        all.get(sparse).ok_or_else(|| {
            error!(
                Invalid,
                "a batch has experts of {} sparse layers, not of layer {number}; pass those of all \
                 sparse layers of the model",
                all.len()
            )
        })
    }

    /// The loss of the stream after the last layer, for `labels_bt` i64 [b, t], without statistics.
    /// With sharded tokens, all values are partial sums.
    ///
    /// # Errors
    /// When a label is out of range; without the last stage.
    pub fn finish(&self, stream: &Stream, labels_bt: &Tensor) -> Result<Loss> {
        let (cross_entropy, weight) = self.head()?.cross_entropy(&stream.x, labels_bt)?;
        let loss = Loss::new(cross_entropy, weight);
        let Some(terms) = stream.pooled.losses(&self.balancing, &loss.weight)? else {
            return Ok(loss);
        };
        // Partial sums over some axes more or less are partial sums over all of them.
        let total = ops::redistribute(&loss.total, partial_axes(terms.value()))?;
        let terms = ops::redistribute(&terms, partial_axes(total.value()))?;
        Ok(Loss { total: ops::add(&total, &terms)?, ..loss })
    }

    /// Where the layers of a stage are in `layers`.
    fn places(&self, stage: &Stage) -> Result<Range<usize>> {
        let place = |number| self.numbers.partition_point(|own| *own < number);
        let (start, end) = (place(stage.layers.start), place(stage.layers.end));
        ensure!(
            end - start == stage.layers.len(),
            Invalid,
            "layers {:?} are not all here: the model has layers {:?} of {}",
            stage.layers,
            self.numbers,
            self.layers()
        );
        Ok(start..end)
    }

    fn head(&self) -> Result<&Head> {
        self.head.as_ref().ok_or_else(no_head)
    }

    /// The logits of every next token, [b, t, v] in `compute.dtype`. For a loss use
    /// [`Decoder::loss`], which never holds all of them.
    ///
    /// # Errors
    /// When an id is out of range; without the first or the last stage.
    pub fn logits(&self, ids_bt: &Tensor, compute: Compute) -> Result<Var> {
        let at = self.positions(&places(ids_bt, 0)?, ids_bt, AttentionSequences::Rows)?;
        let (stream, _) = self.advance(self.embed(ids_bt, &at, compute)?, &at, compute)?;
        self.head()?.project(&self.head()?.hidden(&stream.x)?)
    }

    /// The mixture-of-experts blocks, in the order of their layers.
    pub fn sparse_blocks(&self) -> impl Iterator<Item = &Moe> {
        self.layers.iter().filter_map(|layer| layer.mlp.sparse())
    }

    /// The positions of a batch, and which keys its tokens see.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn positions_of(&self, batch: &TokenBatch) -> Result<Positions> {
        let positions_bt = match &batch.positions {
            Some(positions_bt) => positions_bt.clone(),
            None => places(&batch.ids, 0)?,
        };
        let positions = self.positions(&positions_bt, &batch.ids, AttentionSequences::Rows)?;
        let (Some(documents_bt), Some(layer)) = (&batch.documents, self.layers.first()) else {
            return Ok(positions);
        };
        let positions_bt = positions_bt.broadcast_to(&documents_bt.global_shape())?;
        let positions_bt = sharded_like(&positions_bt, documents_bt, ..2)?;
        let words = ops::token_words(documents_bt, &positions_bt)?;
        layer.self_attn.in_documents(positions, &words, batch.places.as_ref())
    }

    /// What layers know of `positions_bt`, which may have one row for all of `ids_bt`.
    fn positions(
        &self,
        positions_bt: &Tensor,
        ids_bt: &Tensor,
        sequences: AttentionSequences,
    ) -> Result<Positions> {
        let [b, t] = [0, 1].map(|dim| ids_bt.global_shape()[dim]);
        let of_rows = |table: Tensor| {
            let shape = [b, t, table.global_extent(-1)?];
            sharded_like(&table.broadcast_to(&shape)?, ids_bt, ..2)
        };
        let tables = |rotary: &Rotary| {
            let (cos, sin) = rotary.tables(positions_bt)?;
            Ok((of_rows(cos)?, of_rows(sin)?))
        };
        let is_learned = self.embedding.as_ref().is_some_and(|it| it.positions.is_some());
        self.check_positions(t)?;
        let numbers = || sharded_like(&positions_bt.broadcast_to(&[b, t])?, ids_bt, ..2);
        Ok(Positions {
            rotations: self.rotations.iter().map(tables).collect::<Result<_>>()?,
            numbers: is_learned.then(numbers).transpose()?,
            sequences,
            words: None,
            order: None,
            rings: Rings::default(),
        })
    }

    /// Checks that there are learned positions below `end`.
    fn check_positions(&self, end: usize) -> Result<()> {
        let learned = self.embedding.as_ref().and_then(|it| it.positions.as_ref());
        let positions = learned.map_or(end, |param| param.shape()[0]);
        ensure!(
            end <= positions,
            Invalid,
            "a sequence of {end} tokens is too long: the model has {positions} learned positions"
        );
        Ok(())
    }

    /// A model with initial values on `device`.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn materialized(config: &dyn FamilyConfig, device: &Device, seed: u64) -> Result<Decoder> {
        let model = Decoder::new(config)?;
        model.materialize(device, seed)?;
        Ok(model)
    }
}

/// The positions of the tokens of a row that starts at position `first`, i64 [1, t], with the shards
/// of `ids_bt` along t.
fn places(ids_bt: &Tensor, first: usize) -> Result<Tensor> {
    let end = first + ids_bt.global_extent(-1)?;
    let whole = ops::arange(ids_bt.device(), end, DType::I64)?.slice(0, first..end)?;
    sharded_like(&whole.unsqueeze(0)?, ids_bt, 1..2)
}

impl Model for Decoder {
    type Batch = TokenBatch;
    type Stream = Stream;

    /// Cross-entropy; `total` also has the losses of [`Decoder::balancing`] times the weight. The
    /// statistics are those of each sparse layer, which begin with its tokens per expert, f32.
    fn loss(&self, batch: &TokenBatch, compute: Compute) -> Result<Loss> {
        match self.forward(&Stage::whole(self.layers()), None, batch, compute)? {
            Flow::Loss(loss) => Ok(*loss),
            Flow::Next { .. } => Err(no_head()),
        }
    }

    fn layers(&self) -> usize {
        self.whole.sparse.len()
    }

    /// Parameters keep the names of the whole model.
    fn part(&self, stages: &[Stage]) -> Result<Decoder> {
        let mut part = Decoder { layers: Vec::new(), numbers: Vec::new(), ..self.clone() };
        for stage in stages {
            part.layers.extend_from_slice(&self.layers[self.places(stage)?]);
            part.numbers.extend(stage.layers.clone());
        }
        part.embedding = part.embedding.filter(|_| stages.iter().any(|it| it.is_first));
        part.head = part.head.filter(|_| stages.iter().any(|it| it.is_last));
        Ok(part)
    }

    fn forward(
        &self,
        stage: &Stage,
        input: Option<Stream>,
        batch: &TokenBatch,
        compute: Compute,
    ) -> Result<Flow<Stream>> {
        let at = self.positions_of(batch)?;
        let stream = match input {
            Some(stream) => stream,
            None => self.embed(&batch.ids, &at, compute)?,
        };
        let places = self.places(stage)?;
        let replayed = batch.experts.as_deref();
        let (stream, routings) = self.advance_with(places, stream, &at, compute, replayed, None)?;
        let statistics = routings.into_iter().map(|routing| routing.statistics).collect();
        Ok(match stage.is_last {
            true => {
                let loss = self.finish(&stream, &batch.labels)?;
                Flow::Loss(Box::new(Loss { statistics, ..loss }))
            }
            false => Flow::Next { stream: stream.summed()?, statistics },
        })
    }

    fn plan(&self, parallelism: &ModelParallelism) -> Result<ModelPlan> {
        plan::plan(self, parallelism)
    }

    /// The layers.
    fn units(&self) -> Vec<String> {
        vec!["model.layers.*".to_owned()]
    }

    /// Updates the router biases.
    fn after_step(&self, statistics: &[Tensor], scale: &Tensor) -> Result<()> {
        let rate = self.balancing.bias_update_rate;
        if rate > 0.0 {
            for (moe, of_layer) in self.sparse_blocks().zip(statistics) {
                if let Some(bias) = &moe.router.bias {
                    let counts = of_layer.slice(0, 0..self.whole.experts)?;
                    update_router_bias(&bias.value()?, &counts, rate, scale)?;
                }
            }
        }
        Ok(())
    }

    fn overflow(&self, statistics: &[Tensor]) -> Result<Option<Tensor>> {
        overflow(statistics, self.whole.experts)
    }

    fn follow(&self, statistics: &[Vec<f32>]) {
        for (moe, of_layer) in self.sparse_blocks().zip(statistics) {
            moe.follow(of_layer);
        }
    }

    fn metrics(&self, statistics: &[Vec<f32>]) -> Metrics {
        let ranks = self.sparse_blocks().next().map_or(1, Moe::ep_size);
        expert_metrics(statistics, self.whole.experts, ranks)
    }

    /// Under Hugging Face names, one tensor per expert.
    fn stored_as(&self) -> Result<Mapping> {
        self.config().mapping(Experts::OneByOne, false)
    }

    /// Those that the family has, such as the router biases of DeepSeek-V3.
    fn stored_buffers(&self) -> Vec<Buffer> {
        let mut buffers = self.buffers();
        buffers.retain(|buffer| self.whole.buffers.contains(buffer.name()));
        buffers
    }

    fn adapter(&self) -> Option<&LoraConfig> {
        self.adapter.as_deref()
    }

    fn files(&self) -> Result<Vec<(String, String)>> {
        let config = ("config.json".into(), json_of_f32(self.config())?);
        let companions = self.companions.iter().cloned();
        Ok(std::iter::once(config).chain(companions).collect())
    }

    fn title(&self) -> String {
        let Whole { config, sparse, experts, top_k, .. } = &*self.whole;
        let experts = match experts {
            0 => String::new(),
            _ => format!(", {experts} experts, {top_k} per token"),
        };
        let (layers, hidden) = (sparse.len(), self.whole.attention.inputs);
        format!("{} {layers} layers of {hidden}{experts}", config.model_type())
    }

    fn flops_per_token(&self, tokens: usize) -> Option<f64> {
        Some(self.whole.flops_per_token(tokens))
    }

    fn active_parameters(&self) -> u64 {
        self.whole.parameters.active()
    }
}

fn no_head() -> Error {
    error!(Invalid, "these stages have no head: only the last stage has logits and a loss")
}

/// The axes along which `x` is a partial sum.
fn partial_axes(x: &Tensor) -> Vec<(String, Placement)> {
    let partials = x.sharding().map(Sharding::partials).unwrap_or_default().into_iter();
    partials.map(|(axis, by)| (axis.to_owned(), Placement::Partial(by))).collect()
}

impl Generate for Decoder {
    type Cache = Cache;

    fn vocab_size(&self) -> usize {
        self.config().vocab_size()
    }

    fn cache(&self, device: &Device, _dtype: DType, capacity: usize) -> Result<Cache> {
        Cache::new(self.layers.len(), device, capacity)
    }

    fn next_logits(&self, ids_bt: &Tensor, cache: &mut Cache, dtype: DType) -> Result<Tensor> {
        let whole = Stage::whole(self.layers());
        match self.decode(&whole, None, ids_bt, cache, dtype)? {
            Decoded::Logits(logits) => Ok(logits),
            Decoded::Next(_) => Err(no_head()),
        }
    }

    fn stage_cache(
        &self,
        stage: &Stage,
        device: &Device,
        _dtype: DType,
        capacity: usize,
    ) -> Result<Cache> {
        Cache::new(stage.layers.len(), device, capacity)
    }

    fn decode(
        &self,
        stage: &Stage,
        input: Option<Stream>,
        ids_bt: &Tensor,
        cache: &mut Cache,
        dtype: DType,
    ) -> Result<Decoded<Stream>> {
        let tokens = ids_bt.global_extent(-1)?;
        let sequences = cache.begin(tokens)?;
        self.check_positions(cache.len() + tokens)?;
        let at = self.positions(&places(ids_bt, cache.len())?, ids_bt, sequences)?;
        let compute = Compute::new(dtype);
        let stream = match input {
            Some(stream) => stream,
            None => self.embed(ids_bt, &at, compute)?,
        };
        let places = self.places(stage)?;
        let (stream, _) = self.advance_with(places, stream, &at, compute, None, Some(cache))?;
        if !stage.is_last {
            cache.advance(tokens)?;
            return Ok(Decoded::Next(stream.summed()?));
        }
        let x_btd = self.head()?.hidden(&stream.x)?;
        cache.advance(tokens)?;

        let last_bd = ops::reshape(
            &ops::slice(&x_btd, 1, tokens - 1..tokens)?,
            &[ids_bt.global_shape()[0], x_btd.global_shape()[2]],
        )?;
        let logits = redistribute_like(self.head()?.project(&last_bd)?.value(), ids_bt)?;
        Ok(Decoded::Logits(logits))
    }
}
