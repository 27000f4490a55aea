//! A model with experts on a mesh of their own trains, saves and loads as on one rank.

use std::path::Path;

use meshgrad_autograd::{
    Init, LocalOperand, LocalResult, Module, Param, Tape, Var, local, ops as tracked,
};
use meshgrad_collectives::{communicator, full_tensor, redistribute};
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Communicator, Local, Rank, Redistributor};
use meshgrad_data_parallel::{DataParallel, Strategy};
use meshgrad_mesh::{Mesh, Placement, Sharding};
use meshgrad_models::folder;
use meshgrad_runtime::{DType, Device, Tensor, ops};
use meshgrad_train::Result;
use meshgrad_train::optim::{AdamW, AdamWConfig, Groups, UpdateRule};
use meshgrad_train::optimizer::Optimizer;
use meshgrad_train::ranks::checkpoint_ranks;

use super::step::{Outcome, Share, assembled, scalar, share};
use crate::small::{Axes, distance, mesh, norm};

const FEATURES: usize = 5;
const EXPERTS: usize = 4;
const ROWS: usize = 19;
const PASSES: usize = 2;
const STEPS: usize = 4;

type Values<T> = meshgrad_runtime::Result<T>;

/// Every expert sees every row, weighted by its gate.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
struct Mixture {
    layers: Vec<Layer>,
}

#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
struct Layer {
    up: Param,
    gate: Param,
    experts: Param,
    down: Param,
}

/// The meshes of a model.
struct Meshes {
    main: Mesh,
    /// Axis `ep` divides the experts.
    experts: Mesh,
}

impl Mixture {
    fn new() -> Mixture {
        let layer = |at: usize| {
            let init = Init::Normal { std: 0.5 };
            let name = |of: &str| format!("layers.{at}.{of}");
            Layer {
                up: Param::new(name("up"), [FEATURES, FEATURES], init),
                gate: Param::new(name("gate"), [EXPERTS, FEATURES], init),
                experts: Param::new(name("experts"), [EXPERTS, FEATURES, FEATURES], init),
                down: Param::new(name("down"), [FEATURES, FEATURES], init),
            }
        };
        Mixture { layers: (0..2).map(layer).collect() }
    }

    fn forward(&self, x: &Tensor, meshes: Option<&Meshes>) -> Values<Var> {
        let mut x = Var::constant(x.clone());
        for layer in &self.layers {
            let up = tracked::linear(&x, &layer.up.var()?)?;
            let gates = tracked::softmax(&tracked::linear(&up, &layer.gate.var()?)?)?;
            let y = match meshes {
                Some(meshes) => meshes.mix(&up, &gates, &layer.experts.var()?)?,
                None => mix(&up, &gates, &layer.experts.var()?, 0)?,
            };
            x = tracked::add(&x, &tracked::linear(&y, &layer.down.var()?)?)?;
        }
        Ok(x)
    }
}

/// The sum of what some experts, from `first` on, make of all rows of `x`.
fn mix(x: &Var, gates: &Var, experts: &Var, first: usize) -> Values<Var> {
    let mut sum = None;
    for at in 0..experts.value().shape()[0] {
        let w = tracked::slice(experts, 0, at..at + 1)?;
        let w = tracked::reshape(&w, &[FEATURES, FEATURES])?;
        let gate = tracked::slice(gates, 1, first + at..first + at + 1)?;
        let y = tracked::mul(&tracked::silu(&tracked::linear(x, &w)?)?, &gate)?;
        sum = Some(match sum {
            Some(sum) => tracked::add(&sum, &y)?,
            None => y,
        });
    }
    Ok(sum.expect("a rank has experts"))
}

impl Meshes {
    /// Gathers the rows of the ranks with other experts, and returns each its sum.
    fn mix(&self, x: &Var, gates: &Var, experts: &Var) -> Values<Var> {
        let sharding = x.value().sharding().expect("on ranks").clone();
        let rank = x.value().sharded_shape().rank().expect("on ranks");
        let peers = self.experts.group(["ep"], rank)?.expect("all ranks have experts");
        let rows = peers.ranks().iter().map(|peer| sharding.local_shape(*peer).expect("a rank")[0]);
        let rows: Vec<usize> = rows.collect();
        let group = communicator(&self.experts, ["ep"])?;
        let placements = sharding.placements();
        let operand = |var| LocalOperand::new(var, &self.main, &placements);
        let weight = self.experts.axes().iter().map(|axis| axis.name());
        let weight = weight.filter(|axis| *axis != "ep").fold(
            LocalOperand::new(experts, &self.experts, [("ep", Placement::shard(0))]),
            LocalOperand::partial_gradient,
        );
        let result = LocalResult::new(&self.main, &placements, sharding.shape());
        let [y] = local([operand(x), operand(gates), weight], [result], |[x, gates, experts]| {
            let x = tracked::all_gather_rows(&x, &rows, &group)?;
            let gates = tracked::all_gather_rows(&gates, &rows, &group)?;
            let first = group.index() * experts.value().shape()[0];
            let y = mix(&x, &gates, &experts, first)?;
            Ok([tracked::reduce_scatter_rows(&y, &rows, &group)?])
        })?;
        Ok(y)
    }
}

/// The meshes of a case, and the strategy with its axes on the second.
struct Case {
    main: Axes,
    experts: Axes,
    strategy: fn() -> Strategy,
    over: [&'static [&'static str]; 2],
}

const CASES: [Case; 5] = [
    Case {
        main: &[("dp", 6)],
        experts: &[("edp", 3), ("ep", 2)],
        strategy: || Strategy::fsdp(["dp"]),
        over: [&["edp"], &[]],
    },
    // No axis of one mesh is part of one of the other.
    Case {
        main: &[("copies", 2), ("dp", 3)],
        experts: &[("edp", 3), ("ep", 2)],
        strategy: || Strategy::hsdp(["dp"], ["copies"]),
        over: [&["edp"], &[]],
    },
    Case {
        main: &[("dp", 8)],
        experts: &[("copies", 2), ("ep", 2), ("edp", 2)],
        strategy: || Strategy::zero1(["dp"]),
        over: [&["edp"], &["copies"]],
    },
    Case {
        main: &[("dp", 3)],
        experts: &[("edp", 3), ("ep", 1)],
        strategy: || Strategy::replicate(["dp"]),
        over: [&[], &["edp"]],
    },
    // The gradients of experts are summed also along an axis that their strategy does not name.
    Case {
        main: &[("dp", 8)],
        experts: &[("copies", 2), ("ep", 2), ("edp", 2)],
        strategy: || Strategy::fsdp(["dp"]),
        over: [&["edp"], &[]],
    },
];

/// The rows of a pass that this rank has.
fn batch(device: &Device, pass: usize, main: Option<&Mesh>) -> Values<Tensor> {
    let value = |at: usize| ((at * at + 7 * pass) % 23) as f32 / 11.0 - 1.0;
    let values: Vec<f32> = (0..ROWS * FEATURES).map(value).collect();
    let whole = Tensor::from_slice(device, &[ROWS, FEATURES], &values)?.as_replicated()?;
    let axes = main.into_iter().flat_map(Mesh::axes);
    let rows: Vec<_> = axes.map(|axis| (axis.name(), Placement::shard(0))).collect();
    redistribute(&whole, &rows)
}

fn train(model: &Mixture, device: &Device, meshes: Option<&Meshes>) -> Result<Vec<Share>> {
    let config = AdamWConfig { eps: 1e-3, ..AdamWConfig::default() };
    let adamw = |parts: &[_]| -> Result<Box<dyn UpdateRule>> {
        Ok(Box::new(AdamW::new(parts, config, &Groups::default())?))
    };
    let mut optimizer = Optimizer::with(model, device, 0.5, adamw)?;
    optimizer.grads().expect_passes(PASSES);
    let mut shares = Vec::new();
    for step in 0..STEPS {
        for pass in 0..PASSES {
            let x = batch(device, step * PASSES + pass, meshes.map(|meshes| &meshes.main))?;
            let record = || tracked::sum(&tracked::square(&model.forward(&x, meshes)?)?, &[0, 1]);
            let (loss, tape) = Tape::record(record)?;
            tape.backward(&loss, optimizer.grads())?;
            shares.push(scalar(format!("loss {step} {pass}"), &full_tensor(loss.value())?)?);
        }
        if step == 0 {
            for (param, gradient) in optimizer.grads().all()? {
                shares.push(share(format!("gradient of {}", param.name()), &param, &gradient)?);
            }
        }
        let weight = ops::full(device, &[], DType::F32, (PASSES * ROWS) as f64)?;
        let norm = optimizer.step(&weight, step as u64 + 1, 0.05)?;
        shares.push(scalar(format!("norm {step}"), &norm)?);
    }
    for param in model.params() {
        shares.push(share(param.name().to_owned(), &param, &param.kept_value()?)?);
    }
    Ok(shares)
}

fn on_one_rank(saved: &Path) -> Outcome {
    let model = Mixture::new();
    let device = Device::cpu();
    model.materialize(&device, 3).unwrap();
    let shares = train(&model, &device, None).unwrap();
    folder::save(&model, saved).unwrap();
    assembled(&[shares]).unwrap()
}

/// The outcome of a case, whose ranks save their model to `saved` and then load it again.
fn on_ranks(case: &Case, fault: Fault, saved: &Path) -> std::result::Result<Outcome, String> {
    let meshes = Meshes { main: mesh(case.main), experts: mesh(case.experts) };
    let Meshes { main, experts } = &meshes;
    let shares = Local::new(main.len()).threads(1).launch(|rank| {
        let faulty = RewiredRank::faulty(rank, fault);
        Redistributor::new(rank).run_on(main, || {
            let model = Mixture::new();
            for layer in &model.layers {
                let shape = layer.experts.shape();
                let own = Sharding::new(experts, [("ep", Placement::shard(0))], shape)?;
                layer.experts.shard(&own, rank.rank())?;
            }
            let strategy = (case.strategy)();
            DataParallel::new(&faulty, main, strategy.clone())
                .unit("layers.*", strategy)
                .mesh(experts, case.over[0], case.over[1])
                .apply_for(&model, |meta| {
                    let x = batch(meta, 0, Some(main))?;
                    tracked::sum(&model.forward(&x, Some(&meshes))?, &[0, 1])
                })?;
            model.materialize(rank.device(), 3)?;
            let shares = train(&model, rank.device(), Some(&meshes))?;
            folder::save_sharded(&model, saved, &mut checkpoint_ranks(rank)?)?;
            folder::load(&model, saved, rank.device())?;
            Ok::<_, meshgrad_train::Error>(shares)
        })
    });
    assembled(&shares.map_err(|error| error.to_string())?)
}

/// The names of what differs from one rank.
fn differences(one: &Outcome, ranks: &Outcome) -> Vec<String> {
    assert!(one.keys().eq(ranks.keys()));
    let differs = |(name, ranks): &(&String, &Vec<f32>)| {
        let difference = distance(ranks, &one[*name]);
        difference.is_nan() || difference > 2e-5 * norm(&one[*name]) + 1e-6
    };
    ranks.iter().filter(differs).map(|(name, _)| name.clone()).collect()
}

#[test]
fn a_second_mesh_has_the_losses_gradients_weights_and_checkpoint_of_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("one");
    let one = on_one_rank(&saved);
    for (at, case) in CASES.iter().enumerate() {
        let shared = dir.path().join(format!("ranks{at}"));
        let ranks = on_ranks(case, Fault::None, &shared).unwrap();
        assert_eq!(differences(&one, &ranks), [""; 0], "case {at}");
        let [one, shared] = [&saved, &shared].map(|dir| meshgrad_ckpt::Folder::open(dir).unwrap());
        for param in Mixture::new().params() {
            let [one, shared] = [&one, &shared].map(|it| it.read(param.name()).unwrap());
            assert_eq!(one.len(), shared.len(), "case {at}");
            let [one, shared] = [one, shared].map(|bytes| {
                let values = bytes.chunks_exact(4);
                let values = values.map(|x| f32::from_le_bytes(x.try_into().unwrap()));
                values.collect::<Vec<f32>>()
            });
            assert!(distance(&shared, &one) < 2e-5 * norm(&one), "case {at}: {}", param.name());
        }
    }
}

#[test]
fn faults_on_a_second_mesh_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let one = on_one_rank(&dir.path().join("one"));
    for (at, case) in CASES.iter().enumerate() {
        for fault in Fault::ALL {
            let is_sum = (case.strategy)() == Strategy::replicate(["dp"]);
            if fault == Fault::Swapped && is_sum {
                continue; // a sum does not depend on which rank contributes what
            }
            let saved = dir.path().join(format!("{at} {fault:?}"));
            let found = on_ranks(case, fault, &saved);
            assert!(found.is_err() || found.is_ok_and(|it| !differences(&one, &it).is_empty()));
        }
    }
}
