//! What ranks compute, keep and send is what a run without data predicts.

use std::sync::Mutex;

use meshgrad_comm::{CommLog, Local, Plan, Rank, Redistributor, TracedRank};
use meshgrad_data_parallel::{Reshard, Strategy};
use meshgrad_runtime::Device;

use crate::homes::cases::{CASES, Case, DP2, DP3, MakeHomes, fsdp, replicate, zero1};
use crate::homes::step::{Result, divided, optimizer, passes};
use crate::small::{DENSE, EXPERTS};

pub(crate) const STEPS: usize = 2;

/// The costs of a rank over two steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Costs {
    /// Of the model's passes.
    pub(crate) flops: u64,
    peak: usize,
    collectives: u64,
    bytes: u64,
}

fn on_rank(case: &Case, rank: &dyn Rank) -> Result<Costs> {
    let (rank, device) = (TracedRank::new(rank), rank.device());
    Redistributor::new(&rank).run_on(&case.mesh(), || {
        let model = divided(case, &rank)?;
        let mut optimizer = optimizer(case, &model, device)?;
        let mut flops = 0;
        for step in 0..STEPS {
            let before = device.work().flops;
            let (_, weight) = passes(case, &model, optimizer.grads(), device, step)?;
            flops += device.work().flops - before;
            optimizer.step(&weight, step as u64 + 1, 0.01)?;
        }
        let stats = rank.stats();
        Ok(Costs {
            flops,
            peak: device.memory_stats().peak,
            collectives: stats.collectives,
            bytes: stats.bytes,
        })
    })
}

fn on_ranks(case: &Case) -> Vec<Costs> {
    let local = Local::new(case.mesh().len()).threads(1);
    local.launch(|rank| on_rank(case, rank)).unwrap()
}

/// The same for one rank alone, without data.
pub(crate) fn planned(case: &Case, rank: usize) -> (Costs, CommLog) {
    let costs = Mutex::new(None);
    let plan = Plan::new(case.mesh().len()).unwrap();
    let plan = plan.like(&Device::cpu_with_threads(1).unwrap());
    let log = plan.trace(rank, |rank| -> Result<()> {
        *costs.lock().unwrap() = Some(on_rank(case, rank)?);
        Ok(())
    });
    let (costs, log) = (costs.into_inner().unwrap().unwrap(), log.unwrap());
    assert_eq!(log.calls().count() as u64, costs.collectives);
    assert_eq!(log.calls().map(|call| call.bytes).sum::<u64>(), costs.bytes);
    (costs, log)
}

/// Gathered weights stay until backward.
fn kept() -> [Strategy; 2] {
    fsdp().map(|home| home.reshard(Reshard::AfterBackward))
}

pub(crate) const HOMES: [(&str, MakeHomes); 4] =
    [("replicated", replicate), ("zero1", zero1), ("fsdp", fsdp), ("fsdp without reshard", kept)];

/// Each home on two and three ranks, dense and with experts.
fn every_home() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, home) in HOMES {
        for model in [DENSE, EXPERTS] {
            for mesh in [DP2, DP3] {
                let case = Case::new(name, model, mesh, home);
                cases.extend([case, case.checkpointed()]);
            }
        }
    }
    cases
}

/// The peak of allocated memory, the bytes sent, the collectives and the FLOPs, on each rank.
#[test]
fn ranks_cost_what_a_run_without_data_predicts() {
    let mut problems = Vec::new();
    for case in every_home().iter().chain(CASES) {
        for (rank, costs) in on_ranks(case).into_iter().enumerate() {
            let (planned, _) = planned(case, rank);
            if costs != planned {
                let checkpointing = case.checkpointing;
                problems.push(format!(
                    "{case}, checkpointing {checkpointing}, rank {rank}: {costs:?}, {planned:?}"
                ));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Another home, depth of prefetching or checkpointing would be noticed.
#[test]
fn predictions_differ_between_settings() {
    for model in [DENSE, EXPERTS] {
        let of_homes = HOMES.map(|(name, home)| Case::new(name, model, DP3, home));
        let fsdp = of_homes[2];
        let mut cases = of_homes.to_vec();
        cases.extend([fsdp.checkpointed(), fsdp.prefetch(2), fsdp.prefetch(0)]);
        let costs: Vec<Costs> = cases.iter().map(|case| planned(case, 0).0).collect();
        for (at, costs_of) in costs.iter().enumerate() {
            assert!(!costs[..at].contains(costs_of), "{}: {costs:?}", cases[at]);
        }
    }
}
