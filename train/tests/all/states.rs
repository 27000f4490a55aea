//! Training as parallel states say: one from a DeepSpeed file, and several in one process.

use std::collections::BTreeSet;
use std::time::Duration;

use meshgrad_autograd::Module;
use meshgrad_comm::{Collectives, CommError, Local, LocalRank, Rank};
use meshgrad_dist::parallel::import::deepspeed;
use meshgrad_dist::parallel::{ParallelConfig, ParallelState, Settings, Source};
use meshgrad_mesh::{GroupOptions, Hosts};
use meshgrad_models::{Qwen3, TokenBatch};
use meshgrad_runtime::Tensor;
use meshgrad_train::Result;
use meshgrad_train::config::{Config, NoTables};
use meshgrad_train::ranks::RunRanks;
use meshgrad_train::trainer::Trainer;

use crate::small;

const RANKS: usize = 8;
const STEPS: u64 = 4;
const ROWS: usize = 4;
const MICROBATCHES: usize = 4;
const TOKENS: usize = 8;
const LIMIT: Duration = Duration::from_secs(60);

const MODEL: &str = r#"
    model_type = "qwen3"
    vocab_size = 61
    hidden_size = 16
    intermediate_size = 24
    num_hidden_layers = 4
    num_attention_heads = 8
    num_key_value_heads = 4
    head_dim = 4
    initializer_range = 0.2
"#;

const ACTOR: &str = r#"{"tensor_parallel": {"autotp_size": 2}, "pipeline_model_parallel_size": 2}"#;
const CRITIC: &str = r#"{"tensor_model_parallel_size": 4}"#;
const ULYSSES: &str = r#"{"tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 2}"#;

/// What divides the ranks of a model.
#[derive(Clone)]
enum Division {
    /// Values of `[parallel]`.
    Keys(&'static [&'static str]),
    State(ParallelState),
}

/// A model to train.
#[derive(Clone)]
struct Role {
    division: Division,
    seed: u64,
}

/// What the roles that take turns have done.
struct Trained {
    /// The loss and the norm of the gradient of each step, by role.
    steps: Vec<Vec<[f64; 2]>>,
    /// The ranks and the channel of each communicator, by rank.
    communicators: Vec<Vec<(Vec<usize>, String)>>,
}

/// The state of a DeepSpeed file, on ranks in this order.
fn state(json: &str, ranks: &[usize]) -> ParallelState {
    let mut settings = deepspeed(json, "ds.json");
    settings.world(ranks.len(), Source::code("the test"));
    ParallelState::on_ranks(ParallelConfig::new(&settings).unwrap(), ranks).unwrap()
}

fn all() -> Vec<usize> {
    (0..RANKS).collect()
}

fn config(keys: &[&str]) -> Config {
    let sets = [
        format!("train.batch_size={}", ROWS * MICROBATCHES),
        format!("train.micro_batch_size={ROWS}"),
        format!("train.seq_len={TOKENS}"),
        "train.dtype=f32".to_owned(),
        "optimizer.learning_rate=1e-2".to_owned(),
        "optimizer.eps=1e-3".to_owned(),
    ];
    let keys = keys.iter().map(|key| format!("parallel.{key}"));
    let sets = sets.into_iter().chain(keys).map(|set| set.parse().unwrap());
    Config::parse::<NoTables>("", "the test", &sets.collect::<Vec<_>>()).unwrap()
}

/// A role, as one of its ranks trains it.
struct Worker<'r> {
    ranks: RunRanks<'r>,
    trainer: Trainer<Qwen3>,
    seed: u64,
}

impl<'r> Worker<'r> {
    fn new(role: &Role, rank: &'r LocalRank) -> Result<Worker<'r>> {
        let (ranks, config) = match &role.division {
            Division::Keys(keys) => {
                let config = config(keys);
                (RunRanks::new(rank, &config)?, config)
            }
            Division::State(state) => {
                let config = config(&[]);
                (RunRanks::of_state(rank, state, &config)?, config)
            }
        };
        let trainer = ranks.on_mesh(|| {
            let model = Qwen3::new(&small::config(MODEL))?;
            let (model, pipeline) = match ranks.divide(&model)? {
                Some((part, pipeline)) => (part, Some(pipeline)),
                None => (model, None),
            };
            model.materialize(rank.device(), role.seed)?;
            let builder = Trainer::of(model);
            let builder = match pipeline {
                Some(pipeline) => builder.pipeline(pipeline),
                None => builder,
            };
            builder.build(&config, rank.device())
        })?;
        Ok(Worker { ranks, trainer, seed: role.seed })
    }

    fn step(&mut self, rank: &LocalRank, step: u64) -> Result<[f64; 2]> {
        let Worker { ranks, trainer, seed } = self;
        ranks.on_mesh(|| {
            let ids = |number: u64, by: u64| {
                let id = |at: u64| ((at * by + at * at + 7 * number + *seed) % 61) as i64;
                let ids: Vec<i64> = (0..(ROWS * TOKENS) as u64).map(id).collect();
                ranks.own_part(&Tensor::from_slice(rank.device(), &[ROWS, TOKENS], &ids)?)
            };
            let batch = |at| {
                let number = step * MICROBATCHES as u64 + at;
                Ok(TokenBatch::new(&ids(number, 11)?, &ids(number, 17)?))
            };
            let batches: Vec<_> = (0..MICROBATCHES as u64).map(batch).collect();
            let done = trainer.step(step, batches)?.wait(&trainer.model)?;
            Ok([done.loss, done.grad_norm])
        })
    }
}

/// The roles take turns, step by step, on the same ranks.
fn train(ranks: usize, roles: &[Role]) -> std::result::Result<Trained, String> {
    let local = Local::new(ranks).threads(1).deadline(LIMIT);
    let ran = local.launch(|rank| -> Result<_> {
        let workers = roles.iter().map(|role| Worker::new(role, rank));
        let mut workers = workers.collect::<Result<Vec<_>>>()?;
        let mut steps = vec![Vec::new(); roles.len()];
        for step in 1..=STEPS {
            for (worker, steps) in workers.iter_mut().zip(&mut steps) {
                steps.push(worker.step(rank, step)?);
            }
        }
        let report = rank.registry().report(&Hosts::uniform(RANKS)?);
        let all = report.communicators.into_iter().map(|it| (it.ranks, it.channel));
        Ok((steps, all.collect()))
    });
    let ran = ran.map_err(|error| error.to_string())?;
    let (mut steps, communicators): (Vec<_>, Vec<_>) = ran.into_iter().unzip();
    assert!(steps.iter().all(|one| *one == steps[0]), "ranks report different losses");
    Ok(Trained { steps: steps.swap_remove(0), communicators })
}

fn assert_near(one: &[[f64; 2]], other: &[[f64; 2]]) {
    for (one, other) in one.iter().flatten().zip(other.iter().flatten()) {
        assert!((one - other).abs() < 1e-4 * other.abs(), "{one} {other}");
    }
}

/// A run has the bits of `[parallel]` with the degrees of the file, and the losses of one rank. It
/// communicates in the groups that the getters return.
#[test]
fn a_state_of_a_deepspeed_file_trains_like_keys_of_ours() {
    let state = state(ULYSSES, &all());
    let keys = &["tp=2", "sp=2", "dp_shard=2", "order=sp-tp-ep-dp-pp"];
    let [ours, theirs] = [Division::Keys(keys), Division::State(state.clone())]
        .map(|division| train(RANKS, &[Role { division, seed: 3 }]).unwrap());
    assert_eq!(theirs.steps, ours.steps);
    let alone = train(1, &[Role { division: Division::Keys(&[]), seed: 3 }]).unwrap();
    assert_near(&theirs.steps[0], &alone.steps[0]);

    for (rank, used) in theirs.communicators.iter().enumerate() {
        let mpu = state.mpu(rank).unwrap();
        for group in [
            mpu.get_tensor_model_parallel_group(),
            mpu.get_sequence_parallel_group(),
            mpu.get_data_parallel_group(),
        ] {
            assert!(used.iter().any(|(ranks, _)| ranks == group.ranks()), "{group}: {used:?}");
        }
    }
}

/// Two models with other degrees take turns on the same ranks: neither changes a bit of the other,
/// and equal groups share a communicator.
#[test]
fn an_actor_and_a_critic_train_as_each_does_alone() {
    let role = |json, seed| Role { division: Division::State(state(json, &all())), seed };
    let roles = [role(ACTOR, 3), role(CRITIC, 5)];
    let both = train(RANKS, &roles).unwrap();
    let alone = roles.map(|role| train(RANKS, &[role]).unwrap());

    let mut shared = 0;
    for rank in 0..RANKS {
        let [actor, critic] = alone.each_ref().map(|one| one.communicators[rank].iter().cloned());
        let (actor, critic) = (BTreeSet::from_iter(actor), BTreeSet::from_iter(critic));
        let mut used = both.communicators[rank].clone();
        used.sort();
        assert_eq!(used, actor.union(&critic).cloned().collect::<Vec<_>>());
        shared += actor.intersection(&critic).count();
    }
    assert!(shared > 0);
    for (role, alone) in alone.iter().enumerate() {
        assert_eq!(both.steps[role], alone.steps[0]);
    }
    assert_ne!(both.steps[0], both.steps[1]);
}

/// A group that code takes from a state has the time limit of its options, or of the file; a group
/// without either has that of the world.
#[test]
fn groups_of_a_state_have_their_own_time_limits() {
    let here = || Source::code("the test");
    let file = r#"{"tensor_model_parallel_size": 2, "distributed_timeout_minutes": 3}"#;
    let mut settings = deepspeed(file, "ds.json");
    let (mut own, mut options) = (Settings::new(), GroupOptions::default());
    options.timeout = Some(Duration::from_secs(7));
    own.world(4, here()).options("dp", options, here());
    settings.override_with(own);
    let state = ParallelState::new(ParallelConfig::new(&settings).unwrap());

    let local = Local::new(4).threads(1).deadline(LIMIT).simulated(1);
    for (name, waits, limit) in [("tp", 1, 180), ("dp", 2, 7), ("world", 3, 60)] {
        let ran = local.launch(|rank| {
            let group = state.group(name, rank.rank())?.expect("every rank is in one");
            let group = rank.connect(name, &group)?;
            if rank.rank() == 0 {
                rank.clock().sleep(Duration::from_secs(3600));
            }
            Ok::<_, meshgrad_train::Error>(group.barrier().and_then(|it| it.wait()))
        });
        let error = ran.unwrap().swap_remove(waits).unwrap_err();
        let Some(CommError::Timeout { missing, waited, .. }) = error.details::<CommError>() else {
            panic!("{error}");
        };
        assert_eq!((missing.as_slice(), waited.as_secs()), (&[0][..], limit), "{name}");
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let refused = |state: &ParallelState, keys: &[&str]| {
        let config = config(keys);
        let ran = Local::new(RANKS)
            .threads(1)
            .launch(|rank| RunRanks::of_state(rank, state, &config).map(drop));
        ran.unwrap_err().to_string()
    };
    let fits = state(ACTOR, &all());
    for (state, keys, expected) in [
        (&fits, &["tp=4"][..], "parallel.tp is 4, but the state has 2; leave it out"),
        (
            &fits,
            &["order=dp-tp-pp"],
            "parallel.order is dp-tp-pp, but the state has tp-ep-dp-pp-cp-sp",
        ),
        (
            &state(ACTOR, &[0, 1, 2, 3]),
            &[],
            "the state has 4 ranks from rank 0 on, but the world has 8",
        ),
    ] {
        let error = refused(state, keys);
        assert!(error.contains(expected), "{error}");
    }
}
