//! The weights of a module move from the mesh of one parallel state to that of another.

use std::time::Duration;

use meshgrad::comm::conformance::{Fault, RewiredRank};
use meshgrad::comm::{Local, Plan, Rank, Redistributor, check_logs};
use meshgrad::dist::parallel::{ParallelConfig, ParallelState, Parallelism, Settings, Source};
use meshgrad::mesh::{Mesh, Placement, Sharding};
use meshgrad::prelude::*;
use meshgrad::runtime::{Shape, ops as runtime};
use meshgrad::{ShardedModule, transfer_module};

/// An MLP with extents that no degree divides.
#[derive(Module)]
struct Mlp {
    norm: Param,
    up: Param,
    down: Param,
    scale: Buffer,
}

impl Mlp {
    fn new() -> Mlp {
        let init = Init::Normal { std: 1.0 };
        Mlp {
            norm: Param::new("norm", [5], init),
            up: Param::new("up", [7, 5], init),
            down: Param::new("down", [5, 7], init),
            scale: Buffer::new("scale", [3], init),
        }
    }

    /// The parts of `rank`, which may be outside of the mesh.
    fn on(mesh: &Mesh, rank: usize) -> Result<Mlp> {
        let mlp = Mlp::new();
        if mesh.contains(rank) {
            for param in mlp.params() {
                param.shard(&sharding(mesh, param.name(), param.shape())?, rank)?;
            }
            mlp.scale.shard(&sharding(mesh, "scale", mlp.scale.shape())?, rank)?;
        }
        Ok(mlp)
    }

    /// This rank's values, in f32.
    fn values(&self) -> Result<Vec<Vec<f32>>> {
        let params = self.params().into_iter().map(|param| param.value());
        let values = params.chain([self.scale.value()]);
        values.map(|value| value?.local().to_vec()).collect()
    }
}

/// Tensor parallel, and fully sharded over dp_cp_shard.
fn sharding(mesh: &Mesh, name: &str, shape: &Shape) -> Result<Sharding> {
    let placements = match name {
        "up" => vec![("tp", Placement::shard(0)), ("dp_cp_shard", Placement::shard(0))],
        "down" => vec![("tp", Placement::shard(1)), ("dp_cp_shard", Placement::shard(0))],
        _ => vec![],
    };
    Sharding::new(mesh, placements, shape)
}

fn mesh(ranks: &[usize], tp: usize) -> Mesh {
    let mut settings = Settings::new();
    settings.world(ranks.len(), Source::code("the test"));
    settings.set(Parallelism::Tp, tp, Source::code("the test"));
    let config = ParallelConfig::new(&settings).unwrap();
    let state = ParallelState::on_ranks(config, ranks).unwrap();
    state.mesh("dense").unwrap().clone()
}

const SEED: u64 = 5;

/// Moves the weights of a trainer, and again after they are scaled; what the rollout then has.
fn moved(rank: &dyn Rank, [training, rollout]: [&Mesh; 2]) -> Result<Option<[Vec<Vec<f32>>; 2]>> {
    let (trainer, generator) = (Mlp::on(training, rank.rank())?, Mlp::on(rollout, rank.rank())?);
    let is_training = training.contains(rank.rank());
    if is_training {
        trainer.materialize(rank.device(), SEED)?;
    }
    let redistributor = Redistributor::new(rank);
    let on_training = |name: &str, shape: &Shape| sharding(training, name, shape);
    let on_rollout = |name: &str, shape: &Shape| sharding(rollout, name, shape);
    let transfer = || {
        let from = ShardedModule { module: &trainer, sharding: &on_training };
        let to = ShardedModule { module: &generator, sharding: &on_rollout };
        transfer_module(&redistributor, from, to)
    };
    transfer()?;
    let has_values = rollout.contains(rank.rank()) && rank.device().computes();
    let first = has_values.then(|| generator.values()).transpose()?;
    if is_training {
        for param in trainer.params() {
            runtime::copy_into(&runtime::affine(&param.value()?, 2.0, 0.0)?, &param.value()?)?;
        }
    }
    if let Some(first) = &first {
        assert_eq!(generator.values()?, *first, "the rollout has values of its own");
    }
    transfer()?;
    let second = has_values.then(|| generator.values()).transpose()?;
    Ok(first.zip(second).map(<[_; 2]>::from))
}

/// Whether each rank of the rollout has its parts of the weights of the whole.
fn are_correct(results: &[Option<[Vec<Vec<f32>>; 2]>], rollout: &Mesh) -> bool {
    let correct = |(rank, result): (usize, &Option<[Vec<Vec<f32>>; 2]>)| {
        let Some([first, second]) = result else {
            return !rollout.contains(rank);
        };
        let expected = Mlp::on(rollout, rank).unwrap();
        expected.materialize(&Device::cpu(), SEED).unwrap();
        let expected = expected.values().unwrap();
        let twice = |at: usize, values: &[f32]| -> Vec<f32> {
            let factor = if at < 3 { 2.0 } else { 1.0 };
            values.iter().map(|value| factor * value).collect()
        };
        let doubled = expected.iter().enumerate().map(|(at, values)| twice(at, values));
        *first == expected && *second == doubled.collect::<Vec<_>>()
    };
    results.iter().enumerate().all(correct)
}

#[test]
fn weights_move_between_parallel_states() {
    let cases = [
        ([0, 1, 2, 3].as_slice(), 2, [4, 5].as_slice(), 2),
        (&[0, 1, 2, 3], 2, &[3, 1, 4], 3),
        (&[0, 1], 1, &[0, 1, 2, 3, 4, 5], 2),
        (&[2, 4, 5], 3, &[2], 1),
    ];
    for (training, tp, rollout, rollout_tp) in cases {
        let meshes = [&mesh(training, tp), &mesh(rollout, rollout_tp)];
        let results = Local::run(6, |rank| moved(rank, meshes)).unwrap();
        assert!(are_correct(&results, meshes[1]), "{training:?} to {rollout:?}");
        let plan = Plan::new(6).unwrap();
        let logs = plan.trace_all(|rank| moved(rank, meshes).map(drop)).unwrap();
        check_logs(&logs).unwrap();
    }
}

#[test]
fn planted_faults_are_found() {
    let meshes = [&mesh(&[0, 1, 2, 3], 2), &mesh(&[4, 5], 2)];
    for fault in [Fault::None, Fault::Dropped, Fault::Scaled, Fault::Swapped] {
        let local = Local::new(6).threads(1).deadline(Duration::from_secs(20));
        let results = local.launch(|rank| moved(&RewiredRank::faulty(rank, fault), meshes));
        let correct = results.is_ok_and(|results| are_correct(&results, meshes[1]));
        assert_eq!(correct, fault == Fault::None, "{fault:?}");
    }
}

/// A module with these weights.
struct Params(Vec<Param>);

impl Module for Params {
    fn visit(&self, visitor: &mut dyn meshgrad::autograd::Visitor) {
        self.0.iter().for_each(|param| visitor.param(param));
    }
}

#[test]
fn modules_that_do_not_match_are_errors() {
    let [training, rollout] = [mesh(&[0], 1), mesh(&[0], 1)];
    Local::run(1, |rank| -> Result<()> {
        let redistributor = Redistributor::new(rank);
        let replicated = |name: &str, shape: &Shape| sharding(&training, name, shape);
        let on_rollout = |name: &str, shape: &Shape| sharding(&rollout, name, shape);
        let params = |shapes: &[(&str, [usize; 2])]| {
            let param = |(name, shape): &(&str, [usize; 2])| Param::new(*name, *shape, Init::Ones);
            Params(shapes.iter().map(param).collect())
        };
        let message = |source: &Params, target: &Params| {
            let from = ShardedModule { module: source, sharding: &replicated };
            let to = ShardedModule { module: target, sharding: &on_rollout };
            transfer_module(&redistributor, from, to).unwrap_err().to_string()
        };
        let w = params(&[("w", [2, 3])]);
        let both = params(&[("w", [2, 3]), ("b", [1, 1])]);
        let missing = message(&w, &both);
        assert!(
            missing.contains("`b` is in the target module, but not in the source"),
            "{missing}"
        );
        let extra = message(&both, &w);
        assert!(extra.contains("`b` is in the source module, but not in the target"), "{extra}");
        assert!(extra.contains("the source has 2 weights, the target 1"), "{extra}");
        let shape = message(&w, &params(&[("w", [3, 2])]));
        assert!(shape.contains("`w` is f32[2, 3] in the source module, but f32[3, 2]"), "{shape}");
        let mut spec = w.0[0].spec().clone();
        spec.dtype = DType::BF16;
        let dtype = message(&w, &Params(vec![Param::with_spec("w", spec)]));
        assert!(dtype.contains("`w` is f32[2, 3] in the source module, but bf16[2, 3]"), "{dtype}");
        let twice = message(&params(&[("w", [2, 3]), ("w", [1, 1])]), &w);
        assert!(twice.contains("two weights are named `w`"), "{twice}");

        let no_value = message(&w, &w);
        assert!(no_value.contains("`w`"), "{no_value}");
        w.materialize(rank.device(), 0)?;
        let unsharded = message(&w, &params(&[("w", [2, 3])]));
        assert!(unsharded.contains("`w` is f32[2, 3] on "), "{unsharded}");
        assert!(unsharded.contains("is stated"), "{unsharded}");
        Ok(())
    })
    .unwrap();
}
