//! What a pipeline runs, keeps and reports.

mod torch;
mod watched;

use std::sync::Arc;

use meshgrad_autograd::Module;
use meshgrad_comm::conformance::RewiredRank;
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_models::Model;
use meshgrad_pipeline::{Action, Costs, Named};
use meshgrad_runtime::Device;
use meshgrad_train::optimizer::Optimizer;
use meshgrad_train::pipeline::Cut;
use meshgrad_train::schedule::Schedule;

use crate::homes::step::Outcome;
use crate::matrix::cases::{self, CASES, Case, MICROBATCHES};
use crate::matrix::planted::Planted;
use crate::matrix::{Choices, batch, divided, on, on_ranks, own_stages};
use crate::small::{self, ALL_EXPERTS, Axes, DENSE};
use watched::Watched;

/// Norms and weights do not depend on the cut, since the norm has the order of the whole model.
#[test]
fn any_cut_has_the_same_bits() {
    let two = Case::new(DENSE, &[("pp", 2)], Named::Interleaved, &[1, 0, 1, 1]);
    let outcomes = CASES[..3]
        .iter()
        .chain([&two])
        .map(|case| on_ranks(case, &Choices::new(), Planted::Nothing));
    let outcomes: Vec<Outcome> = outcomes.collect::<Result<_, _>>().unwrap();
    assert!(outcomes.iter().all(|it| *it == outcomes[0]));
}

/// Each rank runs the actions of the schedule in their order, messages included. It keeps as many
/// passes as the simulator counts.
#[test]
fn ranks_run_the_schedule() {
    let alone = cases::all().into_iter().filter(|case| case.mesh.len() == 1);
    for case in alone.filter(|case| case.model == DENSE) {
        let local = Local::new(case.mesh().len()).threads(1);
        let (_, logs) = on(&case, &Choices::new(), Planted::Nothing, local).unwrap();
        let program = case.program();
        let simulation = program.simulate(&Costs::uniform(case.sizes.len())).unwrap();
        for (rank, log) in logs.iter().enumerate() {
            let actions: Vec<_> = log.iter().map(|(action, ..)| *action).collect();
            assert_eq!(actions, program.ranks()[rank], "{} rank {rank}", case.title());
            // Between its passes, a pair keeps one more.
            let kept = log.iter().map(|(action, live, pending)| {
                let pair = usize::from(matches!(action, Action::Overlapped(..)));
                [live + pair, *pending, live + pair + pending]
            });
            let expected = simulation.peak(rank);
            let peaks = kept.reduce(|a, b| [0, 1, 2].map(|at| a[at].max(b[at]))).unwrap();
            let expected = [expected.live, expected.pending, expected.total].map(|it| it as usize);
            assert_eq!(peaks, expected, "{} rank {rank}", case.title());
        }
    }
}

/// In a pair, collectives of one pass are under way while the other computes, and starts its own.
#[test]
fn a_pair_communicates_beside_computation() {
    const MESH: Axes = &[("pp", 2), ("tp", 2)];
    let sizes: &[usize] = &[0, 1, 1, 0];
    let most = [Named::DualPipeV, Named::Zbv].map(|schedule| {
        let case = Case::new(ALL_EXPERTS, MESH, schedule, sizes);
        let all = case.mesh();
        let most = Local::new(all.len()).threads(1).launch(|rank| {
            let watched = Arc::new(Watched::new(rank.connector()));
            let rank = RewiredRank::new(rank, watched.clone());
            let cut = Cut::new(&all, "pp", rank.rank(), schedule, sizes)?;
            Redistributor::new(&rank).run_on(&cut.stage_mesh()?, || {
                let mut trainer = divided(&case, &rank, &cut)?;
                let batches = (0..MICROBATCHES).map(|at| batch(&case, rank.device(), at, true));
                trainer.step(1, batches)?.wait(&trainer.model)?;
                Ok::<_, meshgrad_train::Error>(watched.most())
            })
        });
        most.unwrap()
    });
    assert_eq!(most, [vec![2; 4], vec![1; 4]]);
}

/// A rank that ends during a step is named with the action that waits for it.
#[test]
fn a_dead_stage_is_named_with_the_action() {
    let case = &CASES[1];
    let all = case.mesh();
    let failed = Local::new(all.len()).threads(1).launch(|rank| {
        let cut = Cut::new(&all, "pp", rank.rank(), case.schedule, case.sizes)?;
        Redistributor::new(rank).run_on(&cut.stage_mesh()?, || {
            let mut trainer = divided(case, rank, &cut)?;
            let batches = (0..MICROBATCHES).map(|at| match (rank.rank(), at) {
                (2, 3) => Err(meshgrad_train::Error::new(
                    meshgrad_error::Kind::Invalid,
                    "the planted fault",
                )),
                _ => Ok(batch(case, rank.device(), at, true)?),
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
    for case in [&CASES[5], &CASES[6], &CASES[15]] {
        let expected = on_ranks(case, &Choices::new(), Planted::Nothing).unwrap();
        for seed in seeds.clone() {
            let local = Local::new(case.mesh().len()).threads(1).simulated(seed);
            let (outcome, _) = on(case, &Choices::new(), Planted::Nothing, local).unwrap();
            assert!(outcome == expected, "{} with seed {seed}", case.title());
        }
    }
}

/// A loop of one's own, without a trainer, has the bits of a trainer.
#[test]
fn an_own_loop_trains_as_the_trainer() {
    let case = &CASES[6];
    let (all, config) = (case.mesh(), case.config());
    let compute = small::compute(false, case.checkpointing);
    let batches = |device: &Device, step: u64| {
        let first = step as usize * MICROBATCHES;
        let batch = |at| batch(case, device, first + at, true);
        (0..MICROBATCHES).map(batch).collect::<Vec<_>>()
    };
    Local::new(all.len())
        .threads(1)
        .launch(|rank| {
            let cut = Cut::new(&all, "pp", rank.rank(), case.schedule, case.sizes)?;
            Redistributor::new(rank).run_on(&cut.stage_mesh()?, || {
                let (device, mut trainer) = (rank.device(), divided(case, rank, &cut)?);
                let (part, pipeline) = own_stages(case, rank, &cut)?;
                let optimizer = Optimizer::new(&part, device, &config.optimizer, 1)?;
                let mut optimizer = optimizer.of_pipeline(&pipeline)?;
                let schedule = config.schedule.of_run(config.train.steps)?;
                for step in 1..=3 {
                    let done = trainer.step(step, batches(device, step))?.wait(&trainer.model)?;
                    let microbatches = batches(device, step);
                    let grads = optimizer.grads();
                    let totals =
                        pipeline.accumulate(&part, compute, microbatches, grads, device)?;
                    let rate = config.optimizer.learning_rate * schedule.factor(step);
                    let norm = optimizer.step(&totals.weight, step, rate)?;
                    if let Some(scale) = optimizer.scale() {
                        part.after_step(&totals.statistics, &scale.as_replicated()?)?;
                    }
                    assert_eq!(f64::from(norm.local().to_vec::<f32>()?[0]), done.grad_norm);
                }
                for (own, trained) in part.params().iter().zip(trainer.model.params()) {
                    let [own, trained] = [own, &trained].map(|param| param.kept_value());
                    assert_eq!(own?.local().to_vec::<f32>()?, trained?.local().to_vec::<f32>()?);
                }
                Ok::<_, meshgrad_train::Error>(())
            })
        })
        .unwrap();
}
