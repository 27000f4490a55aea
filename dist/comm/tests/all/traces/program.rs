//! A program of collectives with different numbers of rows per rank.

use meshgrad_comm::{Collectives, CommStats, Local, Plan, Rank, RankTrace, Reduction, TracedRank};
use meshgrad_mesh::Group;
use meshgrad_runtime::{DType, Error, Kind, Result, Tensor, ops};

use crate::tcp::worlds;

pub(crate) const RANKS: usize = 3;
const ROWS: [usize; RANKS] = [2, 0, 3];

/// Calls each kind of collective, some fused, some overlapping, one never waited for.
pub(crate) fn run(rank: &dyn Rank) -> Result<()> {
    let (world, own, device) = (rank.world()?, rank.rank(), rank.device());
    let x = |rows: usize| ops::full(device, &[rows, 5], DType::BF16, 1.0);
    let all: usize = ROWS.iter().sum();

    let sum = world.all_reduce(&x(4)?, Reduction::Sum)?;
    ops::exp(&x(4)?)?;
    world.all_gather_rows(&x(ROWS[own])?, &ROWS)?.wait()?;
    world.reduce_scatter_rows(&x(all)?, &ROWS, Reduction::Sum)?.wait()?;
    let sent = |from: usize, to: usize| (from + 2 * to) % 4;
    let send: Vec<usize> = (0..RANKS).map(|to| sent(own, to)).collect();
    let recv: Vec<usize> = (0..RANKS).map(|from| sent(from, own)).collect();
    let exchanged = x(send.iter().sum())?;
    world.all_to_all_rows(&exchanged, &send, &recv)?.wait()?;
    sum.wait()?;

    world.broadcast(&x(2)?, 2)?.wait()?;
    world.reduce(&x(3)?, Reduction::Max, 1)?.wait()?;
    world.gather_rows(&x(ROWS[own])?, &ROWS, 0)?.wait()?;
    let whole = (own == 2).then(|| x(all)).transpose()?;
    let scattered = world.scatter_rows(whole.as_ref(), &ROWS, &[5], DType::BF16, 2)?;
    scattered.wait()?;
    match own {
        0 => world.send(&x(6)?, 2)?.wait()?,
        2 => world.recv(&[6, 5], DType::BF16, 0)?.wait().map(drop)?,
        _ => (),
    }
    world.barrier()?.wait()?;

    let gradient = Tensor::zeros(device, &[7], DType::F32, Kind::Gradient)?;
    world.all_reduce_in_place(&gradient, Reduction::Mean)?.wait()?;
    let (one, other) = world.fuse(|world| {
        let one = world.all_reduce(&x(1)?, Reduction::Sum)?;
        Ok((one, world.all_gather(&x(2)?)?))
    })?;
    other.wait()?;
    one.wait()?;
    let alone = Group::new([own])?;
    let alone = rank.connect("alone", &alone)?;
    alone.all_reduce(&x(8)?, Reduction::Sum)?.wait()?;
    drop(world.all_gather(&x(1)?)?);
    world.barrier()?.wait()
}

/// What a rank counted and recorded.
pub(crate) type Traced = (CommStats, RankTrace);

pub(crate) fn traced(rank: &dyn Rank) -> Result<Traced> {
    let rank = TracedRank::new(rank);
    let recording = rank.record()?;
    run(&rank)?;
    let trace = recording.finish();
    Ok((rank.stats(), trace))
}

/// What the ranks of each transport counted and recorded.
pub(crate) fn on_all_transports() -> Vec<(&'static str, Vec<Traced>)> {
    let local = Local::new(RANKS).threads(1);
    let real = local.launch(|rank| traced(rank)).unwrap();
    let simulated = local.simulated(1).launch(|rank| traced(rank)).unwrap();
    let host = worlds::run(RANKS, worlds::DEADLINE, |world| traced(&world).unwrap());
    let plan = Plan::new(RANKS).unwrap();
    let planned = (0..RANKS).map(|rank| {
        let mut of_rank = None;
        let log = plan.trace(rank, |rank| {
            of_rank = Some(traced(rank)?);
            Ok::<_, Error>(())
        });
        log.unwrap();
        of_rank.unwrap()
    });
    vec![
        ("Plan", planned.collect()),
        ("Local", real),
        ("Local, simulated", simulated),
        ("Tcp", host),
    ]
}
