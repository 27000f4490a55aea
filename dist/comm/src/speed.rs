//! Latency and bandwidth of collectives, as nccl-tests measure them.

use std::time::Instant;

use meshgrad_collectives::{Collective, Collectives, Communicator, Reduction};
use meshgrad_runtime::{DType, Pending, Result, Tensor, ops};

/// The collectives that [`measure`] knows.
pub const MEASURED: [Collective; 7] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Send,
];

/// The time of a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: usize,
    /// The bytes of the whole tensor: of the result of an all_gather, of the operand otherwise.
    pub bytes: usize,
    /// The mean time of a call on the slowest rank.
    pub seconds: f64,
}

impl Timing {
    /// Bytes per second.
    pub fn algorithm_bandwidth(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// The bytes per second that each rank must send at least, by the definition of nccl-tests
    /// (`doc/PERFORMANCE.md`). It can be compared between different numbers of ranks.
    pub fn bus_bandwidth(&self) -> f64 {
        let ranks = self.ranks as f64;
        let share = (ranks - 1.0) / ranks;
        self.algorithm_bandwidth()
            * match self.collective {
                Collective::AllReduce => 2.0 * share,
                Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => share,
                _ => 1.0,
            }
    }
}

/// Measures a collective of f32 tensors of at least `bytes` bytes, rounded up to a row per rank.
/// Each call starts when the one before is complete. All members call this; `Send` is a ring in
/// which every rank sends and receives.
///
/// # Errors
/// The errors of the collective.
pub fn measure(
    communicator: &dyn Communicator,
    collective: Collective,
    bytes: usize,
) -> Result<Timing> {
    let ranks = communicator.size();
    let elements = bytes.div_ceil(4 * ranks).max(1) * ranks;
    let whole = ops::full(communicator.device(), &[elements], DType::F32, 1.0)?;
    let shard = ops::full(communicator.device(), &[elements / ranks], DType::F32, 1.0)?;
    let bytes = 4 * elements;
    let calls = calls(bytes);

    for _ in 0..2 {
        call(communicator, collective, &whole, &shard)?;
    }
    communicator.barrier()?.wait()?;
    let began = Instant::now();
    for _ in 0..calls {
        call(communicator, collective, &whole, &shard)?;
        communicator.device().synchronize()?; // the host does not wait for GPUs otherwise
    }
    let own = began.elapsed().as_secs_f64() / calls as f64;

    let own = Tensor::scalar(communicator.device(), own)?;
    let slowest = communicator.all_reduce(&own, Reduction::Max)?.wait()?;
    Ok(Timing { collective, ranks, bytes, seconds: slowest.item::<f64>()? })
}

/// The number of timed calls for tensors of `bytes` bytes.
pub fn calls(bytes: usize) -> usize {
    ((8 << 20) / bytes).clamp(3, 30)
}

fn call(
    communicator: &dyn Communicator,
    collective: Collective,
    whole: &Tensor,
    shard: &Tensor,
) -> Result<()> {
    let done = |pending: Pending<Tensor>| pending.wait().map(drop);
    match collective {
        Collective::AllReduce => done(communicator.all_reduce(whole, Reduction::Sum)?),
        Collective::AllGather => done(communicator.all_gather(shard)?),
        Collective::ReduceScatter => done(communicator.reduce_scatter(whole, Reduction::Sum)?),
        Collective::AllToAll => done(communicator.all_to_all(whole)?),
        Collective::Broadcast => done(communicator.broadcast(whole, 0)?),
        Collective::Reduce => {
            let reduced = communicator.reduce(whole, Reduction::Sum, 0)?;
            reduced.wait().map(drop)
        }
        Collective::Send => {
            let (index, ranks) = (communicator.index(), communicator.size());
            let (to, from) = ((index + 1) % ranks, (index + ranks - 1) % ranks);
            let (sent, received) = communicator.fuse(|together| {
                Ok((together.send(whole, to)?, together.recv(whole.shape(), DType::F32, from)?))
            })?;
            done(received)?;
            sent.wait()
        }
        _ => communicator.barrier()?.wait(),
    }
}
