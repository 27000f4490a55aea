//! Exposed time in simulated time: the modelled time of a collective, less the computation beside
//! it.

use std::time::Duration;

use meshgrad_comm::{
    Collectives, CommStats, Communicator, Local, LocalRank, Rank, Reduction, TracedRank,
};
use meshgrad_mesh::{Hosts, Link, LinkCosts};
use meshgrad_runtime::{DType, Error, ErrorKind, Pending, Result, Tensor, ops};

use crate::traces::program::RANKS;
use crate::traces::stats::check_sums;

/// 1 us per launch, and 10 us and 10 ms per MiB on each link.
const COSTS: LinkCosts = LinkCosts { launch_ns: 1_000, within: LINK, across: LINK };
const LINK: Link = Link { latency_ns: 10_000, ns_per_mib: 10_000_000 };

const MIB: usize = 1 << 18; // f32 elements
const ROWS: [usize; RANKS] = [1, 0, 2];

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// What the traced ranks of a world with links return.
fn launch<T: Send>(main: impl Fn(&LocalRank, &TracedRank<'_>) -> Result<T> + Sync) -> Vec<T> {
    let local = Local::new(RANKS).threads(1);
    let local = local.links(COSTS, Hosts::Uniform(2)).simulated(1);
    local.launch(|rank| main(rank, &TracedRank::new(rank))).unwrap()
}

type Start = fn(&dyn Communicator) -> Result<Pending<Tensor>>;

/// Collectives, and the time of their rings.
const COLLECTIVES: [(Start, u64); 2] =
    [(all_reduce, 1 + 4 * 10 + 4 * 10_000), (all_gather, 1 + 2 * 10 + 4 * 10_000)];

/// 4 hops, and 4 x 1/3 of 3 MiB.
fn all_reduce(world: &dyn Communicator) -> Result<Pending<Tensor>> {
    let x = ops::full(world.device(), &[3 * MIB], DType::F32, 1.0)?;
    world.all_reduce(&x, Reduction::Sum)
}

/// 2 hops, and 2 x the largest part, of 2 MiB.
fn all_gather(world: &dyn Communicator) -> Result<Pending<Tensor>> {
    let shape = [ROWS[world.index()], MIB];
    let x = ops::full(world.device(), &shape, DType::F32, 1.0)?;
    world.all_gather_rows(&x, &ROWS)
}

/// Rank r computes for `before[r]`, starts the collective, computes for `beside[r]` and waits.
fn exposed(start: Start, before: [u64; RANKS], beside: [u64; RANKS]) -> Vec<Duration> {
    launch(|local, rank| {
        let (world, own) = (rank.world()?, rank.rank());
        let recording = rank.record()?;
        local.clock().sleep(micros(before[own]));
        let pending = start(&*world)?;
        local.clock().sleep(micros(beside[own]));
        pending.wait()?;
        let (stats, trace) = (rank.stats(), recording.finish());
        check_sums(stats, &trace).map_err(|problem| Error::new(ErrorKind::Invalid, problem))?;
        Ok(stats.exposed)
    })
}

/// A collective starts when the last rank starts it. What its ranks do not compute meanwhile is
/// exposed: all of it with no computation beside it, nothing with enough.
#[test]
fn exposed_is_the_modelled_time_without_the_computation_beside_it() {
    for (start, modelled) in COLLECTIVES {
        let cases = [
            ([0; 3], [0; 3]),
            ([0; 3], [modelled; 3]),
            ([0; 3], [modelled + 7; 3]),
            ([0; 3], [0, modelled / 2, modelled]),
            ([0, 500, 90_000], [0; 3]),
            ([0, 500, 90_000], [90_000, 20_000, modelled - 1]),
        ];
        for (before, beside) in cases {
            let end = before.into_iter().max().unwrap() + modelled;
            let left = |rank: usize| end.saturating_sub(before[rank] + beside[rank]);
            let expected: Vec<Duration> = (0..RANKS).map(|rank| micros(left(rank))).collect();
            let actual = exposed(start, before, beside);
            assert_eq!(actual, expected, "before {before:?}, beside {beside:?}");
        }
    }
}

/// The waits of collectives that started before the recording are in it.
#[test]
fn a_recording_has_the_waits_for_earlier_collectives() {
    launch(|_, rank| {
        let world = rank.world()?;
        let pending = all_reduce(&*world)?;
        let (before, recording) = (rank.stats(), rank.record()?);
        pending.wait()?;
        let (stats, trace) = (rank.stats() - before, recording.finish());
        let modelled = micros(COLLECTIVES[0].1);
        let expected = CommStats { exposed: modelled, ..CommStats::default() };
        assert_eq!(stats, expected);
        let waits: Vec<Duration> =
            trace.collectives.iter().filter_map(|span| Some(span.wait?.duration())).collect();
        assert_eq!(waits, [modelled]);
        Ok(())
    });
}
