//! The ranks of a run, as one of them sees them: what they decide together, and how the model and the
//! batches are divided (`division.rs`).
//!
//! Each rank runs the same program. Ranks agree on every decision that affects which collectives
//! follow. Rank 0 reads the run folder and broadcasts what it found ([`RunRanks::broadcast`]); an
//! error on one rank ends all ([`RunRanks::agree`]); so does a request to stop. A single rank is a
//! world of one: the same calls send nothing.

mod batch_part;
mod checkpoint;
mod division;
mod equal;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use meshgrad_ckpt::ranks::Ranks;
use meshgrad_comm::{
    CommStats, ControlChannel, Rank, Recording, Redistributor, TracedRank, Verdict,
};
use meshgrad_dist::parallel::{ParallelConfig, ParallelState};
use meshgrad_error::{FailedRank, bail, ensure, error};
use meshgrad_models::{Model, TokenBatch};
use meshgrad_runtime::{Pending, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::{Config, Degree};
use crate::pipeline::Pipeline;
use crate::{Error, Result};
pub(crate) use batch_part::BatchPart;
pub use checkpoint::checkpoint_ranks;
use division::Division;
pub use equal::check_equal;
pub(crate) use equal::weigh;

/// How long ranks wait for one that prepares the data or writes a checkpoint. A rank that exits is
/// detected immediately.
const LIMIT: Duration = Duration::from_secs(3600);

/// The ranks of a run.
#[derive(Clone)]
pub struct RunRanks<'r> {
    rank: &'r dyn Rank,
    /// The rank as training sees it. Messages and checkpoints are not counted.
    traced: Arc<TracedRank<'r>>,
    control: ControlChannel,
    division: Division,
}

impl<'r> RunRanks<'r> {
    /// The ranks of the world of `rank`, with the degrees of `config.parallel`.
    ///
    /// # Errors
    /// When the degrees do not fit the number of ranks, or sequences cannot be divided.
    pub fn new(rank: &'r dyn Rank, config: &Config) -> Result<RunRanks<'r>> {
        let division = division(config, rank.world_size(), rank.rank())?;
        RunRanks::with_division(rank, division)
    }

    /// The ranks of the world of `rank`, which `state` divides. Its degrees and order take the place of
    /// those of `config.parallel`, whose other keys count. One world can have several.
    ///
    /// # Errors
    /// As [`RunRanks::new`]; when the state has other ranks than the world; when `config.parallel`
    /// contradicts it.
    pub fn of_state(
        rank: &'r dyn Rank,
        state: &ParallelState,
        config: &Config,
    ) -> Result<RunRanks<'r>> {
        check_state(state, config, rank.world_size())?;
        RunRanks::with_division(rank, Division::new(state, config, rank.rank())?)
    }

    fn with_division(rank: &'r dyn Rank, division: Division) -> Result<RunRanks<'r>> {
        let (traced, control) = (Arc::new(TracedRank::new(rank)), rank.control(0, LIMIT)?);
        Ok(RunRanks { rank, traced, control, division })
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank.rank()
    }

    /// The number of ranks.
    pub fn count(&self) -> usize {
        self.rank.world_size()
    }

    /// The number of ranks and the mesh; `None` for a single rank.
    pub(crate) fn title(&self) -> Option<String> {
        let title = || format!("{}: {}", self.count(), self.division.title());
        (self.count() > 1).then(title)
    }

    /// Whether this is rank 0, which owns the run folder and reports.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Calls `body` as this rank of the mesh on which the model computes. Tensors of a single rank
    /// have no sharding.
    ///
    /// # Errors
    /// Those of `body`; as [`Redistributor::run_on`].
    pub fn on_mesh<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.count() {
            1 => body(),
            _ => Redistributor::new(&*self.traced).run_on(self.division.mesh(), body),
        }
    }

    /// The ranks of a checkpoint that all write.
    ///
    /// # Errors
    /// As [`checkpoint_ranks`].
    pub(crate) fn of_checkpoint(&self) -> Result<Ranks<'static>> {
        checkpoint_ranks(self.rank)
    }

    /// What this rank has communicated so far to train; `None` for a single rank.
    pub fn stats(&self) -> Option<CommStats> {
        (self.count() > 1).then(|| self.traced.stats())
    }

    /// Starts to record what this rank computes and communicates.
    ///
    /// # Errors
    /// As [`TracedRank::record`].
    pub(crate) fn record(&self) -> Result<Recording> {
        self.traced.record()
    }

    /// Gives the parameters of `model`, which need no values yet, their shardings and homes. With a
    /// pipeline, returns the part of the model that this rank has.
    ///
    /// # Errors
    /// When the model does not support the parallelism, or does not fit it.
    pub fn divide<M>(&self, model: &M) -> Result<Option<(M, Pipeline<M::Stream>)>>
    where
        M: Model<Batch = TokenBatch>,
    {
        self.division.divide(model, &*self.traced)
    }

    /// Calls `body`, which generates text with `model`.
    ///
    /// # Errors
    /// Those of `body`; as [`RunRanks::divide`].
    pub(crate) fn decode<T>(
        &self,
        model: &impl Model,
        body: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.division.with_whole_sequences(model, body)
    }

    /// The number of ranks that divide each sequence by head and tail.
    pub(crate) fn context_ranks(&self) -> usize {
        self.division.context_ranks()
    }

    /// This rank's part of a batch of `rows` sequences.
    ///
    /// # Errors
    /// When the rows cannot be divided.
    pub(crate) fn part_of_batch(&self, rows: usize, seq_len: usize) -> Result<BatchPart> {
        self.division.part_of_batch(rows, seq_len)
    }

    /// This rank's part of `batch` [rows, tokens], which all ranks have whole.
    ///
    /// # Errors
    /// For a tensor of other dims; when the rows cannot be divided.
    pub fn own_part(&self, batch: &Tensor) -> Result<Tensor> {
        let [rows, tokens] = batch.shape()[..] else {
            bail!(Invalid, "own_part: {batch} is no batch; pass [rows, tokens]");
        };
        self.part_of_batch(rows, tokens)?.of_whole(batch)
    }

    /// The number of parts that a batch is divided into.
    pub fn batch_parts(&self) -> usize {
        self.division.batch_parts()
    }

    /// The number of sequences to pad a batch of `rows` to before it can be divided.
    pub(crate) fn padded(&self, rows: usize) -> usize {
        self.division.padded(rows)
    }

    /// As [`check_equal`], on the ranks of this run.
    pub(crate) fn check_equal(&self, settings: &impl Serialize) -> Result<Vec<String>> {
        check_equal(self.rank, settings)
    }

    /// The values of all ranks, in rank order. All ranks make this call.
    ///
    /// # Errors
    /// When ranks cannot communicate.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>> {
        let mine = serde_json::to_vec(mine).map_err(of_json)?;
        let all = self.control.all_gather(&mine)?;
        let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(of_json);
        all.iter().map(read).collect()
    }

    /// `result`, if no rank has failed. All ranks make this call.
    ///
    /// # Errors
    /// That of the first rank that failed, on the others with [`FailedRank`].
    pub fn agree<T>(&self, result: Result<T>) -> Result<T> {
        match self.first_failure(&result) {
            Ok(Some((rank, message))) if rank != self.rank() => Err(on_rank(rank, &message)),
            Ok(_) => result,
            // The exchange may have failed as a consequence.
            Err(error) => result.and(Err(error)),
        }
    }

    /// The first rank whose `result` is an error, and its message. Errors of collectives count after
    /// others, of which they may be consequences. All ranks make this call.
    ///
    /// # Errors
    /// When ranks cannot communicate.
    pub(crate) fn first_failure<T>(&self, result: &Result<T>) -> Result<Option<(usize, String)>> {
        let error = result.as_ref().err();
        let own = error.map(|error| (Verdict::of(error).is_some(), error.to_string()));
        let all = self.gather(&own)?.into_iter().enumerate();
        let failed = all.filter_map(|(rank, it)| it.map(|(is_verdict, it)| (is_verdict, rank, it)));
        Ok(failed.min().map(|(_, rank, message)| (rank, message)))
    }

    /// What all ranks have read, or the damage that the first of them sees. All ranks make this call.
    ///
    /// # Errors
    /// As [`RunRanks::agree`].
    pub(crate) fn agree_on_damage<T>(
        &self,
        read: Result<Result<T, String>>,
    ) -> Result<Result<T, String>> {
        let read = self.agree(read)?;
        let problems = self.gather(&read.as_ref().err().cloned())?;
        let seen = problems.into_iter().enumerate().find_map(|(rank, it)| Some((rank, it?)));
        Ok(match seen {
            None => read,
            Some((0, problem)) => Err(problem),
            Some((rank, problem)) => Err(format!("rank {rank}: {problem}")),
        })
    }

    /// The result of `make` on rank 0, which is only called there. All ranks make this call.
    ///
    /// # Errors
    /// Those of `make`, on the other ranks with [`FailedRank`].
    pub fn broadcast<T: Serialize + DeserializeOwned>(
        &self,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let made = self.is_first().then(|| make().and_then(with_json));
        let sent = made.as_ref().map(|made| match made {
            Ok((_, json)) => Ok(json),
            Err(error) => Err(error.to_string()),
        });
        let sent = serde_json::to_vec(&sent).map_err(of_json)?;
        let received = self.control.broadcast(0, &sent);
        if let Some(made) = made {
            let (value, _) = made?; // before an error of the exchange, which may be its consequence
            return received.map(|_| value);
        }
        let value: Result<String, String> = serde_json::from_slice(&received?).map_err(of_json)?;
        let value = value.and_then(|json| {
            serde_json::from_str(&json).map_err(|error| format!("cannot read {json}: {error}"))
        });
        value.map_err(|message| on_rank(0, &message))
    }

    /// Starts to find out which of these flags are set on any rank. All ranks make this call.
    ///
    /// # Errors
    /// When the ranks cannot communicate.
    pub(crate) fn any<const N: usize>(&self, flags: [bool; N]) -> Result<Pending<[bool; N]>> {
        self.control.any(flags)
    }
}

fn with_json<T: Serialize>(value: T) -> Result<(T, String)> {
    let json = serde_json::to_string(&value).map_err(of_json)?;
    Ok((value, json))
}

fn of_json(cause: serde_json::Error) -> Error {
    error!(Malformed, "{cause}").caused_by(cause)
}

/// Checks that `ranks` ranks can train as `config` says.
///
/// # Errors
/// As [`RunRanks::new`].
pub fn check_ranks(config: &Config, ranks: usize) -> Result<()> {
    division(config, ranks, 0).map(drop)
}

/// How `ranks` ranks divide the work, as `rank`.
fn division(config: &Config, ranks: usize, rank: usize) -> Result<Division> {
    let checked = ParallelConfig::new(&config.parallel.settings(ranks));
    let checked = checked.map_err(|found| Error::from(found).context("[parallel]"))?;
    Division::new(&ParallelState::new(checked), config, rank)
}

/// Checks that `state` has all of `ranks` ranks, and that `config.parallel` does not contradict it.
fn check_state(state: &ParallelState, config: &Config, ranks: usize) -> Result<()> {
    let (own, missing) = (state.ranks().len(), (0..ranks).find(|rank| !state.contains(*rank)));
    ensure!(
        own == ranks && missing.is_none(),
        Invalid,
        "the state has {own} ranks{}, but the world has {ranks}; create it on all of them",
        missing.map_or(String::new(), |rank| format!(", without rank {rank}"))
    );
    for (kind, degree) in config.parallel.degrees() {
        let (name, of_state) = (kind.name(), state.config().degree(kind));
        let given = if let Degree::Ranks(given @ 2..) = degree { given } else { of_state };
        let problem = format!("parallel.{name} is {given}, but the state has {of_state}");
        ensure!(given == of_state, Invalid, "{problem}; leave it out");
    }
    let (order, of_state) = (&config.parallel.order, state.config().order());
    ensure!(
        order.is_empty(),
        Invalid,
        "parallel.order is {order}, but the state has an order of its own, {of_state}; leave it out"
    );
    Ok(())
}

impl fmt::Debug for RunRanks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunRanks(rank {} of {})", self.rank(), self.count())
    }
}

/// The error of rank `rank`, which failed with `reason`, on the other ranks.
pub(crate) fn on_rank(rank: usize, reason: &str) -> Error {
    let failed = FailedRank { rank, reason: reason.to_owned() };
    error!(PeerFailed, "rank {rank}: {reason}").and_details(failed)
}
