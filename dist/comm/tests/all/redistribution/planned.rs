//! What is executed is what was planned: the collectives that `Plan` logs, and the planner's bytes.

use meshgrad_collectives::{Counts, Redistribute};
use meshgrad_comm::{Collective, Local, Plan, Rank, Redistributor, check_logs};
use meshgrad_mesh::{Hosts, LinkCosts, Mesh, Redistribution, Sharding};
use meshgrad_runtime::{DType, Error, Kind, Result, Tensor};

use crate::parts::part;
use crate::redistribution::recorder::{Deviation, Executed, Recorder, logged};
use crate::redistribution::{pairs, whole};

/// What a rank executes for each pair of shardings.
fn executed(
    rank: &dyn Rank,
    pairs: &[[Sharding; 2]],
    deviation: Deviation,
) -> Result<Vec<Vec<Executed>>> {
    let recorder = Recorder::default();
    let redistributor = Redistributor::new(&recorder.on(rank, deviation));
    let each = pairs.iter().map(|[from, to]| {
        let x = part(&whole(rank.device(), from.shape()), from, rank.rank());
        redistributor.redistribute(&x, to)?;
        Ok(recorder.take())
    });
    each.collect()
}

/// The bytes of the busiest rank in one step, from the calls of all ranks. Rings pad shards to the
/// largest.
fn bytes(calls: &[&Executed]) -> u64 {
    let of_rank = |(rank, call): (usize, &&Executed)| {
        let n = call.group.len() as u64;
        let own = call.group.index_of(rank).unwrap();
        let call = &call.request.fingerprint;
        let bytes = |elements: usize| call.dtype.unwrap().bytes(elements) as u64;
        match (call.collective, &call.counts) {
            (Collective::AllGather | Collective::ReduceScatter, Counts::Ragged(counts)) => {
                (n - 1) * bytes(counts.iter().copied().max().unwrap())
            }
            (Collective::AllReduce, Counts::Even(count)) => {
                (2 * (n - 1) * bytes(*count)).div_ceil(n)
            }
            (Collective::AllToAll, Counts::Pairwise { send, recv }) => {
                let others = |counts: &[usize]| counts.iter().sum::<usize>() - counts[own];
                bytes(others(send).max(others(recv)))
            }
            other => panic!("{other:?}"),
        }
    };
    calls.iter().enumerate().map(of_rank).max().unwrap()
}

/// The first pair for which the log of `Plan`, the executed collectives and the planner's bytes
/// differ.
fn difference(mesh: &Mesh, pairs: &[[Sharding; 2]], deviation: Deviation) -> Option<String> {
    let ranks = mesh.ranks().len();
    let logs = Plan::new(ranks).unwrap().trace_all(|rank| {
        let redistributor = Redistributor::new(rank);
        for [from, to] in pairs {
            let shape = from.local_shape(rank.rank()).unwrap();
            let x = Tensor::zeros(Rank::device(rank), &shape, DType::F32, Kind::Value)?;
            redistributor.redistribute(&x.with_sharding(from, rank.rank())?, to)?;
        }
        Ok::<_, Error>(())
    });
    let logs = logs.unwrap();
    check_logs(&logs).unwrap();
    let mut planned: Vec<_> = logs.iter().map(|log| logged(log).into_iter()).collect();
    let executed = Local::run(ranks, |rank| executed(rank, pairs, deviation)).unwrap();

    let (hosts, links) = (Hosts::Uniform(ranks), LinkCosts::default());
    for (at, [from, to]) in pairs.iter().enumerate() {
        let calls: Vec<&Vec<Executed>> = executed.iter().map(|of_rank| &of_rank[at]).collect();
        for (rank, calls) in calls.iter().enumerate() {
            let planned: Vec<Executed> = planned[rank].by_ref().take(calls.len()).collect();
            if planned != **calls {
                return Some(format!("{from} to {to}: {calls:?}, but planned {planned:?}"));
            }
        }
        let plan = Redistribution::plan(from, to, 32, &hosts, &links).unwrap();
        let steps = 0..calls[0].len();
        let step = |step| bytes(&calls.iter().map(|calls| &calls[step]).collect::<Vec<_>>());
        let sent: u64 = steps.map(step).sum();
        if sent != plan.bytes() {
            return Some(format!("{from} to {to}: {sent} bytes, but planned {plan}"));
        }
    }
    let rest: Vec<_> = planned.into_iter().flatten().collect();
    (!rest.is_empty()).then(|| format!("planned, but not executed: {rest:?}"))
}

#[test]
fn logs_and_bytes_of_every_pair_on_one_axis() {
    for ranks in [2, 3, 5] {
        let mesh = Mesh::new(&[ranks], &["tp"]).unwrap();
        for shape in [&[7, 4][..], &[2, 5], &[0, 3], &[6]] {
            assert_eq!(difference(&mesh, &pairs(&mesh, shape, 1), Deviation::None), None);
        }
    }
}

#[test]
fn logs_and_bytes_of_every_pair_on_two_axes() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let pairs = pairs(&mesh, &[7, 5], 1);
    assert!(pairs.len() > 500);
    assert_eq!(difference(&mesh, &pairs, Deviation::None), None);
}

#[test]
fn logs_and_bytes_of_pairs_on_three_axes() {
    let mesh = Mesh::new(&[2, 2, 2], &["pp", "dp", "tp"]).unwrap();
    let pairs = pairs(&mesh, &[9, 3], 97);
    assert!(pairs.len() > 150);
    assert_eq!(difference(&mesh, &pairs, Deviation::None), None);
}

/// A dropped reduction and an extra gather are found.
#[test]
fn deviations_from_the_plan_are_found() {
    let mesh = Mesh::new(&[3], &["tp"]).unwrap();
    let pairs = pairs(&mesh, &[7, 4], 1);
    for deviation in [Deviation::DroppedReduction, Deviation::ExtraGather] {
        assert!(difference(&mesh, &pairs, deviation).is_some(), "{deviation:?}");
    }
}
