//! One main function for ranks that are threads, and for ranks that are processes.

use std::error::Error as StdError;

use meshgrad_collectives::Rank;
use meshgrad_error::{FailedRank, error};
use meshgrad_runtime::Result;

use crate::launch::Environment;
use crate::{Local, ProcessRank};

/// Runs `main` on each rank. Without a launcher these are `ranks` threads ([`Local::run`]), and the
/// results are those of all ranks, in rank order. If a launcher started this process, such as
/// `meshgrad launch`, torchrun, mpirun or srun, it is one of the launcher's ranks, and the result is
/// its own.
///
/// ```
/// use meshgrad_comm::{Collectives, Rank, Reduction, ranks};
/// use meshgrad_runtime::Tensor;
///
/// # fn main() -> meshgrad_runtime::Result<()> {
/// let sums = ranks::run(4, |rank| {
///     let x = Tensor::scalar(rank.device(), rank.rank() as f32)?;
///     rank.world()?.all_reduce(&x, Reduction::Sum)?.wait()?.item::<f32>()
/// })?;
/// assert_eq!(sums[0], 6.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`Local::run`] and [`ProcessRank::from_env`]. When this process's rank fails, the other ranks
/// fail with its error.
pub fn run<T, E>(ranks: usize, main: impl Fn(&dyn Rank) -> Result<T, E> + Sync) -> Result<Vec<T>>
where
    T: Send,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    if Environment::read()?.is_none() {
        return Local::run(ranks, |rank| main(rank));
    }
    let world = ProcessRank::from_env()?;
    let device = world.device().clone();
    let source = match device.run(|| main(&world)) {
        Ok(value) => return Ok(vec![value]),
        Err(error) => error.into(),
    };
    let failed = FailedRank { rank: world.rank(), reason: source.to_string() };
    let error = error!(PeerFailed, "rank {}: {}", failed.rank, failed.reason);
    // It may have failed because another rank has.
    let first = world.failure().unwrap_or_else(|| failed.clone());
    world.fail_with(first);
    Err(error.caused_by(source).and_details(failed))
}
