//! The same collectives as plain MPI calls.

use std::time::Instant;

use meshgrad_comm::Collective;
use meshgrad_comm::speed::{MEASURED, calls};
use mpi::collective::SystemOperation;
use mpi::point_to_point::send_receive_into;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};

pub(crate) fn measure(sizes: impl Iterator<Item = usize>) -> anyhow::Result<()> {
    let universe = mpi::initialize().ok_or_else(|| anyhow::anyhow!("MPI is initialized"))?;
    let world = universe.world();
    let sizes: Vec<usize> = sizes.collect();
    for collective in MEASURED {
        for bytes in &sizes {
            let seconds = time(&world, collective, *bytes);
            if world.rank() == 0 {
                crate::print(collective, *bytes, seconds);
            }
        }
    }
    Ok(())
}

/// As [`meshgrad_comm::speed::measure`].
fn time(world: &SimpleCommunicator, collective: Collective, bytes: usize) -> f64 {
    let ranks = world.size() as usize;
    let elements = bytes.div_ceil(4 * ranks).max(1) * ranks;
    let (mut whole, mut shard) = (vec![1f32; elements], vec![1f32; elements / ranks]);
    let mut other = vec![0f32; elements];
    let calls = calls(4 * elements);

    let mut call = || call(world, collective, &mut whole, &mut shard, &mut other);
    (0..2).for_each(|_| call());
    world.barrier();
    let began = Instant::now();
    (0..calls).for_each(|_| call());
    let own = began.elapsed().as_secs_f64() / calls as f64;
    let mut slowest = 0f64;
    world.all_reduce_into(&own, &mut slowest, SystemOperation::max());
    slowest
}

fn call(
    world: &SimpleCommunicator,
    collective: Collective,
    whole: &mut [f32],
    shard: &mut [f32],
    other: &mut [f32],
) {
    let sum = SystemOperation::sum;
    let root = world.process_at_rank(0);
    match collective {
        Collective::AllReduce => world.all_reduce_into(whole, other, sum()),
        Collective::AllGather => world.all_gather_into(shard, other),
        Collective::ReduceScatter => world.reduce_scatter_block_into(whole, shard, sum()),
        Collective::AllToAll => world.all_to_all_into(whole, other),
        Collective::Broadcast => root.broadcast_into(whole),
        Collective::Reduce if world.rank() == 0 => root.reduce_into_root(whole, other, sum()),
        Collective::Reduce => root.reduce_into(whole, sum()),
        Collective::Send => {
            let (rank, size) = (world.rank(), world.size());
            let to = world.process_at_rank((rank + 1) % size);
            let from = world.process_at_rank((rank + size - 1) % size);
            send_receive_into(whole, &to, other, &from);
        }
        _ => world.barrier(),
    }
}
