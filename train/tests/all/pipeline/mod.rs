//! Stages on the ranks of a pipeline train as the whole model on one rank.

mod planted;

use std::sync::{Arc, Mutex};

use meshgrad_autograd::Module;
use meshgrad_collectives::redistribute;
use meshgrad_comm::conformance::RewiredRank;
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_data_parallel::{DataParallel, Strategy};
use meshgrad_mesh::Placement;
use meshgrad_models::{IGNORE_INDEX, Model, ModelParallelism, Qwen3, TokenBatch};
use meshgrad_pipeline::Named;
use meshgrad_runtime::{Device, Tensor};
use meshgrad_train::Result;
use meshgrad_train::config::{Config, NoTables};
use meshgrad_train::events::Event;
use meshgrad_train::pipeline::{Cut, Pipeline};
use meshgrad_train::trainer::Trainer;

use planted::{Planted, PlantedConnector};

use crate::homes::step::{Outcome, Share, assembled, scalar, share};
use crate::small::{
    self, ALL_EXPERTS, Axes, BALANCING, DENSE, EXPERTS, TIED, distance, mesh, norm,
};

const TOKENS: usize = 6;
const MICROBATCHES: usize = 8;
const STEPS: u64 = 5;

/// A model in stages. Axis `pp` has the stages, `tp` divides matrices, and all others the batch.
struct Case {
    model: &'static str,
    mesh: Axes,
    schedule: Named,
    /// The layers of each stage.
    sizes: &'static [usize],
    strategy: fn() -> Strategy,
    /// The ranks of the pipeline that have copies of a tied table.
    tied: &'static [usize],
    checkpointing: bool,
    /// Whether the first gradients have the bits of one rank.
    exact: bool,
}

impl Case {
    const fn new(
        model: &'static str,
        mesh: Axes,
        schedule: Named,
        sizes: &'static [usize],
    ) -> Case {
        let strategy = || Strategy::replicate::<&str>([]);
        Case {
            model,
            mesh,
            schedule,
            sizes,
            strategy,
            tied: &[],
            checkpointing: false,
            exact: false,
        }
    }

    const fn tied(self, tied: &'static [usize]) -> Case {
        Case { tied, ..self }
    }

    const fn strategy(self, strategy: fn() -> Strategy) -> Case {
        Case { strategy, ..self }
    }

    const fn exact(self) -> Case {
        Case { exact: true, ..self }
    }

    const fn checkpointed(self) -> Case {
        Case { checkpointing: true, ..self }
    }

    fn title(&self) -> String {
        let name = self.model.lines().nth(1).unwrap_or_default().trim();
        format!("{name} {:?} {} {:?}", self.mesh, self.schedule, self.sizes)
    }

    fn config(&self) -> Config {
        let checkpointing = self.checkpointing;
        let text = format!(
            "optimizer.learning_rate = 0.01
             train.activation_checkpointing = {checkpointing}"
        );
        Config::parse::<NoTables>(&text, "the test", &[]).unwrap()
    }

    fn model(&self) -> Result<Qwen3> {
        let mut model = Qwen3::new(&small::config(self.model))?.balanced(BALANCING);
        model.add_router_biases();
        Ok(model)
    }

    /// A microbatch, of which this rank has the rows of its place on the axes of the batch.
    fn batch(&self, device: &Device, number: usize, on_ranks: bool) -> Result<TokenBatch> {
        let axes = self.mesh.iter().filter(|(name, _)| !["pp", "tp"].contains(name));
        let rows: usize = 2 * axes.clone().map(|(_, size)| size).product::<usize>() - 1;
        let vocabulary = small::config(self.model).vocab_size;
        let id = |at: usize, by: usize| ((at * by + at * at + 5 + 3 * number) % vocabulary) as i64;
        let all = 0..rows * TOKENS;
        let ids: Vec<i64> = all.clone().map(|at| id(at, 11)).collect();
        let label = |at: usize| match at % TOKENS > 2 + (at / TOKENS + number) % 3 {
            true => IGNORE_INDEX,
            false => id(at, 17),
        };
        let labels: Vec<i64> = all.map(label).collect();
        let own = |values: &[i64]| {
            let values = Tensor::from_slice(device, &[rows, TOKENS], values)?.as_replicated()?;
            let axes = axes.clone().filter(|_| on_ranks);
            redistribute(
                &values,
                axes.map(|(axis, _)| (axis, Placement::shard(0))).collect::<Vec<_>>(),
            )
        };
        Ok(TokenBatch::new(&own(&ids)?, &own(&labels)?))
    }
}

fn train(
    case: &Case,
    mut trainer: Trainer<Qwen3>,
    device: &Device,
    on_ranks: Option<Planted>,
) -> Result<Vec<Share>> {
    let gradients = Arc::new(Mutex::new(Vec::new()));
    let kept = gradients.clone();
    trainer.events.subscribe("gradients", move |event| {
        if let Event::ForwardBackwardFinished { step: 1, gradients, .. } = event {
            for (param, gradient) in gradients.iter() {
                let name = format!("gradient of {}", param.name());
                kept.lock().unwrap().push(share(name, param, gradient)?);
            }
        }
        Ok(())
    });
    let mut shares = Vec::new();
    let number =
        |name: String, value: f64| scalar(name, &Tensor::scalar(&Device::cpu(), value as f32)?);
    for step in 1..=STEPS {
        let batches = (0..MICROBATCHES)
            .map(|at| if on_ranks == Some(Planted::OtherMicrobatch) { at ^ 1 } else { at })
            .map(|at| case.batch(device, step as usize * MICROBATCHES + at, on_ranks.is_some()));
        let done = trainer.step(step, batches)?.wait(&trainer.model)?;
        shares.push(number(format!("loss {step}"), done.loss)?);
        shares.push(number(format!("norm {step}"), done.grad_norm)?);
        for (at, load) in done.expert_shares.iter().enumerate() {
            shares.push(number(format!("share {step} {at}"), *load)?);
        }
    }
    let batches = (0..3).map(|at| case.batch(device, at, on_ranks.is_some()));
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
    shares.append(&mut gradients.lock().unwrap());
    Ok(shares)
}

fn on_one_rank(case: &Case) -> Outcome {
    let device = Device::cpu();
    let model = case.model().unwrap();
    model.materialize(&device, 5).unwrap();
    let trainer = Trainer::new(model, &case.config(), &device).unwrap();
    assembled(&[train(case, trainer, &device, None).unwrap()]).unwrap()
}

/// The trainer of a rank's stages.
fn divided(case: &Case, rank: &dyn Rank, cut: &Cut) -> Result<Trainer<Qwen3>> {
    let (config, stage_mesh) = (case.config(), cut.stage_mesh()?);
    let model = case.model()?;
    let has_tp = case.mesh.iter().any(|(name, _)| *name == "tp");
    let tensor: &[&str] = if has_tp { &["tp"] } else { &[] };
    let parallelism = ModelParallelism::new(&stage_mesh).tensor(tensor)?;
    let parallelism = parallelism.sequence_parallel(true).loss_parallel(true);
    model.plan(&parallelism)?.apply(&model, rank.rank())?;
    let compute = small::compute(false, case.checkpointing);
    let batch = |meta: &Device| case.batch(meta, 0, true);
    let pipeline = Pipeline::learn(cut, rank, &model, compute, batch)?;
    let model = model.part(&cut.own_stages())?;
    let strategy = (case.strategy)();
    let mut parallel = DataParallel::of_stage(rank, &mesh(case.mesh), "pp", strategy.clone())?;
    if !case.tied.is_empty() {
        parallel = parallel.tied("model.embed_tokens", strategy.clone(), case.tied);
    }
    parallel.apply(&model)?;
    model.materialize(rank.device(), 5)?;
    Trainer::of(model).pipeline(pipeline).build(&config, rank.device())
}

fn on_ranks(case: &Case, fault: Planted) -> std::result::Result<Outcome, String> {
    on(case, fault, Local::new(mesh(case.mesh).len()).threads(1))
}

fn on(case: &Case, fault: Planted, local: Local) -> std::result::Result<Outcome, String> {
    let all = mesh(case.mesh);
    let shares = local.launch(|rank| {
        let connector = PlantedConnector { fault, connector: rank.connector() };
        let faulty = RewiredRank::new(rank, Arc::new(connector));
        let cut = Cut::new(&all, "pp", rank.rank(), case.schedule, case.sizes)?;
        Redistributor::new(&faulty).run_on(&cut.stage_mesh()?, || {
            let trainer = divided(case, &faulty, &cut)?;
            // The last stage reads the labels.
            let is_last = cut.own_stages().iter().any(|stage| stage.is_last);
            train(
                case,
                trainer,
                rank.device(),
                Some(if is_last { fault } else { Planted::Nothing }),
            )
        })
    });
    assembled(&shares.map_err(|error| error.to_string())?)
}

/// What differs from one rank, and by how much.
fn differences(case: &Case, one: &Outcome, ranks: &Outcome) -> Vec<String> {
    assert_eq!(one.keys().collect::<Vec<_>>(), ranks.keys().collect::<Vec<_>>());
    let differs = |(name, ranks): (&String, &Vec<f32>)| {
        let difference = distance(ranks, &one[name]);
        let allowed = 5e-5 * norm(&one[name]) + 2e-6;
        let is_exact = case.exact && name.starts_with("gradient of");
        let is_near = difference <= if is_exact { 0.0 } else { allowed };
        (!is_near).then(|| format!("{name}: {difference:.1e} of {:.1e}", norm(&one[name])))
    };
    ranks.iter().filter_map(differs).collect()
}

const CASES: [Case; 12] = [
    Case::new(DENSE, &[("pp", 3)], Named::Gpipe, &[1, 1, 1]).exact(),
    Case::new(DENSE, &[("pp", 3)], Named::OneFOneB, &[0, 2, 1]).exact(),
    Case::new(DENSE, &[("pp", 3)], Named::Zb1p, &[1, 1, 1]).checkpointed().exact(),
    Case::new(DENSE, &[("pp", 2)], Named::LoopedBfs, &[1, 0, 1, 1]),
    Case::new(EXPERTS, &[("pp", 2)], Named::Interleaved, &[1, 1, 0, 1]).exact(),
    Case::new(EXPERTS, &[("pp", 3)], Named::InterleavedZb, &[0, 1, 0, 1, 0, 1]),
    Case::new(EXPERTS, &[("pp", 2)], Named::Zbv, &[1, 0, 1, 1]).checkpointed().exact(),
    Case::new(TIED, &[("pp", 2)], Named::DualPipeV, &[1, 0, 0, 1]),
    Case::new(TIED, &[("pp", 2)], Named::OneFOneB, &[1, 1]).tied(&[0, 1]),
    Case::new(EXPERTS, &[("pp", 2), ("dp", 3)], Named::OneFOneB, &[1, 2])
        .strategy(|| Strategy::fsdp(["dp"])),
    Case::new(TIED, &[("dp", 2), ("pp", 2)], Named::Zb1p, &[1, 1])
        .strategy(|| Strategy::zero1(["dp"]))
        .tied(&[0, 1]),
    Case::new(ALL_EXPERTS, &[("pp", 2), ("dp", 2), ("tp", 2)], Named::Interleaved, &[1, 0, 1, 0])
        .strategy(|| Strategy::replicate(["dp"])),
];

#[test]
fn stages_train_as_the_whole_model() {
    for case in &CASES {
        let ranks = on_ranks(case, Planted::Nothing)
            .unwrap_or_else(|error| panic!("{}: {error}", case.title()));
        assert_eq!(differences(case, &on_one_rank(case), &ranks), [""; 0], "{}", case.title());
    }
}

/// Norms and weights do not depend on the cut, since the norm has the order of the whole model.
#[test]
fn any_cut_has_the_same_bits() {
    let two = Case::new(DENSE, &[("pp", 2)], Named::Interleaved, &[1, 0, 1, 1]);
    let outcomes = CASES[..3].iter().chain([&two]).map(|case| on_ranks(case, Planted::Nothing));
    let outcomes: Vec<Outcome> = outcomes.collect::<Result<_, _>>().unwrap();
    assert!(outcomes.iter().all(|it| *it == outcomes[0]));
}

/// Each fault is found in each case that it can change.
#[test]
fn planted_faults_are_found() {
    for case in &CASES {
        let one = on_one_rank(case);
        for fault in Planted::FAULTS {
            // In a V, one rank has both ends, so it has the labels of its inputs in any order.
            let is_v = matches!(case.schedule, Named::Zbv | Named::DualPipeV);
            let applies = match fault {
                Planted::OtherMicrobatch => !is_v,
                Planted::TiedTwice => !case.tied.is_empty(),
                _ => true,
            };
            if !applies {
                continue;
            }
            let found = on_ranks(case, fault);
            let found =
                found.is_err() || found.is_ok_and(|it| !differences(case, &one, &it).is_empty());
            assert!(found, "{}: {fault:?}", case.title());
        }
    }
}

/// A rank that ends during a step is named with the action that waits for it.
#[test]
fn a_dead_stage_is_named_with_the_action() {
    let case = &CASES[1];
    let all = mesh(case.mesh);
    let failed = Local::new(all.len()).threads(1).launch(|rank| {
        let cut = Cut::new(&all, "pp", rank.rank(), case.schedule, case.sizes)?;
        Redistributor::new(rank).run_on(&cut.stage_mesh()?, || {
            let mut trainer = divided(case, rank, &cut)?;
            let batches = (0..MICROBATCHES).map(|at| match (rank.rank(), at) {
                (2, 3) => Err(meshgrad_train::Error::new(
                    meshgrad_error::Kind::Invalid,
                    "the planted fault",
                )),
                _ => Ok(case.batch(rank.device(), at, true)?),
            });
            let error = trainer.step(1, batches).err().map(|error| error.to_string());
            Ok::<_, meshgrad_train::Error>(error)
        })
    });
    let errors: Vec<String> = failed.unwrap().into_iter().map(Option::unwrap).collect();
    assert_eq!(errors[2], "action 2F3: the planted fault");
    assert!(errors[1].starts_with("action 1") && errors[1].contains("rank 2"), "{}", errors[1]);
}

/// In any order of the ranks' work, which simulated time chooses, the bits are the same.
#[test]
fn any_order_of_ranks_has_the_same_bits() {
    let seeds = match std::env::var_os("MESHGRAD_EXHAUSTIVE") {
        Some(_) => 0..100,
        None => 0..2,
    };
    for case in [&CASES[5], &CASES[6], &CASES[9]] {
        let expected = on_ranks(case, Planted::Nothing).unwrap();
        for seed in seeds.clone() {
            let local = Local::new(mesh(case.mesh).len()).threads(1).simulated(seed);
            let outcome = on(case, Planted::Nothing, local).unwrap();
            assert!(outcome == expected, "{} with seed {seed}", case.title());
        }
    }
}
