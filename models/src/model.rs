//! What training and text generation need of a model, and no more.

use meshgrad_autograd::{Buffer, Module, Param, Result, Var, Vars};
use meshgrad_ckpt::mapping::Mapping;
use meshgrad_error::{bail, ensure};
use meshgrad_runtime::{DType, Device, Tensor};

use crate::lora::LoraConfig;
use crate::plan::does_not_fit;
use crate::stage::Stage;
use crate::{ModelParallelism, ModelPlan, folder};

/// A model that can be trained.
pub trait Model: Module {
    /// What one forward pass reads; [`TokenBatch`] for a language model.
    type Batch;
    /// What flows from a stage of the model to the next; `()` for a model that cannot be cut.
    type Stream: Vars + Clone;

    /// The loss of a batch, recorded if a tape is recording.
    ///
    /// # Errors
    /// When the batch does not fit the model.
    fn loss(&self, batch: &Self::Batch, compute: Compute) -> Result<Loss>;

    /// The number of layers, between which the model can be cut into stages. A model of one layer
    /// cannot be cut.
    fn layers(&self) -> usize {
        1
    }

    /// The part of the model that has `stages`, in ascending order, and nothing else. It shares
    /// parameters with `self`, and [`Model::files`] are those of `self`.
    ///
    /// # Errors
    /// When the model cannot be cut, or has no such layers.
    fn part(&self, stages: &[Stage]) -> Result<Self>
    where
        Self: Sized,
    {
        let _ = stages;
        bail!(Unsupported, "{}", cannot_be_cut(&self.title()))
    }

    /// The pass of a stage: from the stream of the stage before, `None` for the first stage, to the
    /// stream for the next one, or to the loss.
    ///
    /// # Errors
    /// As [`Model::loss`]; when the model cannot be cut, or a [`Model::part`] lacks the stage.
    fn forward(
        &self,
        stage: &Stage,
        input: Option<Self::Stream>,
        batch: &Self::Batch,
        compute: Compute,
    ) -> Result<Flow<Self::Stream>> {
        let is_whole = input.is_none() && stage.is_whole(self.layers());
        ensure!(is_whole, Unsupported, "{}", cannot_be_cut(&self.title()));
        Ok(Flow::Loss(Box::new(self.loss(batch, compute)?)))
    }

    /// Updates what is not trained by gradients, such as router biases. Called after each optimizer
    /// step with the sums of [`Loss::statistics`] over the step, so every microbatch and every
    /// recomputation of a step sees the same buffers. `scale`, a scalar f32, is the factor of the
    /// step's gradients: if it is not finite, the step is skipped, and this must change nothing.
    ///
    /// # Errors
    /// When an op fails.
    fn after_step(&self, statistics: &[Tensor], scale: &Tensor) -> Result<()> {
        let _ = (statistics, scale);
        Ok(())
    }

    /// How often the passes of a step could not hold their data, a scalar f32, from the sums of
    /// [`Loss::statistics`] of all stages; `None` if they always can. If it is not zero, the step must
    /// change nothing, and is repeated after [`Model::follow`].
    ///
    /// # Errors
    /// When an op fails.
    fn overflow(&self, statistics: &[Tensor]) -> Result<Option<Tensor>> {
        let _ = statistics;
        Ok(None)
    }

    /// Prepares for further steps by the values of the sums of [`Loss::statistics`] of this rank's stages
    /// over a step, which are equal on all ranks. Called once the host has them, for each step in order.
    fn follow(&self, statistics: &[Vec<f32>]) {
        let _ = statistics;
    }

    /// The placements of its parameters and seams, for [`ModelPlan::apply`]. By default it replicates
    /// all parameters, for data parallelism only.
    ///
    /// ```
    /// # use meshgrad_autograd::{Module, Result, Seam, Var};
    /// # use meshgrad_mesh::Mesh;
    /// # use meshgrad_models::layers::Linear;
    /// # use meshgrad_models::{Compute, Loss, Model, ModelParallelism, ModelPlan};
    /// # use meshgrad_runtime::Device;
    /// #[derive(Module)]
    /// # #[module(crate = meshgrad_autograd)]
    /// struct Mlp {
    ///     input: Seam,
    ///     up: Linear,
    ///     down: Linear,
    ///     output: Seam,
    /// }
    ///
    /// impl Model for Mlp {
    ///     type Batch = Var;
    ///     type Stream = ();
    ///
    ///     fn loss(&self, x: &Var, _: Compute) -> Result<Loss> {
    ///         let inside = self.up.forward(&self.input.redistribute(x)?)?;
    ///         let y = self.output.redistribute(&self.down.forward(&inside)?)?;
    ///         // ...
    /// #       Ok(Loss::new(y.clone(), y.value().clone()))
    ///     }
    ///
    ///     fn plan(&self, parallelism: &ModelParallelism) -> Result<ModelPlan> {
    ///         Ok(ModelPlan::new(&parallelism.mesh)
    ///             .place("input", parallelism.replicate())
    ///             .place("up.weight", parallelism.shard(0))
    ///             .place("down.weight", parallelism.shard(1))
    ///             .place("output", parallelism.replicate()))
    ///     }
    /// }
    ///
    /// let mlp = Mlp {
    ///     input: Seam::new("input"),
    ///     up: Linear::new("up", 4, 10),
    ///     down: Linear::new("down", 10, 4),
    ///     output: Seam::new("output"),
    /// };
    /// let parallelism = ModelParallelism::new(&Mesh::new(&[4], &["tp"])?).tensor(["tp"])?;
    /// mlp.plan(&parallelism)?.apply(&mlp, 3)?;
    /// mlp.materialize(&Device::cpu(), 0)?;
    /// let up = mlp.up.weight.value()?;
    /// assert_eq!(up.sharding().unwrap().local_shape(3), Some(vec![1, 4])); // 3 + 3 + 3 + 1 rows
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the model does not support `parallelism`, or its sizes do not fit it.
    fn plan(&self, parallelism: &ModelParallelism) -> Result<ModelPlan> {
        if parallelism.tensor_ranks() > 1 {
            return Err(does_not_fit(&[format!(
                "{} has no plan for tensor parallelism: implement `Model::plan`",
                self.title()
            )]));
        }
        Ok(ModelPlan::new(&parallelism.mesh))
    }

    /// The modules whose parameters are gathered and reduced together on ranks, such as layers: patterns
    /// of names, in which `*` matches one component. By default the whole model is one unit.
    fn units(&self) -> Vec<String> {
        Vec::new()
    }

    /// How parameters are stored: a mapping from them, on the left, to the tensors of a folder, on
    /// the right. By default both have the same names.
    ///
    /// # Errors
    /// When the mapping is invalid.
    fn stored_as(&self) -> Result<Mapping> {
        folder::by_name()
    }

    /// The buffers that are stored beside the parameters, by the same mapping, because a format has a place for them.
    /// Others are stored only in the checkpoints of runs. By default none are.
    fn stored_buffers(&self) -> Vec<Buffer> {
        Vec::new()
    }

    /// Its adapter, which is stored as PEFT does, beside the parameters that it updates or without them
    /// ([`hf::stored_parts`](crate::hf::stored_parts)).
    fn adapter(&self) -> Option<&LoraConfig> {
        None
    }

    /// Text files that are stored with the parameters, such as config.json: name and content.
    ///
    /// # Errors
    /// When one cannot be written.
    fn files(&self) -> Result<Vec<(String, String)>> {
        Ok(Vec::new())
    }

    /// One line that describes the model to people.
    fn title(&self) -> String {
        let name = std::any::type_name::<Self>();
        name.rsplit("::").next().unwrap_or(name).to_owned()
    }

    /// Floating-point operations with which a step trains a token of sequences of `tokens` tokens,
    /// without recomputation; `None` if unknown. Model FLOPs utilization (MFU) is measured by them.
    fn flops_per_token(&self, _tokens: usize) -> Option<f64> {
        None
    }

    /// Number of parameters that one token uses. In a mixture of experts these are not all.
    fn active_parameters(&self) -> u64 {
        let elements = |param: &Param| param.shape().elements() as u64;
        self.params().iter().map(elements).sum()
    }

    /// Metrics of a step, from the values of the sums of [`Loss::statistics`] over the step.
    fn metrics(&self, statistics: &[Vec<f32>]) -> Metrics {
        let _ = statistics;
        Metrics::default()
    }
}

fn cannot_be_cut(title: &str) -> String {
    format!(
        "{title} cannot be cut into stages: use parallel.pp = 1, or implement `Model::layers`, `part` \
         and `forward`, and to generate text `Generate::stage_cache` and `decode`"
    )
}

/// A language model that can generate text.
pub trait Generate: Module {
    /// What is kept of the tokens so far.
    type Cache;

    /// The number of tokens in its vocabulary.
    fn vocab_size(&self) -> usize;

    /// An empty cache for one sequence of up to `capacity` tokens, with values of `dtype`.
    ///
    /// # Errors
    /// When memory runs out.
    fn cache(&self, device: &Device, dtype: DType, capacity: usize) -> Result<Self::Cache>;

    /// The logits of the token after `ids_bt`, [b, v]. `ids_bt`, i64 [b, t], continues the
    /// sequences in `cache` and is appended to it.
    ///
    /// # Errors
    /// When an id is out of range or the cache is full.
    fn next_logits(&self, ids_bt: &Tensor, cache: &mut Self::Cache, dtype: DType)
    -> Result<Tensor>;

    /// As [`Generate::cache`], for a stage of a model that can be cut.
    ///
    /// # Errors
    /// As [`Generate::cache`]; when the model cannot be cut.
    fn stage_cache(
        &self,
        stage: &Stage,
        device: &Device,
        dtype: DType,
        capacity: usize,
    ) -> Result<Self::Cache>
    where
        Self: Model,
    {
        ensure!(stage.is_whole(self.layers()), Unsupported, "{}", cannot_be_cut(&self.title()));
        self.cache(device, dtype, capacity)
    }

    /// As [`Generate::next_logits`], for a stage of a model that can be cut: from the stream of the
    /// stage before, `None` for the first stage.
    ///
    /// # Errors
    /// As [`Generate::next_logits`]; when the model cannot be cut.
    fn decode(
        &self,
        stage: &Stage,
        input: Option<Self::Stream>,
        ids_bt: &Tensor,
        cache: &mut Self::Cache,
        dtype: DType,
    ) -> Result<Decoded<Self::Stream>>
    where
        Self: Model,
    {
        let is_whole = input.is_none() && stage.is_whole(self.layers());
        ensure!(is_whole, Unsupported, "{}", cannot_be_cut(&self.title()));
        self.next_logits(ids_bt, cache, dtype).map(Decoded::Logits)
    }
}

/// Where a stage leads that generates text.
pub enum Decoded<S> {
    /// To the next stage.
    Next(S),
    /// To the logits of the next token, [b, v].
    Logits(Tensor),
}

/// Options of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compute {
    /// The dtype of activations and of the weights' compute copies.
    pub dtype: DType,
    /// Whether each layer saves only its input and recomputes the rest in the backward pass.
    pub checkpointing: bool,
}

impl Compute {
    /// A pass in `dtype` that saves what backward needs, without checkpointing.
    pub const fn new(dtype: DType) -> Compute {
        Compute { dtype, checkpointing: false }
    }
}

/// The label of positions that the loss ignores, as in PyTorch.
pub const IGNORE_INDEX: i64 = -100;

/// A batch of a language model.
#[derive(Clone, Debug)]
pub struct TokenBatch {
    /// Token ids, i64 [b, t].
    pub ids: Tensor,
    /// The token after each position, i64 [b, t]; [`IGNORE_INDEX`] at
    /// positions that do not count.
    pub labels: Tensor,
    /// The position of each token in its document, i64 [b, t]; `None` for 0, 1, 2, ... in each row.
    pub positions: Option<Tensor>,
    /// The number of each token's document, i64 [b, t]. A token attends to tokens of its document only.
    /// Along each range of a row that one rank has, the numbers do not decrease, nor do the positions
    /// within a document. `None` for one document per row.
    pub documents: Option<Tensor>,
    /// Where each token was in its row before the row was divided [`by_document`](crate::by_document()),
    /// i64 [b, t]; `None` for rows in their order.
    pub places: Option<Tensor>,
    /// The experts of each token in each sparse layer of the whole model, [b, t, k] i32, such as those
    /// that another model chose; `None` for those that this model chooses.
    pub experts: Option<Vec<Tensor>>,
}

impl TokenBatch {
    /// A batch of `ids` and `labels`, as the fields say.
    pub fn new(ids: &Tensor, labels: &Tensor) -> TokenBatch {
        TokenBatch {
            ids: ids.clone(),
            labels: labels.clone(),
            positions: None,
            documents: None,
            places: None,
            experts: None,
        }
    }
}

/// A loss as a sum, with its weight. Sums and weights add up over microbatches and ranks; the mean
/// is `sum / weight`.
pub struct Loss {
    /// What backward starts from: the sum, plus auxiliary losses times the weight. A scalar, f32;
    /// tracked.
    pub total: Var,
    /// The sum that is reported, such as the cross-entropy in nats without auxiliary losses. A
    /// scalar, f32.
    pub sum: Tensor,
    /// What the sum is divided by, such as the number of counted tokens. A scalar, f32.
    pub weight: Tensor,
    /// Further tensors that are summed over the microbatches of a step and passed to
    /// [`Model::after_step`]. Their number and shapes are the same for every batch.
    pub statistics: Vec<Tensor>,
}

impl Loss {
    /// A loss without auxiliary terms: `total`, a scalar, summed over `weight` counted items.
    pub fn new(total: Var, weight: Tensor) -> Loss {
        Loss { sum: total.value().clone(), total, weight, statistics: Vec::new() }
    }
}

/// Where the pass of a stage leads.
pub enum Flow<S> {
    /// To the next stage.
    Next {
        /// Its input.
        stream: S,
        /// As [`Loss::statistics`], of this stage.
        statistics: Vec<Tensor>,
    },
    /// To the end.
    Loss(Box<Loss>),
}

/// Metrics of a step that only the model can compute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Tokens of the busiest expert divided by the mean tokens per expert, in the layer where this
    /// ratio is largest.
    pub expert_load: Option<f64>,
    /// Each expert's share of the tokens over all layers.
    pub expert_shares: Vec<f64>,
    /// Further numbers, under their names in `metrics.jsonl`.
    pub extra: Vec<(String, f64)>,
}
