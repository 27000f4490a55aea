//! Messages between ranks, beside their tensors.

use std::sync::Arc;
use std::time::Duration;

use meshgrad_error::ensure;
use meshgrad_mesh::{Channel, Group, GroupOptions};
use meshgrad_runtime::{Pending, Result, Tensor};

use crate::collectives::Collectives;
use crate::communicator::Communicator;
use crate::ticket::Reduction;

/// The control channel of a rank: flags, names, fingerprints, verdicts and other bytes for all
/// ranks.
///
/// Messages stay in host memory, whatever the rank's device. They pass tensor collectives that wait,
/// and arrive when one has failed: if ranks wait for each other in a tensor collective and here, the
/// tensor collective fails and the call here goes on. All ranks make the same calls in the same
/// order. A call fails after the limit of [`Rank::control`](crate::Rank::control), with a
/// [`Verdict`](crate::Verdict) on who is missing.
///
/// ```
/// # use meshgrad_collectives::{ControlChannel, Rank, Result};
/// # fn names(rank: &dyn Rank, host: &str) -> Result<Vec<String>> {
/// let control = rank.control(0, std::time::Duration::from_secs(60))?;
/// let names = control.all_gather(host.as_bytes())?;
/// let names = names.iter().map(|name| String::from_utf8_lossy(name).into_owned());
/// # Ok(names.collect())
/// # }
/// ```
#[derive(Clone)]
pub struct ControlChannel {
    /// `None` if other ranks send nothing.
    ranks: Option<Arc<dyn Communicator>>,
    count: usize,
}

impl ControlChannel {
    /// Channel `number` of `count` ranks, on which calls wait at most `limit`. `connect` returns the
    /// communicator of all ranks, whose device is a CPU.
    ///
    /// # Errors
    /// When the device is a GPU; those of `connect`.
    pub fn of(
        count: usize,
        number: u16,
        limit: Duration,
        connect: impl FnOnce(&Group) -> Result<Arc<dyn Communicator>>,
    ) -> Result<ControlChannel> {
        if count == 1 {
            return Ok(ControlChannel::echo(1));
        }
        let mut options = GroupOptions::default();
        options.timeout = Some(limit);
        let all = Group::new((0..count).collect::<Vec<_>>())?;
        let ranks = connect(&all.with_channel(Channel::Control(number)).with_options(options))?;
        ensure!(
            !ranks.device().is_gpu(),
            Unsupported,
            "the control channel of {count} ranks is on {}, but its messages stay on the host: implement \
             `Rank::control` over a communicator of a CPU",
            ranks.device()
        );
        Ok(ControlChannel { ranks: Some(ranks), count })
    }

    /// A channel that takes the messages of this rank for those of all `count` ranks: for a single
    /// rank, and for a plan.
    pub fn echo(count: usize) -> ControlChannel {
        ControlChannel { ranks: None, count }
    }

    /// Sends `mine` to all ranks, and waits for the messages of ranks 0, 1, .., which may have any
    /// lengths.
    ///
    /// # Errors
    /// When a rank is missing after the limit, or has failed.
    #[track_caller]
    pub fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let Some(ranks) = &self.ranks else {
            return Ok(vec![mine.to_vec(); self.count]);
        };
        let length = Tensor::from_slice(ranks.device(), &[1], &[mine.len() as i64])?;
        let lengths = ranks.all_gather(&length)?.wait()?.to_vec::<i64>()?;
        let lengths: Vec<usize> = lengths.into_iter().map(|it| it as usize).collect();
        let mine = Tensor::from_slice(ranks.device(), &[mine.len()], mine)?;
        let mut left = ranks.all_gather_rows(&mine, &lengths)?.wait()?.to_vec()?;
        let messages = lengths.iter().map(|length| {
            let later = left.split_off(*length);
            std::mem::replace(&mut left, later)
        });
        Ok(messages.collect())
    }

    /// The message of rank `root`, on all ranks. `mine` is only read there.
    ///
    /// # Errors
    /// When there is no such rank; as [`ControlChannel::all_gather`].
    #[track_caller]
    pub fn broadcast(&self, root: usize, mine: &[u8]) -> Result<Vec<u8>> {
        ensure!(
            root < self.count,
            Invalid,
            "there is no rank {root} of {}, whose message all receive",
            self.count
        );
        let is_root = self.ranks.as_ref().is_none_or(|ranks| ranks.index() == root);
        let sent = if is_root { mine } else { &[] };
        Ok(self.all_gather(sent)?.swap_remove(root))
    }

    /// Waits until all ranks have made this call.
    ///
    /// # Errors
    /// As [`ControlChannel::all_gather`].
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.all_gather(&[]).map(drop)
    }

    /// Starts to find out which of `flags` are set on any rank.
    ///
    /// # Errors
    /// As [`ControlChannel::all_gather`], from the [`Pending`], too.
    #[track_caller]
    pub fn any<const N: usize>(&self, flags: [bool; N]) -> Result<Pending<[bool; N]>> {
        let Some(ranks) = &self.ranks else {
            return Ok(Pending::by_host(move || Ok(flags)));
        };
        let own = Tensor::from_slice(ranks.device(), &[N], &flags.map(u8::from))?;
        let sent = ranks.all_reduce(&own, Reduction::Max)?;
        Ok(Pending::by_host(move || {
            let any = sent.wait()?.to_vec::<u8>()?;
            let mut flags = flags;
            for (flag, any) in flags.iter_mut().zip(any) {
                *flag |= any > 0;
            }
            Ok(flags)
        }))
    }
}
