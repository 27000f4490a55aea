//! Modelled links in simulated time.

use std::time::Duration;

use meshgrad_comm::{Collectives, Communicator, Local, LocalRank, Rank, Reduction};
use meshgrad_mesh::{Channel, Group, Hosts, Link, LinkCosts};
use meshgrad_runtime::{DType, Error, Result, Tensor, ops};

/// 1 us per launch, 1 us and 1 ms per MiB within a host, 10 us and 10 ms across hosts.
const COSTS: LinkCosts = LinkCosts {
    launch_ns: 1_000,
    within: Link { latency_ns: 1_000, ns_per_mib: 1_000_000 },
    across: Link { latency_ns: 10_000, ns_per_mib: 10_000_000 },
};

const MIB: usize = 1 << 18; // f32 elements

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// The time of `main` on each rank of a world with two ranks per host.
fn times(ranks: usize, main: impl Fn(&LocalRank) -> Result<()> + Sync) -> Vec<Duration> {
    let local = Local::new(ranks).threads(1).links(COSTS, Hosts::Uniform(2)).simulated(1);
    let times = local.launch(|rank| {
        main(rank)?;
        Ok::<_, Error>(rank.clock().now())
    });
    times.unwrap()
}

fn x(rank: &LocalRank, elements: usize) -> Result<Tensor> {
    ops::full(rank.device(), &[elements], DType::F32, 1.0)
}

#[test]
fn transfers_take_the_time_of_their_slowest_link() {
    let all_reduce = |rank: &LocalRank| -> Result<()> {
        let sum = rank.world()?.all_reduce(&x(rank, MIB)?, Reduction::Sum)?;
        assert_eq!(sum.wait()?.to_vec::<f32>()?[MIB - 1], rank.world_size() as f32);
        Ok(())
    };
    // 2 hops and 2 x 1/2 MiB.
    assert_eq!(times(2, all_reduce), [micros(1 + 2 + 1_000); 2]);
    // 6 hops and 6 x 1/4 MiB across hosts.
    assert_eq!(times(4, all_reduce), [micros(1 + 60 + 15_000); 4]);
    assert_eq!(times(1, all_reduce), [Duration::ZERO]);

    let gather = |rank: &LocalRank| -> Result<()> {
        rank.world()?.all_gather(&x(rank, MIB)?)?.wait().map(drop)
    };
    assert_eq!(times(2, gather), [micros(1 + 1 + 1_000); 2]);
    let barrier = |rank: &LocalRank| rank.world()?.barrier()?.wait();
    assert_eq!(times(2, barrier), [micros(1 + 2); 2]);
}

/// A transfer as long as the computation beside it is hidden. Waiting at once hides nothing.
#[test]
fn computation_hides_a_transfer() {
    let compute = micros(1_003);
    let overlapped = |rank: &LocalRank| -> Result<()> {
        let pending = rank.world()?.all_reduce(&x(rank, MIB)?, Reduction::Sum)?;
        rank.clock().sleep(compute);
        pending.wait().map(drop)
    };
    let serial = |rank: &LocalRank| -> Result<()> {
        let pending = rank.world()?.all_reduce(&x(rank, MIB)?, Reduction::Sum)?;
        pending.wait()?;
        rank.clock().sleep(compute);
        Ok(())
    };
    let (overlapped, serial) = (times(2, overlapped)[0], times(2, serial)[0]);
    let transfer = serial - compute;
    let exposed = overlapped - compute;
    assert!(exposed.as_secs_f64() <= 0.05 * transfer.as_secs_f64());
    assert_eq!(transfer, micros(1_003));
}

/// Two collectives of one rank share its link, on any channels; those of other ranks do not.
#[test]
fn transfers_of_a_rank_share_its_link() {
    let twice = |rank: &LocalRank| -> Result<()> {
        let group = Group::new([0, 1])?;
        let (one, other) = (
            rank.connect("one", &group)?,
            rank.connect("other", &group.with_channel(Channel::Gather))?,
        );
        let x = x(rank, MIB)?;
        let first = one.all_reduce(&x, Reduction::Sum)?;
        other.all_reduce(&x, Reduction::Sum)?.wait()?;
        first.wait().map(drop)
    };
    assert_eq!(times(2, twice), [micros(2 * 1_003); 2]);
    let pairs = |rank: &LocalRank| -> Result<()> {
        let low = rank.rank() / 2 * 2;
        let group = Group::new([low, low + 1])?;
        let pair = rank.connect("pair", &group)?;
        pair.all_reduce(&x(rank, MIB)?, Reduction::Sum)?.wait().map(drop)
    };
    assert_eq!(times(4, pairs), [micros(1_003); 4]);
}

/// Fused collectives are one message per peer: the launch and the latency are paid once.
#[test]
fn fused_collectives_pay_one_latency() {
    let sums = |comm: &dyn Communicator, x: &Tensor| -> Result<Vec<_>> {
        let sums = (0..10).map(|_| comm.all_reduce(x, Reduction::Sum));
        sums.collect()
    };
    let fused = |rank: &LocalRank| -> Result<()> {
        // A communicator of any transport fuses as its own does.
        let (world, x) = (Rank::world(rank)?, x(rank, MIB)?);
        for sum in world.fuse(|world| sums(world, &x))? {
            assert_eq!(sum.wait()?.to_vec::<f32>()?[0], 2.0);
        }
        Ok(())
    };
    let apart = |rank: &LocalRank| -> Result<()> {
        let (world, x) = (rank.world()?, x(rank, MIB)?);
        for sum in sums(&world, &x)? {
            sum.wait()?;
        }
        Ok(())
    };
    assert_eq!(times(2, fused), [micros(3 + 10_000); 2]);
    assert_eq!(times(2, apart), [micros(10 * 1_003); 2]);
}

/// The timer of real time completes transfers. Their results are the same as without links.
#[test]
fn links_work_in_real_time() {
    let local = Local::new(4).threads(1);
    let local = local.links(LinkCosts::default(), Hosts::Uniform(2));
    let sums = local.launch(|rank| -> Result<Vec<f32>> {
        let world = rank.world()?;
        let x = ops::full(rank.device(), &[100], DType::F32, rank.rank() as f64)?;
        let sums = (0..20).map(|_| world.all_reduce(&x, Reduction::Sum));
        let sums: Vec<_> = sums.collect::<Result<_>>()?;
        drop(world.all_gather(&x)?);
        let values = sums.into_iter().map(|sum| sum.wait()?.to_vec::<f32>());
        Ok(values.collect::<Result<Vec<_>>>()?.concat())
    });
    assert_eq!(sums.unwrap(), vec![vec![6.0; 2_000]; 4]);
}
