//! How a model and its batches are divided over ranks, as `[parallel]` says.

use std::path::Path;

use meshgrad_ckpt::io_error;
use meshgrad_comm::Rank;
use meshgrad_data_parallel::{DataParallel, Reshard, Strategy};
use meshgrad_dist::parallel::ParallelState;
use meshgrad_mesh::{Mesh, Placement, Sharding, Size};
use meshgrad_models::{Model, ModelParallelism, ModelPlan, TokenBatch};
use meshgrad_pipeline::{Auto, Schedule, Shape};
use meshgrad_runtime::{DType, Device, Kind as TensorKind, Tensor};

use super::BatchPart;
use crate::config::{
    Algorithm, AttentionChoice, Balance, Config, HomeChoice, ParallelTable, PipelineTable,
    ScheduleChoice, SumOrder, TrainConfig, Violation, Violations,
};
use crate::pipeline::{Cut, PassOrder, Pipeline, balanced, costs, flops};
use crate::{Error, Kind, Result, configured};

/// The domain whose mesh the model computes on.
const DOMAIN: &str = "regular";

/// The mesh of a run, and what its axes are for.
#[derive(Clone)]
pub(super) struct Division {
    table: ParallelTable,
    train: TrainConfig,
    pipeline: PipelineTable,
    /// Axes of one rank are left out.
    whole: Mesh,
    /// Where this rank's stages compute: `whole` without the axis of the pipeline.
    mesh: Mesh,
    /// The axis of the pipeline.
    stages: Option<String>,
    /// The axes whose ranks have different sequences.
    batch: Vec<String>,
    /// The axes whose ranks share one copy of the parameters.
    shard: Vec<String>,
    /// The axes whose ranks have different tokens and copies of the parameters.
    replicate: Vec<String>,
    /// The axes whose ranks have different tokens of the same sequences, by head and tail.
    context: Vec<String>,
    /// As `context`, in order, and within it.
    ulysses: Vec<String>,
    /// The axes of tensor parallelism.
    tensor: Vec<String>,
    experts: Option<ExpertAxes>,
    rank: usize,
    /// Whether the optimizer updates whole matrices.
    whole_matrices: bool,
}

/// The mesh of experts, and what its axes are for.
#[derive(Clone)]
struct ExpertAxes {
    mesh: Mesh,
    /// The axes whose ranks have different experts.
    experts: Vec<String>,
    /// The axes whose ranks have different inner features of the same experts.
    features: Vec<String>,
    /// The axes whose ranks share one copy of the parameters.
    shard: Vec<String>,
    /// The axes whose ranks have copies.
    replicate: Vec<String>,
}

/// How a model computes on the tokens of a sequence.
#[derive(Clone, Copy, PartialEq)]
enum Tokens {
    /// As configured.
    Sharded,
    /// Each rank has all, such as the one new token of a model that decodes.
    Whole,
}

impl Division {
    /// The division over the ranks of `state`.
    pub(super) fn new(state: &ParallelState, config: &Config, rank: usize) -> Result<Division> {
        let axes = |group| -> Result<Vec<String>> {
            let axes = state.axes(DOMAIN, group)?.into_iter();
            Ok(axes.map(str::to_owned).collect())
        };
        let (shard, mut replicate) = (axes("fsdp")?, axes("loss")?);
        replicate.retain(|axis| !shard.contains(axis));
        let whole = state.mesh(DOMAIN)?.select(axes("world")?)?;
        let stages = axes("pp")?.pop();
        let mesh = match &stages {
            Some(axis) => whole.at(axis, whole.local_rank(axis, rank)?.unwrap_or_default())?,
            None => whole.clone(),
        };
        let is_muon = matches!(config.optimizer.algorithm, Algorithm::Muon(_));
        let mut division = Division {
            table: config.parallel.clone(),
            train: config.train.clone(),
            pipeline: config.pipeline.clone(),
            whole,
            mesh,
            stages,
            batch: axes("dp")?,
            shard,
            replicate,
            context: axes("cp")?,
            ulysses: axes("sp")?,
            tensor: axes("tp")?,
            experts: None,
            rank,
            whole_matrices: config.parallel.whole_matrices || is_muon,
        };
        division.experts = division.expert_axes(state)?;
        if is_muon && !division.tensor.is_empty() {
            let problem = "muon updates whole matrices, which parallel.tp divides; use another \
                           optimizer, or parallel.tp = 1";
            return Err(violation("optimizer.name", problem.to_owned()));
        }
        if is_muon && division.experts.as_ref().is_some_and(|axes| !axes.features.is_empty()) {
            let problem = "muon updates whole matrices, which parallel.etp divides; use another \
                           optimizer, or parallel.etp = 1";
            return Err(violation("optimizer.name", problem.to_owned()));
        }
        division.check_batch(config.train.micro_batch_size)?;
        division.check_sequences(config.train.seq_len)?;
        if config.train.reduction == SumOrder::Tree {
            division.check_tree(config.train.batch_size)?;
        }
        if division.stages.is_some() {
            division.check_pipeline()?;
        }
        Ok(division)
    }

    /// The mesh of experts on this rank's stage, if they are on one of their own. FSDP divides them over
    /// the ranks that are left of those that it divides other parameters over.
    fn expert_axes(&self, state: &ParallelState) -> Result<Option<ExpertAxes>> {
        let mut mesh = state.mesh("expert")?.clone();
        if let Some(axis) = &self.stages {
            mesh = mesh.at(axis, mesh.local_rank(axis, self.rank)?.unwrap_or_default())?;
        }
        let divided = mesh.size("ep_shard")? * mesh.size("etp")?;
        if divided == 1 {
            return Ok(None);
        }
        let copies: usize = self
            .replicate
            .iter()
            .map(|axis| self.mesh.size(axis))
            .product::<meshgrad_mesh::Result<_>>()?;
        let inside = self.mesh.len() / copies;
        let shards = match self.shard.is_empty() {
            true => 1,
            false => inside / gcd(inside, divided),
        };
        let parts = [("ep_replicate", Size::Auto), ("ep_fsdp", Size::Ranks(shards))];
        let mesh = mesh.split("ep_replicate", &parts)?;
        let axes = mesh.axes().iter().filter(|axis| axis.size() > 1).map(|axis| axis.name());
        let mesh = mesh.select(axes.collect::<Vec<_>>())?;
        let named = |name: &str| -> Vec<String> {
            let axes = mesh.axes().iter().filter(|axis| axis.name() == name);
            axes.map(|axis| axis.name().to_owned()).collect()
        };
        Ok(Some(ExpertAxes {
            experts: named("ep_shard"),
            features: named("etp"),
            shard: named("ep_fsdp"),
            replicate: named("ep_replicate"),
            mesh,
        }))
    }

    pub(super) fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The axes with their sizes, and what is sharded over them.
    pub(super) fn title(&self) -> String {
        let axes = self.whole.axes().iter().map(|axis| match axis.name() {
            name if self.shard.iter().any(|shard| shard == name) => {
                format!("{} {name} ({})", axis.size(), self.table.home.name())
            }
            name if self.stages.as_deref() == Some(name) => {
                format!("{} {name} ({})", axis.size(), self.pipeline.schedule)
            }
            name => format!("{} {name}", axis.size()),
        });
        let all = axes.collect::<Vec<_>>().join(" x ");
        let Some(ExpertAxes { mesh, .. }) = &self.experts else {
            return all;
        };
        let axes = mesh.axes().iter().map(|axis| format!("{} {}", axis.size(), axis.name()));
        format!("{all}, experts {}", axes.collect::<Vec<_>>().join(" x "))
    }

    /// The number of parts that a batch is divided into.
    pub(super) fn batch_parts(&self) -> usize {
        self.ranks_along(&self.batch)
    }

    /// The number of ranks that divide each sequence by head and tail.
    pub(super) fn context_ranks(&self) -> usize {
        self.ranks_along(&self.context)
    }

    /// The number of sequences to pad a batch of `rows` to, so that each rank gets one; over two axes,
    /// equally many. Stages send each other batches of one shape.
    pub(super) fn padded(&self, rows: usize) -> usize {
        let parts = self.batch_parts();
        let rows = match self.stages {
            Some(_) => rows.max(self.train.rows_of_pass(parts)),
            None => rows,
        };
        match rows < parts || self.batch.len() > 1 {
            true => rows.next_multiple_of(parts),
            false => rows,
        }
    }

    /// Checks that no sequences must be added to the batches of a step.
    fn check_batch(&self, rows: usize) -> Result<()> {
        let parts = self.batch_parts();
        if self.padded(rows) == rows {
            return Ok(());
        }
        let problem = format!(
            "{rows} sequences cannot be divided among {parts} data-parallel ranks ({}); use {}",
            self.batch.join(" x "),
            self.padded(rows)
        );
        Err(violation("train.micro_batch_size", problem))
    }

    /// Checks that all ranks get equally many tokens of a sequence, and of its head and its tail.
    fn check_sequences(&self, seq_len: usize) -> Result<()> {
        if !self.divides_sequences() {
            return Ok(());
        }
        let tensor = if self.table.sequence_parallel { &self.tensor[..] } else { &[] };
        let [context, ulysses, tensor] =
            [&self.context[..], &self.ulysses, tensor].map(|axes| self.ranks_along(axes));
        let halves = if context > 1 { 2 } else { 1 };
        let parts = halves * context * ulysses * tensor;
        if seq_len.is_multiple_of(parts) {
            return Ok(());
        }
        let below = seq_len / parts * parts;
        let below = if below > 0 { format!("{below} or ") } else { String::new() };
        let problem = format!(
            "{seq_len} tokens cannot be divided into {parts} equal parts ({halves} x cp {context} x sp \
             {ulysses} x tp {tensor}); use {below}{}",
            seq_len.next_multiple_of(parts)
        );
        Err(violation("train.seq_len", problem))
    }

    /// Whether the batch gives ranks different tokens of a sequence.
    fn divides_sequences(&self) -> bool {
        !self.context.is_empty() || !self.ulysses.is_empty()
    }

    fn ranks_along(&self, axes: &[String]) -> usize {
        axes.iter().map(|axis| self.mesh.size(axis).unwrap_or(1)).product()
    }

    /// Checks that the sequences of a step can be summed in a tree.
    fn check_tree(&self, batch_size: usize) -> Result<()> {
        let parts = self.batch_parts();
        let problem = match () {
            () if !self.tensor.is_empty() => "does not support parallel.tp".to_owned(),
            () if self.divides_sequences() => {
                "does not support parallel.cp_shard, cp_replicate and sp, whose ranks have parts of a \
                 sequence"
                    .to_owned()
            }
            () if self.experts.is_some() => "does not support parallel.ep and etp".to_owned(),
            () if !parts.is_power_of_two() => {
                format!("needs a power of two of data-parallel ranks, not {parts}")
            }
            () if !batch_size.is_multiple_of(parts) => format!(
                "needs a train.batch_size that is a multiple of the {parts} data-parallel ranks, not \
                 {batch_size}"
            ),
            () => return Ok(()),
        };
        let problem = format!("\"tree\" {problem}; change it, or use \"sum\"");
        Err(violation("train.reduction", problem))
    }

    /// Checks that the schedule can run the stages and the microbatches of a step.
    fn check_pipeline(&self) -> Result<()> {
        let choice = self.pipeline.choice()?;
        let order: PassOrder = match &choice {
            ScheduleChoice::Named(named) => (*named).into(),
            ScheduleChoice::File(path) => read_schedule(path)?.into(),
            ScheduleChoice::Auto => return self.shape(self.stage_count(&choice)).map(drop),
        };
        let stages = match &order {
            PassOrder::Of(schedule) => schedule.placement().stages(),
            PassOrder::Named(_) => self.stage_count(&choice),
        };
        let schedule = order.schedule(self.shape(stages)?);
        schedule.map_err(|error| violation("pipeline.schedule", error.to_string())).map(drop)
    }

    /// The shape of a step of the pipeline.
    fn shape(&self, stages: usize) -> Result<Shape> {
        let ranks = self.whole.len() / self.mesh.len();
        let microbatches = self.train.batch_size / self.train.rows_of_pass(self.batch_parts());
        let key = match self.pipeline.split.is_empty() {
            true => "pipeline.stages_per_rank",
            false => "pipeline.split",
        };
        let shape = Shape::new(ranks, stages, microbatches);
        shape.map_err(|error| violation(key, error.to_string()))
    }

    /// The stages of all ranks of the pipeline.
    fn stage_count(&self, schedule: &ScheduleChoice) -> usize {
        match self.pipeline.split.len() {
            0 => self.pipeline.stages_of_rank(schedule) * self.whole.len() / self.mesh.len(),
            stages => stages,
        }
    }

    pub(super) fn part_of_batch(&self, rows: usize, seq_len: usize) -> Result<BatchPart> {
        if self.whole.len() == 1 {
            return Ok(BatchPart::whole(rows, seq_len));
        }
        let parts = self.batch_parts();
        let rows_of = |part: usize| rows / parts + usize::from(part < rows % parts);
        let mut placements: Vec<_> = match &self.batch[..] {
            [axis] if !rows.is_multiple_of(parts) => {
                let sizes: Vec<usize> = (0..parts).map(rows_of).collect();
                vec![(axis.clone(), Placement::ragged(0, sizes))]
            }
            axes => axes.iter().map(|axis| (axis.clone(), Placement::shard(0))).collect(),
        };
        placements.extend(self.parallelism(Tokens::Sharded)?.of_tokens());
        let sharding = Sharding::new(&self.mesh, placements, &[rows, seq_len])?;
        Ok(BatchPart::of(sharding, self.rank))
    }

    fn parallelism(&self, tokens: Tokens) -> Result<ModelParallelism> {
        let mut parallelism = ModelParallelism::new(&self.mesh).tensor(&self.tensor)?;
        if tokens == Tokens::Sharded {
            let ring = self.table.attention == AttentionChoice::Ring;
            parallelism = parallelism
                .sequence_parallel(self.table.sequence_parallel)
                .context(&self.context)?
                .ulysses(&self.ulysses)?
                .ring(ring);
        }
        let parallelism = parallelism
            .loss_parallel(self.table.loss_parallel)
            .shard_experts(self.table.shard_experts)
            .overlap_chunks(self.table.overlap_chunks);
        Ok(match &self.experts {
            Some(axes) => parallelism.experts(&axes.mesh, &axes.experts, &axes.features)?,
            None => parallelism,
        })
    }

    fn plan(&self, model: &impl Model, tokens: Tokens) -> Result<ModelPlan> {
        model.plan(&self.parallelism(tokens)?)
    }

    /// Calls `body` while sequences are whole: a model that decodes has one new token.
    pub(super) fn with_whole_sequences<T>(
        &self,
        model: &impl Model,
        body: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let shards_tokens = self.table.sequence_parallel || self.divides_sequences();
        if !shards_tokens || self.whole.len() == 1 {
            return body();
        }
        let [whole, sharded] = [Tokens::Whole, Tokens::Sharded].map(|it| self.plan(model, it));
        let (whole, sharded) = (whole?, sharded?);
        whole.apply_to_seams(model);
        let result = body();
        sharded.apply_to_seams(model);
        result
    }

    /// Gives the parameters of `model` their shardings and homes. With a pipeline, returns the part of
    /// this rank's stages.
    pub(super) fn divide<M>(
        &self,
        model: &M,
        rank: &dyn Rank,
    ) -> Result<Option<(M, Pipeline<M::Stream>)>>
    where
        M: Model<Batch = TokenBatch>,
    {
        if self.whole.len() == 1 {
            return Ok(None);
        }
        self.plan(model, Tokens::Sharded)?.apply(model, self.rank)?;
        let strategy = self.strategy();
        let Some(axis) = &self.stages else {
            let parallel = DataParallel::new(rank, &self.mesh, strategy);
            return self.give_homes(parallel, model, model).map(|()| None);
        };
        let cut = self.cut(model, rank, axis)?;
        let compute = configured::compute(&self.train);
        let batch = |meta: &Device| self.batch_of_zeros(meta);
        let pipeline = Pipeline::learn(&cut, rank, model, compute, batch)?;
        let part = model.part(&cut.own_stages())?;
        let mut parallel = DataParallel::of_stage(rank, &self.whole, axis, strategy.clone())?;
        for (module, ranks) in pipeline.tied.iter().filter(|(_, ranks)| ranks.len() > 1) {
            parallel = parallel.tied(module, strategy.clone(), ranks);
        }
        if self.train.reduction == SumOrder::Tree {
            // The gradients of a stage are taken when those of another are in the middle of a pass.
            for module in pipeline.further_units(&model.units()) {
                parallel = parallel.unit(&module, strategy.clone());
            }
        }
        self.give_homes(parallel, &part, model)?;
        Ok(Some((part, pipeline)))
    }

    /// The stages of `model` along `axis`.
    fn cut<M>(&self, model: &M, rank: &dyn Rank, axis: &str) -> Result<Cut>
    where
        M: Model<Batch = TokenBatch>,
    {
        let (choice, layers) = (self.pipeline.choice()?, model.layers());
        let of_file = match &choice {
            ScheduleChoice::File(path) => Some(read_schedule(path)?),
            _ => None,
        };
        let stages = of_file.as_ref().map(|schedule| schedule.placement().stages());
        let stages = stages.unwrap_or_else(|| self.stage_count(&choice));
        let flops = || self.flops(model, rank.world_size());
        let sizes = match (&self.pipeline.split[..], self.pipeline.balance) {
            ([], Balance::Flops) => balanced(&flops()?, stages),
            ([], Balance::Layers) => balanced(&[&[0], &vec![1; layers][..], &[0]].concat(), stages),
            (split, _) => split.to_vec(),
        };
        if sizes.iter().sum::<usize>() != layers {
            let problem = format!(
                "{sizes:?} are not the {layers} layers of the model; give each of the stages its layers, \
                 or leave it empty"
            );
            return Err(violation("pipeline.split", problem));
        }
        let order: PassOrder = match (choice, of_file) {
            (ScheduleChoice::Named(named), _) => named.into(),
            (_, Some(schedule)) => schedule.into(),
            (_, None) => {
                let costs = costs(&flops()?, &sizes);
                Auto::search(self.shape(stages)?, &costs, None)?.schedule.into()
            }
        };
        let cut = Cut::new(&self.whole, axis, self.rank, order, &sizes);
        cut.map_err(|error| violation("pipeline.schedule", error.to_string()))
    }

    /// The FLOPs of the ends and the layers of `model` on the first rank of this rank's stage. Ranks may have
    /// uneven shards, and must agree on the stages.
    fn flops<M>(&self, model: &M, world: usize) -> Result<Vec<u64>>
    where
        M: Model<Batch = TokenBatch>,
    {
        let first = Division { rank: self.mesh.ranks()[0], ..self.clone() };
        let plan = self.plan(model, Tokens::Sharded)?;
        plan.apply(model, first.rank)?; // its shards, for a while
        let compute = configured::compute(&self.train);
        let batch = |meta: &Device| first.batch_of_zeros(meta);
        let flops = flops(model, first.rank, world, &self.mesh, compute, batch);
        plan.apply(model, self.rank)?;
        flops
    }

    /// Gives homes to the parameters of `part`, of which a pass of `model` shows how their gradients
    /// are sums.
    fn give_homes<M>(&self, parallel: DataParallel, part: &M, model: &M) -> Result<()>
    where
        M: Model<Batch = TokenBatch>,
    {
        let mut parallel = parallel.prefetch(self.table.prefetch);
        if let Some(ExpertAxes { mesh, shard, replicate, .. }) = &self.experts {
            parallel = parallel.mesh(mesh, shard, replicate);
        }
        for unit in model.units() {
            parallel = parallel.unit(&unit, self.strategy());
        }
        let pass = |meta: &Device| {
            if self.stages.is_some() {
                model.materialize(meta, 0)?; // also what `part` lacks
            }
            let batch = self.batch_of_zeros(meta)?;
            let loss = model.loss(&batch, configured::compute(&self.train))?;
            Ok(loss.total)
        };
        match parallel.apply_for(part, pass) {
            // A model that reads values does not run on a meta device.
            Err(error) if error.kind() == Kind::NoValues => parallel.apply(part),
            applied => applied,
        }
    }

    /// This rank's part of a batch.
    fn batch_of_zeros(&self, device: &Device) -> Result<TokenBatch> {
        let (rows, seq_len) = (self.train.rows_of_pass(self.batch_parts()), self.train.seq_len);
        let part = self.part_of_batch(rows, seq_len)?;
        let zeros =
            part.tensor(Tensor::zeros(device, &part.shape(), DType::I64, TensorKind::Value)?)?;
        Ok(TokenBatch::new(&zeros, &zeros))
    }

    /// The strategy of all units.
    fn strategy(&self) -> Strategy {
        let (shard, replicate) = (&self.shard, &self.replicate);
        let strategy = match (shard.is_empty(), self.table.home) {
            (true, _) => Strategy::replicate(replicate),
            (false, HomeChoice::Zero1) => {
                Strategy::hsdp(shard, replicate).reshard(Reshard::AfterStep).reduce_each_pass(false)
            }
            (false, HomeChoice::Fsdp) if self.stages.is_some() && !self.pipeline.reshard => {
                Strategy::hsdp(shard, replicate).reshard(Reshard::AfterStep)
            }
            (false, HomeChoice::Fsdp) if self.table.reshard_after_forward => {
                Strategy::hsdp(shard, replicate)
            }
            (false, HomeChoice::Fsdp) => {
                Strategy::hsdp(shard, replicate).reshard(Reshard::AfterBackward)
            }
        };
        match self.whole_matrices {
            true => strategy.whole_matrices(),
            false => strategy,
        }
    }
}

/// The greatest common divisor (Euclid).
fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

/// A schedule in torch's CSV format.
fn read_schedule(path: &Path) -> Result<Schedule> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|cause| io_error("read the schedule", path, cause))?;
    let schedule = Schedule::from_csv(&text);
    schedule.map_err(|error| violation("pipeline.schedule", format!("{}: {error}", path.display())))
}

fn violation(key: &str, problem: String) -> Error {
    let key = key.to_owned();
    let violations = Violations(vec![Violation { key, problem }]);
    Error::with_details(Kind::Invalid, violations)
}
