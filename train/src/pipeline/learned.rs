//! What flows between the stages of a pipeline, learnt from a pass without data.

use std::collections::BTreeMap;
use std::sync::Arc;

use meshgrad_autograd::{Param, Tape, Values, Var, Vars};
use meshgrad_collectives::{Collectives, Rank, Redistributor, Reduction, communicator};
use meshgrad_comm::Plan;
use meshgrad_error::bail;
use meshgrad_mesh::{Mesh, Sharding};
use meshgrad_models::{Compute, Flow, Model, Stage};
use meshgrad_pipeline::{Placement, Program};
use meshgrad_runtime::{DType, Device, Shape, Tensor};

use super::cut::{Cut, evaluation};
use super::norm::ParamsOfStages;
use crate::Result;
use crate::config::SumOrder;
use crate::sums::{ReducedSums, StepSums, no_batch};

/// The stages of a model on this rank, and what flows between them.
#[derive(Clone)]
pub struct Pipeline<S> {
    /// `None` for the whole model on one rank.
    pub(super) cut: Option<Cut>,
    pub(super) stages: Vec<Stage>,
    /// By the stage before it.
    pub(super) boundaries: Arc<Vec<Boundary<S>>>,
    /// By stage of this rank. The parameters that it uses.
    params: BTreeMap<usize, Vec<Param>>,
    /// Modules of parameters that several stages use, and their ranks along the axis of the pipeline.
    pub(crate) tied: Vec<(String, Vec<usize>)>,
    /// The trained parameters of the whole model, with their numbers of rows.
    rows: Vec<(String, usize)>,
    /// Of their gradients.
    dtype: DType,
    /// By stage.
    statistics: Vec<Vec<Shape>>,
    /// Of a forward pass, by stage.
    flops: Vec<u64>,
    /// Whether the whole model has buffers.
    pub(crate) has_buffers: bool,
}

/// What one stage passes to the next.
pub(super) struct Boundary<S> {
    /// On a meta device.
    pub(super) stream: S,
    /// The values of its variables.
    pub(super) values: Vec<Tensor>,
    /// Which variables have a gradient.
    pub(super) is_tracked: Vec<bool>,
}

impl<S: Vars + Clone> Pipeline<S> {
    /// The whole of `model`, on one rank.
    pub(crate) fn whole(model: &impl Model<Stream = S>) -> Pipeline<S> {
        Pipeline {
            cut: None,
            stages: vec![Stage::whole(model.layers())],
            boundaries: Arc::default(),
            params: BTreeMap::from([(0, model.trained())]),
            tied: Vec::new(),
            rows: Vec::new(),
            dtype: DType::F32,
            statistics: vec![Vec::new()],
            flops: Vec::new(),
            has_buffers: !model.buffers().is_empty(),
        }
    }

    /// The stages of `cut` on `rank`. `model` is the whole model, to which its plan has been applied; it
    /// needs no values, and is not changed. `batch` makes a batch of the shapes of training on a meta
    /// device. Ranks send nothing.
    ///
    /// # Errors
    /// When the model cannot be cut; those of `batch` and of the passes.
    pub fn learn<M: Model<Stream = S>>(
        cut: &Cut,
        rank: &dyn Rank,
        model: &M,
        compute: Compute,
        batch: impl FnOnce(&Device) -> Result<M::Batch>,
    ) -> Result<Pipeline<S>> {
        let trained = model.trained();
        let rows = |param: &Param| (param.name().to_owned(), param.kept().count_of_all());
        let mut pipeline = Pipeline {
            cut: Some(cut.clone()),
            stages: cut.stages().to_vec(),
            boundaries: Arc::default(),
            params: BTreeMap::new(),
            tied: Vec::new(),
            rows: trained.iter().map(rows).collect(),
            dtype: trained.first().map_or(DType::F32, Param::gradient_dtype),
            statistics: Vec::new(),
            flops: Vec::new(),
            has_buffers: !model.buffers().is_empty(),
        };
        let (rank, world) = (rank.rank(), rank.world_size());
        on_meta(model, rank, world, &cut.stage_mesh()?, |device| {
            pipeline.pass(cut, model, &batch(device)?, compute, device)
        })?;
        Ok(pipeline)
    }

    /// A pass through all stages.
    fn pass<M>(
        &mut self,
        cut: &Cut,
        model: &M,
        batch: &M::Batch,
        compute: Compute,
        device: &Device,
    ) -> Result<()>
    where
        M: Model<Stream = S>,
    {
        let (mut input, mut boundaries) = (None, Vec::new());
        let mut users: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (number, stage) in self.stages.iter().enumerate() {
            let before = device.work().flops;
            let (flow, tape) = Tape::record(|| {
                let input = input
                    .take()
                    .map(|(stream, is_tracked): (S, Vec<bool>)| as_input(stream, &is_tracked));
                model.forward(stage, input, batch, compute)
            })?;
            self.flops.push(device.work().flops - before);
            let (trained, rank) = (model.trained().into_iter(), cut.placement().rank_of(number));
            let used: Vec<Param> = trained.filter(|param| tape.uses(param)).collect();
            for param in &used {
                users.entry(param.name().to_owned()).or_default().push(rank);
            }
            if rank == cut.own {
                self.params.insert(number, used);
            }
            let statistics = match flow {
                Flow::Next { mut stream, statistics } => {
                    let (mut values, mut is_tracked) = (Vec::new(), Vec::new());
                    stream.each_var(&mut |var| {
                        values.push(var.value().clone());
                        is_tracked.push(var.is_tracked());
                    });
                    input = Some((stream.clone(), is_tracked.clone()));
                    boundaries.push(Boundary { stream, values, is_tracked });
                    statistics
                }
                Flow::Loss(loss) => loss.statistics,
            };
            self.statistics.push(statistics.iter().map(Tensor::global_shape).collect());
        }
        let tied = users.into_iter().filter(|(_, ranks)| ranks.len() > 1);
        let tied = tied.map(|(name, mut ranks)| {
            ranks.sort_unstable();
            ranks.dedup();
            (module(&name).to_owned(), ranks)
        });
        self.tied = tied.collect();
        self.boundaries = Arc::new(boundaries);
        Ok(())
    }

    /// Of each stage: its layers, and its share of the FLOPs of a forward pass.
    pub(crate) fn shares(&self) -> Option<Vec<(usize, f64)>> {
        self.cut.as_ref()?;
        let all = self.flops.iter().sum::<u64>().max(1) as f64;
        let stages = self.stages.iter().zip(&self.flops);
        Some(stages.map(|(stage, flops)| (stage.layers.len(), *flops as f64 / all)).collect())
    }

    /// The program of a training step.
    pub(crate) fn program(&self, microbatches: usize) -> Result<Program> {
        match &self.cut {
            Some(cut) => cut.program(microbatches),
            None => Ok(Program::single(microbatches)?),
        }
    }

    /// The program of an evaluation: the forward passes of one batch.
    pub(crate) fn evaluation(&self) -> Result<Program> {
        match &self.cut {
            Some(cut) => evaluation(cut.placement()),
            None => evaluation(&Placement::new(1, vec![0])?),
        }
    }

    /// Whether other ranks have stages, too.
    pub(crate) fn is_part(&self) -> bool {
        self.cut.is_some()
    }

    /// This rank along the axis of the pipeline.
    pub(crate) fn own(&self) -> usize {
        self.cut.as_ref().map_or(0, |cut| cut.own)
    }

    /// Checks that gradients of each stage can be summed in the order `reduction`.
    pub(crate) fn check_reduction(&self, reduction: SumOrder) -> Result<()> {
        match (reduction, self.tied.first()) {
            (SumOrder::Tree, Some((module, _))) => bail!(
                Invalid,
                "train.reduction: \"tree\" does not support `{module}`, which several stages of the \
                 pipeline share; untie it, or use \"sum\""
            ),
            _ => Ok(()),
        }
    }

    /// The trained parameters of all stages; `None` for the whole model on one rank.
    pub(crate) fn all_params(&self) -> Result<Option<ParamsOfStages>> {
        let Some(Cut { mesh, .. }) = &self.cut else {
            return Ok(None);
        };
        let axes: Vec<&str> = mesh.axes().iter().map(|axis| axis.name()).collect();
        let ranks = communicator(mesh, axes)?;
        Ok(Some(ParamsOfStages::new(ranks, self.rows.clone(), self.dtype)))
    }

    /// The parameters of a stage of this rank.
    pub(crate) fn params(&self, stage: usize) -> &[Param] {
        self.params.get(&stage).map_or(&[], Vec::as_slice)
    }

    /// Modules to make units of so that no unit has parameters of two stages of this rank, if others
    /// are the modules that match `units`.
    pub(crate) fn further_units(&self, units: &[String]) -> Vec<String> {
        let is_in = |name: &str, unit: &String| {
            let mut parts = unit.split('.').zip(name.split('.'));
            parts.all(|(pattern, part)| pattern == "*" || pattern == part)
        };
        let last = self.params.keys().next_back();
        let others = self.params.iter().filter(|(stage, _)| Some(*stage) != last);
        let params = others.flat_map(|(_, params)| params);
        let params = params.filter(|param| !units.iter().any(|unit| is_in(param.name(), unit)));
        params.map(|param| module(param.name()).to_owned()).collect()
    }

    /// The stages of this rank.
    pub(super) fn own_stages(&self) -> Vec<usize> {
        match &self.cut {
            Some(cut) => cut.placement().stages_of(cut.own).to_vec(),
            None => vec![0],
        }
    }

    /// Sums of this rank's stages, over all ranks and stages. All ranks make this call.
    pub(crate) fn reduced(&self, sums: &StepSums, device: &Device) -> Result<ReducedSums> {
        let own = sums.reduced(device)?;
        let Some(cut) = &self.cut else {
            return Ok(own);
        };
        own.over_stages(&self.statistics, self.own_stages(), |flat| {
            let stages = communicator(&cut.mesh, [&cut.axis])?;
            stages.all_reduce(flat, Reduction::Sum)?.wait()
        })
    }
}

/// The module of a parameter.
fn module(param: &str) -> &str {
    param.rsplit_once('.').map_or(param, |(module, _)| module)
}

/// The FLOPs of the forward pass of what is before the layers of a model, of each layer, and of what
/// follows them, as `rank` of `world` ranks, in the mesh of a stage. `model` is not changed.
///
/// # Errors
/// When the model cannot be cut; those of `batch` and of the passes.
pub(crate) fn flops<M: Model>(
    model: &M,
    rank: usize,
    world: usize,
    mesh: &Mesh,
    compute: Compute,
    batch: impl FnOnce(&Device) -> Result<M::Batch>,
) -> Result<Vec<u64>> {
    let sizes: Vec<usize> = (0..model.layers() + 2)
        .map(|piece| usize::from((1..=model.layers()).contains(&piece)))
        .collect();
    let stages = Stage::of_sizes(&sizes)?;
    on_meta(model, rank, world, mesh, |device| {
        let (batch, mut input, mut costs) = (batch(device)?, None, Vec::new());
        for stage in &stages {
            let before = device.work().flops;
            input = match model.forward(stage, input.take(), &batch, compute)? {
                Flow::Next { stream, .. } => Some(stream),
                Flow::Loss(_) => None,
            };
            costs.push(device.work().flops - before);
        }
        Ok(costs)
    })
}

/// Calls `body` as `rank` of `world` ranks and of `mesh` on a meta device, on which `model` has values
/// meanwhile. Ranks send nothing.
fn on_meta<M: Model, T>(
    model: &M,
    rank: usize,
    world: usize,
    mesh: &Mesh,
    body: impl FnOnce(&Device) -> Result<T>,
) -> Result<T> {
    let (values, mut result) = (Values::take(model), None);
    let traced = Plan::new(world)?.trace(rank, |rank| -> Result<()> {
        result = Some(Redistributor::new(rank).run_on(mesh, || {
            model.materialize(rank.device(), 0)?;
            body(rank.device())
        })?);
        Ok(())
    });
    values.restore();
    traced?;
    result.ok_or_else(no_batch)
}

impl<S> Boundary<S> {
    /// The values of the variables that have a gradient.
    pub(super) fn tracked(&self) -> impl Iterator<Item = &Tensor> {
        let values = self.values.iter().zip(&self.is_tracked);
        values.filter(|(_, is_tracked)| **is_tracked).map(|(value, _)| value)
    }
}

/// A stream whose tracked variables are inputs of the tape that records.
pub(super) fn as_input<S: Vars>(mut stream: S, is_tracked: &[bool]) -> S {
    let mut is_tracked = is_tracked.iter();
    stream.each_var(&mut |var| {
        let value = var.value().clone();
        *var = match is_tracked.next() {
            Some(true) => Var::input(value),
            _ => Var::constant(value),
        };
    });
    stream
}

/// This rank's part `tensor` with the sharding `of`, as `like` has it.
pub(super) fn placed(tensor: Tensor, of: Option<&Sharding>, like: &Tensor) -> Result<Tensor> {
    match (of, like.sharded_shape().rank()) {
        (Some(sharding), Some(rank)) => Ok(tensor.local().with_sharding(sharding, rank)?),
        _ => Ok(tensor),
    }
}
