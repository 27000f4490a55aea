//! Training as parallel states say: one from a DeepSpeed file, and several in one process.

use std::collections::BTreeSet;
use std::time::Duration;

use meshgrad_autograd::Module;
use meshgrad_comm::{Collectives, Local, LocalRank, Rank};
use meshgrad_dist::parallel::{ParallelConfig, ParallelState, Settings, Source, import::deepspeed};
use meshgrad_mesh::{GroupOptions, Hosts};
use meshgrad_models::{Decoder, TokenBatch};
use meshgrad_runtime::{Device, Tensor};
use meshgrad_train::Result;
use meshgrad_train::config::{Config, NoTables};
use meshgrad_train::ranks::RunRanks;
use meshgrad_train::trainer::Trainer;

use crate::small;

const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const LIMIT: Duration = Duration::from_secs(60);
const CONFIG: &str = "train = { batch_size = 16, micro_batch_size = 4, seq_len = 8 }
optimizer.eps = 1e-3 # so that tiny gradients do not become large updates";
const ACTOR: &str = r#"{"tensor_parallel": {"autotp_size": 2}, "pipeline_model_parallel_size": 2}"#;

/// A model to train, with a state or with keys of `[parallel]`.
#[derive(Default)]
struct Role {
    state: Option<ParallelState>,
    keys: &'static [&'static str],
    seed: u64,
}

/// The loss and the norm of the gradient of each step, by role, and the ranks and the channel of each
/// communicator, by rank.
type Trained = (Vec<Vec<[f64; 2]>>, Vec<Vec<(Vec<usize>, String)>>);

/// The state of a DeepSpeed file, on ranks in this order.
fn state(json: &str, ranks: &[usize]) -> ParallelState {
    let mut settings = deepspeed(json, "ds.json");
    settings.world(ranks.len(), Source::code("the test"));
    ParallelState::on_ranks(ParallelConfig::new(&settings).unwrap(), ranks).unwrap()
}

fn config(keys: &[&str]) -> Config {
    let sets = keys.iter().map(|key| format!("parallel.{key}").parse().unwrap());
    Config::parse::<NoTables>(CONFIG, "the test", &sets.collect::<Vec<_>>()).unwrap()
}

/// A rank of a role, and what trains its part of the model.
fn start<'r>(role: &Role, rank: &'r LocalRank) -> Result<(RunRanks<'r>, Trainer<Decoder>)> {
    let config = config(role.keys);
    let ranks = match &role.state {
        Some(state) => RunRanks::of_state(rank, state, &config)?,
        None => RunRanks::new(rank, &config)?,
    };
    let trainer = ranks.on_mesh(|| {
        let model = Decoder::new(&small::config(small::ALL_EXPERTS))?;
        let (model, pipeline) = match ranks.divide(&model)? {
            Some((part, pipeline)) => (part, Some(pipeline)),
            None => (model, None),
        };
        model.materialize(rank.device(), role.seed)?;
        Trainer::of(model).pipeline(pipeline).build(&config, rank.device())
    })?;
    Ok((ranks, trainer))
}

/// A step on batches that are the same for all roles.
fn step(
    (ranks, trainer): &mut (RunRanks<'_>, Trainer<Decoder>),
    device: &Device,
    step: u64,
) -> Result<[f64; 2]> {
    let ids = |number: usize, by: usize| {
        let id = |at: usize| ((at * by + at * at + 7 * number) % 53) as i64;
        ranks.own_part(&Tensor::from_slice(device, &[4, 8], &(0..32).map(id).collect::<Vec<_>>())?)
    };
    let batch = |at| Ok(TokenBatch::new(&ids(at, 11)?, &ids(at, 17)?));
    ranks.on_mesh(|| {
        let numbers = (0..4).map(|at| step as usize * 4 + at);
        let done = trainer.step(step, numbers.map(batch))?.wait(&trainer.model)?;
        Ok([done.loss, done.grad_norm])
    })
}

/// The roles take turns, step by step, on the same ranks.
fn train(ranks: usize, roles: &[Role]) -> Trained {
    let ran = Local::new(ranks).threads(1).deadline(LIMIT).launch(|rank| -> Result<_> {
        let mut started = roles.iter().map(|role| start(role, rank)).collect::<Result<Vec<_>>>()?;
        let mut done = vec![Vec::new(); roles.len()];
        for number in 1..=4 {
            for (role, done) in started.iter_mut().zip(&mut done) {
                done.push(step(role, rank.device(), number)?);
            }
        }
        let report = rank.registry().report(&Hosts::uniform(8)?);
        let all = report.communicators.into_iter().map(|it| (it.ranks, it.channel));
        Ok((done, all.collect()))
    });
    let (mut steps, communicators): (Vec<_>, Vec<_>) = ran.unwrap().into_iter().unzip();
    assert!(steps.iter().all(|one| *one == steps[0]), "ranks report different losses");
    (steps.swap_remove(0), communicators)
}

/// A run has the bits of `[parallel]` with the degrees and the order of the file, on ranks in any
/// order, and the losses of one rank. It communicates in the groups that the getters return.
#[test]
fn a_state_of_a_deepspeed_file_trains_like_keys_of_ours() {
    let keys = &["tp=2", "sp=2", "dp_shard=2", "order=sp-tp-ep-dp-pp"];
    let (ours, _) = train(8, &[Role { keys, ..Role::default() }]);
    let (alone, _) = train(1, &[Role::default()]);
    for (value, expected) in ours[0].iter().flatten().zip(alone[0].iter().flatten()) {
        assert!((value - expected).abs() < 1e-4 * expected, "{value} {expected}");
    }

    for ranks in [ALL, [3, 1, 7, 5, 4, 0, 2, 6]] {
        let file = r#"{"tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 2}"#;
        let state = state(file, &ranks);
        let (theirs, used) = train(8, &[Role { state: Some(state.clone()), ..Role::default() }]);
        assert_eq!(theirs, ours);
        for (rank, used) in used.iter().enumerate() {
            let mpu = state.mpu(rank).unwrap();
            let (tp, dp) = (mpu.get_tensor_model_parallel_group(), mpu.get_data_parallel_group());
            for group in [tp, mpu.get_sequence_parallel_group(), dp] {
                assert!(used.iter().any(|(ranks, _)| ranks == group.ranks()), "{group}: {used:?}");
            }
        }
    }
}

/// Neither changes a bit of the other when they take turns, and equal groups share a communicator.
#[test]
fn an_actor_and_a_critic_train_as_each_does_alone() {
    let role = |json, seed| Role { state: Some(state(json, &ALL)), seed, keys: &[] };
    let roles = [role(ACTOR, 3), role(r#"{"tensor_model_parallel_size": 4}"#, 5)];
    let (steps, communicators) = train(8, &roles);
    let alone = roles.map(|role| train(8, &[role]));
    assert_eq!(steps, [&alone[0].0[..], &alone[1].0].concat());

    for (rank, mut used) in communicators.into_iter().enumerate() {
        let [actor, critic] = alone.each_ref().map(|(_, all)| BTreeSet::from_iter(&all[rank]));
        assert_eq!([actor.len(), critic.len(), used.len()], [6, 3, 7]); // as in the guide
        used.sort();
        assert!(used.iter().eq(actor.union(&critic).copied()), "{used:?}");
    }
}

/// A group has the time limit of its options, else of the file, else of the world.
#[test]
fn groups_of_a_state_have_their_own_time_limits() {
    let file = r#"{"tensor_model_parallel_size": 2, "distributed_timeout_minutes": 3}"#;
    let mut settings = deepspeed(file, "ds.json");
    let (mut own, mut options) = (Settings::new(), GroupOptions::default());
    options.timeout = Some(Duration::from_secs(7));
    own.world(4, Source::flag("--world")).options("dp", options, Source::flag("--limit"));
    settings.override_with(own);
    let state = ParallelState::new(ParallelConfig::new(&settings).unwrap());

    let local = Local::new(4).threads(1).deadline(LIMIT).simulated(1);
    for (name, waits, limit) in [("tp", 1, 180), ("dp", 2, 7), ("world", 3, 60)] {
        let ran = local.launch(|rank| {
            let group = rank.connect(name, &state.group(name, rank.rank())?.unwrap())?;
            if rank.rank() == 0 {
                rank.clock().sleep(Duration::from_secs(3600));
            }
            Ok::<_, meshgrad_train::Error>(group.barrier().and_then(|it| it.wait()))
        });
        let error = ran.unwrap().swap_remove(waits).unwrap_err();
        assert!(error.to_string().contains(&format!("timed out after {limit}s")), "{error}");
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let (fits, small) = (state(ACTOR, &ALL), state(ACTOR, &[0, 1, 2, 3]));
    let others = state(ACTOR, &[8, 9, 10, 11, 12, 13, 14, 15]);
    for (state, keys, expected) in [
        (&fits, &["tp=4"][..], "parallel.tp is 4, but the state has 2; leave it out"),
        (&fits, &["order=dp-tp-pp"], "but the state has an order of its own, tp-ep-dp-pp-cp-sp"),
        (&small, &[], "the state has 4 ranks, without rank 4, but the world has 8"),
        (&others, &[], "the state has 8 ranks, without rank 0, but the world has 8"),
    ] {
        let config = config(keys);
        let of_state = |rank: &LocalRank| RunRanks::of_state(rank, state, &config).map(drop);
        let error = Local::new(8).threads(1).launch(of_state).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
