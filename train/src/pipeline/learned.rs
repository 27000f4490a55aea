//! What flows between the stages of a pipeline, learnt from a pass without data.

use std::collections::BTreeMap;
use std::sync::Arc;

use meshgrad_autograd::{Param, Tape, Values, Var, Vars};
use meshgrad_collectives::{
    Collectives, Communicator, Rank, Redistributor, Reduction, communicator,
};
use meshgrad_comm::Plan;
use meshgrad_mesh::{Mesh, Sharding};
use meshgrad_models::{Compute, Flow, Model, Stage};
use meshgrad_pipeline::{Placement, Program};
use meshgrad_runtime::{Device, Shape, Tensor};

use super::cut::{Cut, evaluation};
use crate::Result;
use crate::sums::{ReducedSums, StepSums};

/// The stages of a model on this rank, and what flows between them.
#[derive(Clone)]
pub struct Pipeline<S> {
    /// `None` for the whole model on one rank.
    pub(super) cut: Option<Cut>,
    pub(super) stages: Vec<Stage>,
    /// By the stage before it.
    pub(super) boundaries: Arc<Vec<Boundary<S>>>,
    /// By stage. The parameters that it uses.
    pub(super) params: Vec<Vec<Param>>,
    /// By stage.
    statistics: Vec<Vec<Shape>>,
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
            params: vec![model.trained()],
            statistics: vec![Vec::new()],
            has_buffers: !model.buffers().is_empty(),
        }
    }

    /// The stages of `cut`. `model` is the whole model, to which its plan has been applied; it needs
    /// no values, and is not changed. A batch of the shapes of training is made by `batch`, on a meta
    /// device. The ranks of the pipeline send nothing.
    ///
    /// # Errors
    /// When the model cannot be cut; those of `batch` and of the passes.
    pub fn learn<M: Model<Stream = S>>(
        cut: &Cut,
        world_size: usize,
        model: &M,
        compute: Compute,
        batch: impl FnOnce(&Device) -> Result<M::Batch>,
    ) -> Result<Pipeline<S>> {
        let mut pipeline = Pipeline {
            cut: Some(cut.clone()),
            stages: cut.stages().to_vec(),
            boundaries: Arc::default(),
            params: Vec::new(),
            statistics: Vec::new(),
            has_buffers: !model.buffers().is_empty(),
        };
        let values = Values::take(model);
        let learned = Plan::new(world_size)?.trace(cut.rank, |rank| -> Result<()> {
            Redistributor::new(rank).run_on(&cut.stage_mesh()?, || {
                model.materialize(rank.device(), 0)?;
                pipeline.pass(model, &batch(rank.device())?, compute)
            })
        });
        values.restore();
        learned?;
        Ok(pipeline)
    }

    /// A pass through all stages.
    fn pass<M>(&mut self, model: &M, batch: &M::Batch, compute: Compute) -> Result<()>
    where
        M: Model<Stream = S>,
    {
        let (mut input, mut boundaries) = (None, Vec::new());
        for stage in &self.stages {
            let (flow, tape) = Tape::record(|| {
                let input = input
                    .take()
                    .map(|(stream, is_tracked): (S, Vec<bool>)| as_input(stream, &is_tracked));
                model.forward(stage, input, batch, compute)
            })?;
            let used = model.trained().into_iter().filter(|param| tape.uses(param));
            self.params.push(used.collect());
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
        self.boundaries = Arc::new(boundaries);
        Ok(())
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

    /// The modules of parameters that stages of several ranks use, and these ranks along the axis of
    /// the pipeline.
    pub(crate) fn tied(&self) -> Vec<(String, Vec<usize>)> {
        let Some(cut) = &self.cut else {
            return Vec::new();
        };
        let mut users: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (stage, params) in self.params.iter().enumerate() {
            for param in params {
                let ranks = users.entry(param.name()).or_default();
                let rank = cut.placement().rank_of(stage);
                if !ranks.contains(&rank) {
                    ranks.push(rank);
                }
            }
        }
        let tied = users.into_iter().filter(|(_, ranks)| ranks.len() > 1);
        let module =
            |name: &str| name.rsplit_once('.').map_or(name, |(module, _)| module).to_owned();
        tied.map(|(name, ranks)| (module(name), ranks)).collect()
    }

    /// All ranks of all stages; `None` for the whole model on one rank.
    pub(crate) fn ranks(&self) -> Result<Option<Arc<dyn Communicator>>> {
        let Some(Cut { mesh, .. }) = &self.cut else {
            return Ok(None);
        };
        let axes: Vec<&str> = mesh.axes().iter().map(|axis| axis.name()).collect();
        communicator(mesh, axes).map(Some)
    }

    /// The parameters of a stage of this rank.
    pub(crate) fn params(&self, stage: usize) -> &[Param] {
        &self.params[stage]
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

/// The FLOPs of the forward pass of what is before the layers of a model, of each layer, and of what
/// follows them, on this rank of the mesh of a stage. `model` is not changed.
///
/// # Errors
/// When the model cannot be cut; those of `batch` and of the passes.
pub(crate) fn flops<M: Model>(
    model: &M,
    (mesh, rank): (&Mesh, usize),
    compute: Compute,
    batch: impl FnOnce(&Device) -> Result<M::Batch>,
) -> Result<Vec<u64>> {
    let sizes: Vec<usize> = (0..model.layers() + 2)
        .map(|piece| usize::from((1..=model.layers()).contains(&piece)))
        .collect();
    let stages = Stage::of_sizes(&sizes)?;
    let values = Values::take(model);
    let mut costs = Vec::new();
    let world = mesh.ranks().into_iter().max().unwrap_or(0) + 1;
    let passed = Plan::new(world)?.trace(rank, |rank| -> Result<()> {
        Redistributor::new(rank).run_on(mesh, || {
            let device = rank.device();
            model.materialize(device, 0)?;
            let (batch, mut input) = (batch(device)?, None);
            for stage in &stages {
                let before = device.work().flops;
                input = match model.forward(stage, input.take(), &batch, compute)? {
                    Flow::Next { stream, .. } => Some(stream),
                    Flow::Loss(_) => None,
                };
                costs.push(device.work().flops - before);
            }
            Ok(())
        })
    });
    values.restore();
    passed.map(|_| costs)
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
