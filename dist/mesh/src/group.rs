//! Groups of ranks that communicate with each other, as values.
//!
//! A group creates no communicator. Its ordered ranks, channel and options identify the
//! communicator: equal groups share one.

use std::fmt;
use std::sync::Arc;

use meshgrad_error::{Error, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::{GroupOptions, MAX_RANKS, text};

/// Ordered ranks with the channel and options of their communicator. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "Plain", try_from = "Plain")]
pub struct Group {
    ranks: Arc<[usize]>,
    channel: Channel,
    options: Arc<GroupOptions>,
}

impl Group {
    /// A group of these ranks in this order, on the main channel with the default options.
    ///
    /// # Errors
    /// For no ranks, a rank that is listed twice, and a rank that is not below [`MAX_RANKS`].
    pub fn new(ranks: impl Into<Arc<[usize]>>) -> Result<Group> {
        let ranks = ranks.into();
        check_members(&ranks)?;
        Ok(Group::from_distinct(ranks))
    }

    /// [`Group::new`] for ranks that are known to be valid and distinct.
    pub(crate) fn from_distinct(ranks: impl Into<Arc<[usize]>>) -> Group {
        Group { ranks: ranks.into(), channel: Channel::default(), options: Arc::default() }
    }

    /// The ranks, in order.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// The number of ranks.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Always false: a group has at least one rank.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Whether the group has a single rank and needs no communication.
    pub fn is_singleton(&self) -> bool {
        self.ranks.len() == 1
    }

    /// The index of a rank; `None` if it is not a member.
    pub fn index_of(&self, rank: usize) -> Option<usize> {
        self.ranks.iter().position(|member| *member == rank)
    }

    /// The channel: one of several communicators between these ranks.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// The options of its communicator.
    pub fn options(&self) -> &GroupOptions {
        &self.options
    }

    /// The same ranks on another channel: a separate communicator that runs concurrently.
    pub fn with_channel(mut self, channel: Channel) -> Group {
        self.channel = channel;
        self
    }

    /// The same ranks with other options, [normalized](GroupOptions::normalized) so that equivalent
    /// options give equal groups.
    pub fn with_options(mut self, options: GroupOptions) -> Group {
        self.options = Arc::new(options.normalized());
        self
    }
}

/// The serialized form of a group, which may be invalid.
#[derive(Serialize, Deserialize)]
struct Plain {
    ranks: Vec<usize>,
    #[serde(default)]
    channel: Channel,
    #[serde(default)]
    options: GroupOptions,
}

impl From<Group> for Plain {
    fn from(group: Group) -> Plain {
        Plain {
            ranks: group.ranks.to_vec(),
            channel: group.channel,
            options: GroupOptions::clone(&group.options),
        }
    }
}

impl TryFrom<Plain> for Group {
    type Error = Error;

    fn try_from(plain: Plain) -> Result<Group> {
        let group = Group::new(plain.ranks)?.with_channel(plain.channel);
        Ok(group.with_options(plain.options))
    }
}

fn check_members(ranks: &[usize]) -> Result<()> {
    let mut members: Vec<(usize, usize)> = ranks.iter().copied().zip(0..).collect();
    members.sort_unstable();
    let twice = members.windows(2).find(|pair| pair[0].0 == pair[1].0);

    let Some((largest, _)) = members.last() else {
        bail!(Invalid, "a group has no ranks: it needs at least one");
    };
    ensure!(
        *largest < MAX_RANKS,
        Invalid,
        "a group has rank {largest}, but ranks are below {MAX_RANKS}"
    );
    if let Some([(rank, first), (_, second)]) = twice {
        bail!(
            Invalid,
            "rank {rank} is member {first} of a group and again member {second}: list each rank once"
        );
    }
    Ok(())
}

/// `[0, 1] on channel gather with timeout 10s`; defaults are omitted.
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", text::ranks(&self.ranks))?;
        match self.channel {
            Channel::Main => {}
            channel => write!(f, " on channel {channel}")?,
        }
        for (at, (option, value)) in self.options.non_default().iter().enumerate() {
            let before = if at == 0 { " with" } else { "," };
            write!(f, "{before} {option} {value}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({self})")
    }
}

/// Distinguishes communicators between the same ranks. Collectives of one communicator run one
/// after another; collectives that should overlap need different channels, which cost memory.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum Channel {
    /// Everything without a dedicated channel.
    #[default]
    Main,
    /// Gathers of weights.
    Gather,
    /// Reductions of gradients.
    Reduce,
    /// Sends to the next pipeline stage.
    Forward,
    /// Sends to the previous pipeline stage.
    Backward,
    /// Dispatch of tokens to experts and back.
    Dispatch,
    /// User-defined.
    Own(u16),
    /// Messages beside tensors. They still arrive when a collective of tensors has failed.
    Control(u16),
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Channel::Main => f.write_str("main"),
            Channel::Gather => f.write_str("gather"),
            Channel::Reduce => f.write_str("reduce"),
            Channel::Forward => f.write_str("forward"),
            Channel::Backward => f.write_str("backward"),
            Channel::Dispatch => f.write_str("dispatch"),
            Channel::Own(number) => write!(f, "own {number}"),
            Channel::Control(number) => write!(f, "control {number}"),
        }
    }
}
