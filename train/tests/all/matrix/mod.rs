//! A model divided over ranks trains as the whole model on one rank. `cases.rs` has the table, which every
//! degree extends.

pub(crate) mod cases;
pub(crate) mod planted;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use meshgrad_autograd::Module;
use meshgrad_collectives::redistribute;
use meshgrad_comm::conformance::RewiredRank;
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_data_parallel::DataParallel;
use meshgrad_models::{Decoder, IGNORE_INDEX, Model, ModelParallelism, Stream, TokenBatch};
use meshgrad_pipeline::Action;
use meshgrad_runtime::{Device, Tensor};
use meshgrad_train::Result;
use meshgrad_train::events::Event;
use meshgrad_train::pipeline::{Cut, Pipeline};
use meshgrad_train::sleep::Kept;
use meshgrad_train::trainer::Trainer;

use cases::{CASES, Case, Extra, MICROBATCHES, drawn};
use planted::{Planted, PlantedConnector};

use crate::homes::step::{Outcome, Share, assembled, scalar, share};
use crate::small::{self, distance, norm};

const TOKENS: usize = 6;
const STEPS: u64 = 5;

/// What a rank ran in the first step: each action, with the passes that it kept then.
pub(crate) type Log = Vec<(Action, usize, usize)>;

/// A microbatch, of which a rank has its part.
pub(crate) fn batch(
    case: &Case,
    device: &Device,
    number: usize,
    on_ranks: bool,
) -> Result<TokenBatch> {
    let axes = case.batch_axes();
    let parts: usize = axes.clone().map(|(_, size)| size).product();
    // Over two axes, all ranks have equally many rows.
    let rows = 2 * parts - usize::from(axes.clone().count() < 2);
    let vocabulary = small::config(case.model).vocab_size;
    let id = |at: usize, by: usize| ((at * by + at * at + 5 + 3 * number) % vocabulary) as i64;
    let all = 0..rows * TOKENS;
    let ids: Vec<i64> = all.clone().map(|at| id(at, 11)).collect();
    let label = |at: usize| match at % TOKENS > 2 + (at / TOKENS + number) % 3 {
        true => IGNORE_INDEX,
        false => id(at, 17),
    };
    let labels: Vec<i64> = all.map(label).collect();
    let own = |values: &[i64]| {
        own_part(case, &Tensor::from_slice(device, &[rows, TOKENS], values)?, on_ranks)
    };
    let mut batch = TokenBatch::new(&own(&ids)?, &own(&labels)?);
    if case.documents {
        // The second document of a row starts where the first ends.
        let first = |at: usize| 1 + (at / TOKENS + number) % 4;
        let all = || (0..rows * TOKENS).map(|at| (at % TOKENS, first(at)));
        let document = |(at, first)| i64::from(at >= first);
        let position = |(at, first)| (if at < first { at } else { at - first }) as i64;
        batch.documents = Some(own(&all().map(document).collect::<Vec<i64>>())?);
        batch.positions = Some(own(&all().map(position).collect::<Vec<i64>>())?);
    }
    Ok(batch)
}

fn own_part(case: &Case, of_all: &Tensor, on_ranks: bool) -> Result<Tensor> {
    let placements = if on_ranks { case.of_batch() } else { Vec::new() };
    redistribute(&of_all.as_replicated()?, placements)
}

/// The experts that one rank chose in each sparse layer, for each microbatch, if a case replays them.
pub(crate) type Choices = BTreeMap<usize, Vec<Vec<i32>>>;

/// [`batch`] with the experts that one rank chose.
fn replaying(
    case: &Case,
    choices: &Choices,
    device: &Device,
    number: usize,
    on_ranks: bool,
) -> Result<TokenBatch> {
    let mut batch = batch(case, device, number, on_ranks)?;
    if let Some(layers) = choices.get(&number) {
        let k = small::config(case.model).num_experts_per_tok;
        let of_layer = |experts: &Vec<i32>| {
            let shape = [experts.len() / (TOKENS * k), TOKENS, k];
            own_part(case, &Tensor::from_slice(device, &shape, experts)?, on_ranks)
        };
        batch.experts = Some(layers.iter().map(of_layer).collect::<Result<_>>()?);
    }
    Ok(batch)
}

/// Adds what the model chooses for microbatches to `choices`.
fn record(
    case: &Case,
    device: &Device,
    model: &Decoder,
    numbers: Range<usize>,
    choices: &mut Choices,
) -> Result<()> {
    for number in numbers.filter(|_| case.replays()) {
        let batch = batch(case, device, number, false)?;
        let routings = model.route(&batch, small::compute(false, false))?;
        let chosen = routings.iter().map(|routing| routing.experts_nk.to_vec());
        choices.insert(number, chosen.collect::<Result<_>>()?);
    }
    Ok(())
}

/// Which microbatches a rank trains with.
enum Source<'a> {
    /// All rows. Adds what is chosen.
    OneRank(&'a mut Choices),
    /// Its own rows, with what was chosen.
    Ranks(&'a Choices),
}

impl Source<'_> {
    fn batches(
        &mut self,
        case: &Case,
        device: &Device,
        model: &Decoder,
        numbers: Range<usize>,
    ) -> Result<Vec<TokenBatch>> {
        let (choices, on_ranks) = match self {
            Source::OneRank(choices) => {
                record(case, device, model, numbers.clone(), choices)?;
                (&**choices, false)
            }
            Source::Ranks(choices) => (*choices, true),
        };
        numbers.map(|number| replaying(case, choices, device, number, on_ranks)).collect()
    }
}

/// Trains, with the microbatches of a step in the order `order`.
fn train(
    case: &Case,
    mut trainer: Trainer<Decoder>,
    device: &Device,
    order: &[usize],
    mut source: Source<'_>,
) -> Result<(Vec<Share>, Log)> {
    let kept: Arc<Mutex<(Vec<Share>, Log)>> = Arc::default();
    let keep = kept.clone();
    trainer.events.subscribe("first step", move |event| {
        let (gradients_kept, log) = &mut *keep.lock().unwrap();
        match event {
            Event::ForwardBackwardFinished { step: 1, gradients, .. } => {
                for (param, gradient) in gradients {
                    let name = format!("gradient of {}", param.name());
                    gradients_kept.push(share(name, param, gradient)?);
                }
            }
            Event::ActionFinished { step: 1, action, live, pending, .. } => {
                log.push((action, live, pending));
            }
            _ => (),
        }
        Ok(())
    });
    let mut shares = Vec::new();
    let number =
        |name: String, value: f64| scalar(name, &Tensor::scalar(&Device::cpu(), value as f32)?);
    for step in 1..=STEPS {
        let first = step as usize * MICROBATCHES;
        let batches = source.batches(case, device, &trainer.model, first..first + MICROBATCHES)?;
        let batches = order.iter().map(|at| Ok(batches[*at].clone()));
        let done = trainer.step(step, batches)?.wait(&trainer.model)?;
        shares.push(number(format!("loss {step}"), done.loss)?);
        shares.push(number(format!("norm {step}"), done.grad_norm)?);
        for (at, load) in done.expert_shares.iter().enumerate() {
            shares.push(number(format!("share {step} {at}"), *load)?);
        }
        if case.extra == Extra::Naps {
            trainer.sleep(&Kept::ALL)?;
            trainer.wake(&Kept::ALL)?;
        }
    }
    let batches = source.batches(case, device, &trainer.model, 0..3)?.into_iter().map(Ok);
    shares.push(number("validation".to_owned(), trainer.validate(STEPS, batches)?)?);
    for param in trainer.model.params() {
        shares.push(share(param.name().to_owned(), &param, &param.kept_value()?)?);
    }
    for buffer in trainer.model.buffers() {
        let values = buffer.value()?.local().to_vec::<f32>()?;
        for (at, value) in values.into_iter().enumerate() {
            shares.push(number(format!("{} {at}", buffer.name()), f64::from(value))?);
        }
    }
    let (gradients, log) = &mut *kept.lock().unwrap();
    shares.append(gradients);
    Ok((shares, std::mem::take(log)))
}

pub(crate) fn on_one_rank(case: &Case) -> (Outcome, Choices) {
    let mut choices = Choices::new();
    let device = Device::cpu();
    let model = case.model().unwrap();
    model.materialize(&device, 5).unwrap();
    let trainer = Trainer::new(model, &case.config(), &device).unwrap();
    let order = case.order().unwrap_or_else(|| (0..MICROBATCHES).collect());
    let source = Source::OneRank(&mut choices);
    let (shares, _) = train(case, trainer, &device, &order, source).unwrap();
    (assembled(&[shares]).unwrap(), choices)
}

/// The trainer of a rank's stages.
pub(crate) fn divided(case: &Case, rank: &dyn Rank, cut: &Cut) -> Result<Trainer<Decoder>> {
    let (part, pipeline) = own_stages(case, rank, cut)?;
    Trainer::of(part).pipeline(pipeline).build(&case.config(), rank.device())
}

/// A rank's stages, and what flows between all.
pub(crate) fn own_stages(
    case: &Case,
    rank: &dyn Rank,
    cut: &Cut,
) -> Result<(Decoder, Pipeline<Stream>)> {
    let stage_mesh = cut.stage_mesh()?;
    let model = case.model()?;
    let mut parallelism = ModelParallelism::new(&stage_mesh)
        .tensor(case.axis("tp"))?
        .context(case.axis("cp"))?
        .ulysses(case.axis("sp"))?
        .ring(case.ring)
        .sequence_parallel(true)
        .loss_parallel(true);
    let stage = case.mesh().local_rank("pp", rank.rank())?.unwrap();
    let experts = case.mesh_of_experts(stage);
    if let Some(mesh) = &experts {
        let axes = ["ep", "etp"].map(|axis| case.expert_axes(axis));
        parallelism = parallelism.experts(mesh, &axes[0], &axes[1])?;
    }
    model.plan(&parallelism)?.apply(&model, rank.rank())?;
    let compute = small::compute(false, case.checkpointing);
    let batch = |meta: &Device| batch(case, meta, 0, true);
    let pipeline = Pipeline::learn(cut, rank, &model, compute, batch)?;
    let model = model.part(&cut.own_stages())?;
    let strategy = case.strategy();
    let mut parallel = DataParallel::of_stage(rank, &case.mesh(), "pp", strategy.clone())?;
    if !case.tied().is_empty() {
        parallel = parallel.tied("model.embed_tokens", strategy.clone(), &case.tied());
    }
    if let Some(mesh) = &experts {
        parallel = parallel.mesh(mesh, case.expert_axes("rows"), case.expert_axes("copies"));
    }
    parallel.apply(&model)?;
    model.materialize(rank.device(), 5)?;
    Ok((model, pipeline))
}

pub(crate) fn on_ranks(
    case: &Case,
    choices: &Choices,
    fault: Planted,
) -> std::result::Result<Outcome, String> {
    let local = Local::new(case.mesh().len()).threads(1);
    on(case, choices, fault, local).map(|(outcome, _)| outcome)
}

/// What the ranks have together, and what each ran.
pub(crate) fn on(
    case: &Case,
    choices: &Choices,
    fault: Planted,
    local: Local,
) -> std::result::Result<(Outcome, Vec<Log>), String> {
    let all = case.mesh();
    let ran = local.launch(|rank| {
        let experts = small::config(case.model).num_experts;
        let connector = PlantedConnector { fault, experts, connector: rank.connector() };
        let faulty = RewiredRank::new(rank, Arc::new(connector));
        let cut = Cut::new(&all, "pp", rank.rank(), case.schedule, case.sizes)?;
        Redistributor::new(&faulty).run_on(&cut.stage_mesh()?, || {
            let trainer = divided(case, &faulty, &cut)?;
            // The last stage reads the labels.
            let is_last = cut.own_stages().iter().any(|stage| stage.is_last);
            let swaps = usize::from(is_last && fault == Planted::OtherMicrobatch);
            let order: Vec<usize> = (0..MICROBATCHES).map(|at| at ^ swaps).collect();
            train(case, trainer, rank.device(), &order, Source::Ranks(choices))
        })
    });
    let (shares, logs): (Vec<_>, Vec<_>) =
        ran.map_err(|error| error.to_string())?.into_iter().unzip();
    Ok((assembled(&shares)?, logs))
}

/// What differs from one rank, and by how much.
fn differences(case: &Case, one: &Outcome, ranks: &Outcome) -> Vec<String> {
    assert_eq!(one.keys().collect::<Vec<_>>(), ranks.keys().collect::<Vec<_>>());
    let differs = |(name, ranks): (&String, &Vec<f32>)| {
        let difference = distance(ranks, &one[name]);
        let allowed = 5e-5 * norm(&one[name]) + 2e-6;
        let is_exact = case.is_exact() && name.starts_with("gradient of");
        let is_near = difference <= if is_exact { 0.0 } else { allowed };
        (!is_near).then(|| format!("{name}: {difference:.1e} of {:.1e}", norm(&one[name])))
    };
    ranks.iter().filter_map(differs).collect()
}

#[test]
fn any_division_trains_as_the_whole_model() {
    for case in CASES.into_iter().chain(drawn(24)) {
        let (one, choices) = on_one_rank(&case);
        let ranks = on_ranks(&case, &choices, Planted::Nothing)
            .unwrap_or_else(|error| panic!("{}: {error}", case.title()));
        assert_eq!(differences(&case, &one, &ranks), [""; 0], "{}", case.title());
    }
}

/// Each fault is found in each case that it can change.
#[test]
fn planted_faults_are_found() {
    for case in &CASES {
        let (one, choices) = on_one_rank(case);
        for fault in Planted::FAULTS {
            // In a V, one rank has both ends, so it has the labels of its inputs in any order.
            let applies = match fault {
                Planted::OtherMicrobatch => !case.is_v(),
                Planted::TiedTwice => !case.tied().is_empty(),
                Planted::OwnCounts => case.counts_tokens(),
                _ => true,
            };
            if !applies {
                continue;
            }
            let found = on_ranks(case, &choices, fault);
            let found =
                found.is_err() || found.is_ok_and(|it| !differences(case, &one, &it).is_empty());
            assert!(found, "{}: {fault:?}", case.title());
        }
    }
}
