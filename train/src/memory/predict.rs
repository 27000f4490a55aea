//! The memory of one rank, from a step on a meta device.

use meshgrad_autograd::{Buffer, Module, Param, Values, Visitor};
use meshgrad_comm::{Plan, Rank};
use meshgrad_models::lora::{LoraConfig, is_lora};
use meshgrad_models::{Compute, Flow, Loss, Model, Stage, TokenBatch};
use meshgrad_runtime::{Device, Error as RuntimeError, Kind, Properties, Tensor};

use crate::config::{Config, SumOrder};
use crate::ranks::RunRanks;
use crate::sums::no_batch;
use crate::trainer::Trainer;
use crate::{Result, checkpoint};

/// The memory that a run needs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needed {
    /// The peak on the device: parameters, gradients, optimizer state, activations.
    pub device: u64,
    /// The copy of the training state that is written in the background, in host memory.
    pub saving: u64,
}

impl Needed {
    /// The larger of two needs, of each memory.
    pub(super) fn max(self, other: Needed) -> Needed {
        Needed { device: self.device.max(other.device), saving: self.saving.max(other.saving) }
    }
}

/// Predicts the memory of training `model` on a device with the properties `like`, on a single rank;
/// `None` if the model cannot run on a meta device, because it reads values.
pub fn predict<M>(model: &M, config: &Config, like: &Properties) -> Option<Needed>
where
    M: Model<Batch = TokenBatch>,
{
    predict_rank(model, config, like, 0, 1)
}

/// As [`predict`], for rank `rank` of `ranks` on the mesh of `config.parallel`; `None` also if
/// `config` does not fit that many ranks.
pub fn predict_rank<M>(
    model: &M,
    config: &Config,
    like: &Properties,
    rank: usize,
    ranks: usize,
) -> Option<Needed>
where
    M: Model<Batch = TokenBatch>,
{
    let mut like = like.clone();
    if let Some(gpu) = &mut like.gpu {
        // The meta device has more memory than the GPU, so that a prediction above the GPU's memory
        // does not fail.
        gpu.memory = usize::MAX / 4;
    }
    let meta = Device::meta(&like);
    let values = Values::take(model);
    let needed = rehearse_rank(model, config, &meta, rank, ranks);
    values.restore();
    needed.ok()
}

/// Rehearses a rank. Its collectives send nothing.
fn rehearse_rank<M>(
    model: &M,
    config: &Config,
    like: &Device,
    rank: usize,
    ranks: usize,
) -> Result<Needed>
where
    M: Model<Batch = TokenBatch>,
{
    let mut needed = Err(no_batch());
    let world = Plan::new(ranks)?.like(like);
    world.trace(rank, |rank| -> Result<()> {
        let ranks = RunRanks::new(rank, config)?;
        needed = ranks.on_mesh(|| rehearse(model, config, rank.device(), &ranks));
        Ok(())
    })?;
    needed
}

fn rehearse<M>(model: &M, config: &Config, meta: &Device, ranks: &RunRanks<'_>) -> Result<Needed>
where
    M: Model<Batch = TokenBatch>,
{
    let staged = ranks.divide(model)?;
    let model = staged.as_ref().map_or(model, |(part, _)| part);
    allocate(model, meta)?;
    let pipeline = staged.as_ref().map(|(_, pipeline)| pipeline.clone());
    let builder = Trainer::of(OnMeta(model)).schedule(Box::new(|_| 1.0));
    let mut trainer = builder.pipeline(pipeline).build(config, meta)?;

    let saved = saved_bytes(&trainer)?;
    let rows = config.train.rows_of_pass(ranks.batch_parts());
    let passes = config.train.batch_size / rows;
    let count = match config.train.reduction {
        // Later passes need as much as the second, but of a pipeline, several are under way.
        SumOrder::Sum if staged.is_none() => passes.min(2),
        _ => passes,
    };
    let part = ranks.part_of_batch(rows, config.train.seq_len)?;
    let shape = part.shape();
    let zeros = vec![0i64; shape[0] * shape[1]];
    trainer.rehearse(count, || {
        let tensor = || part.tensor(Tensor::from_slice(meta, &shape, &zeros)?);
        Ok(TokenBatch::new(&tensor()?, &tensor()?))
    })?;
    Ok(Needed { device: meta.memory_stats().peak as u64, saving: saved })
}

/// A borrowed model, of which a rehearsal needs the loss only.
struct OnMeta<'m, M>(&'m M);

impl<M: Model> Module for OnMeta<'_, M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.0.visit(visitor);
    }
}

impl<M: Model> Model for OnMeta<'_, M> {
    type Batch = M::Batch;
    type Stream = M::Stream;

    fn loss(&self, batch: &M::Batch, compute: Compute) -> Result<Loss, RuntimeError> {
        self.0.loss(batch, compute)
    }

    fn adapter(&self) -> Option<&LoraConfig> {
        self.0.adapter()
    }

    fn layers(&self) -> usize {
        self.0.layers()
    }

    fn forward(
        &self,
        stage: &Stage,
        input: Option<M::Stream>,
        batch: &M::Batch,
        compute: Compute,
    ) -> Result<Flow<M::Stream>, RuntimeError> {
        self.0.forward(stage, input, batch, compute)
    }
}

/// Bytes of everything that a checkpoint copies.
fn saved_bytes<M: Model>(trainer: &Trainer<M>) -> Result<u64> {
    let Trainer { model, optimizer, .. } = trainer;
    let (params, buffers) = (saved_params(model), model.buffers());
    let values = params.iter().map(Param::kept_value).chain(buffers.iter().map(Buffer::value));
    let state = optimizer.state().into_iter().flat_map(|part| part.tensors);
    let all = values.chain(state.map(|(_, tensor)| Ok(tensor)));
    let bytes = |tensor: Tensor| tensor.dtype().bytes(tensor.elements()) as u64;
    all.map(|tensor| Ok(bytes(tensor?))).sum()
}

/// The parameters that a checkpoint has: not those that an adapter updates and another folder has.
fn saved_params(model: &impl Model) -> Vec<Param> {
    let mut params = model.params();
    if model.adapter().is_some_and(|adapter| adapter.base.is_some()) {
        params.retain(|param| is_lora(param.name()));
    }
    params
}

/// Allocates parameters and buffers on `device`, a meta device.
fn allocate(model: &impl Model, device: &Device) -> Result<()> {
    allocate_params(model, device)?;
    checkpoint::init_buffers(model, device, 0)
}

/// Allocates the parameters of a model on `device`, except those that have a home. Their values are
/// set later.
pub(crate) fn allocate_params(model: &impl Model, device: &Device) -> Result<()> {
    let params = model.params().into_iter();
    for param in params.filter(|param| param.home().is_none()) {
        let (shape, dtype) = (param.shape(), param.spec().dtype);
        param.set(&Tensor::zeros(device, shape, dtype, Kind::Parameter)?.as_replicated()?)?;
    }
    Ok(())
}
