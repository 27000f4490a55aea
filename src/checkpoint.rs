//! Checkpoints of the ranks of a world.

use std::time::Duration;

use meshgrad_ckpt::ranks::Ranks;
use meshgrad_comm::{Collectives, Rank};
use meshgrad_mesh::{Group, GroupOptions};
use meshgrad_runtime::{Error, Result};

/// How long a rank waits for the others to write their shards.
const LIMIT: Duration = Duration::from_secs(3600);

/// The ranks of a world, to save a checkpoint together: threads, or processes over TCP or MPI. A step
/// of a save may take an hour; a rank that exits is noticed at once.
///
/// ```
/// use meshgrad::comm::Local;
/// use meshgrad::mesh::{Mesh, Placement, Sharding};
/// use meshgrad::prelude::*;
///
/// # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
/// let run = tempfile::tempdir()?;
/// let dir = run.path().join("saved");
/// let mesh = Mesh::new(&[2], &["tp"])?;
/// let rows = Sharding::new(&mesh, [("tp", Placement::shard(0))], &[4, 3])?;
/// Local::run(2, |rank| {
///     let weight = Param::new("weight", [4, 3], Init::Ones);
///     weight.shard(&rows, rank.rank())?;
///     weight.materialize(rank.device(), 0)?;
///     let mut ranks = meshgrad::checkpoint_ranks(rank)?;
///     meshgrad::models::folder::save_sharded(&weight, &dir, &mut ranks)?;
///     Ok::<_, Error>(())
/// })?;
/// let saved = meshgrad::ckpt::Folder::open(&dir)?;
/// assert_eq!(saved.read("weight")?.len(), 4 * 4 * 3);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`Rank::connect`].
pub fn checkpoint_ranks(rank: &dyn Rank) -> Result<Ranks<'static>> {
    let all: Vec<usize> = (0..rank.world_size()).collect();
    let mut options = GroupOptions::default();
    options.timeout = Some(LIMIT);
    let group = Group::new(all).map_err(Error::other)?;
    let all = rank.connect("checkpoint", &group.with_options(options))?;
    let gather = move |mine: &[u8]| Ok(all.all_gather_bytes(mine)?);
    Ok(Ranks::new(rank.rank(), rank.world_size(), gather))
}
