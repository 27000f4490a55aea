//! Checkpoints of the ranks of a world.

use meshgrad_ckpt::ranks::Ranks;
use meshgrad_comm::Rank;
use meshgrad_runtime::Result;

use super::LIMIT;

/// The control channel of checkpoints, which are written beside training.
const CHECKPOINT: u16 = 1;

/// The ranks of a world, to save a checkpoint together: threads, or processes over TCP or MPI. A step
/// of a save may take an hour; a rank that exits is noticed at once.
///
/// ```
/// use meshgrad_autograd::{Init, Module, Param};
/// use meshgrad_comm::{Local, Rank};
/// use meshgrad_mesh::{Mesh, Placement, Sharding};
/// use meshgrad_models::folder;
/// use meshgrad_runtime::Error;
/// use meshgrad_train::ranks::checkpoint_ranks;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let run = tempfile::tempdir()?;
/// let dir = run.path().join("saved");
/// let mesh = Mesh::new(&[2], &["tp"])?;
/// let rows = Sharding::new(&mesh, [("tp", Placement::shard(0))], &[4, 3])?;
/// Local::run(2, |rank| {
///     let weight = Param::new("weight", [4, 3], Init::Ones);
///     weight.shard(&rows, rank.rank())?;
///     weight.materialize(rank.device(), 0)?;
///     folder::save_sharded(&weight, &dir, &mut checkpoint_ranks(rank)?)?;
///     Ok::<_, Error>(())
/// })?;
/// let saved = meshgrad_ckpt::Folder::open(&dir)?;
/// assert_eq!(saved.read("weight")?.len(), 4 * 4 * 3);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`Rank::control`].
pub fn checkpoint_ranks(rank: &dyn Rank) -> Result<Ranks<'static>> {
    let control = rank.control(CHECKPOINT, LIMIT)?;
    let gather = move |mine: &[u8]| Ok(control.all_gather(mine)?);
    Ok(Ranks::new(rank.rank(), rank.world_size(), gather))
}
