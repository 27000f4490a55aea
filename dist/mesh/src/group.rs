//! Groups of ranks: who communicates with whom, as a value.
//!
//! A group creates nothing. What it would communicate through is decided by what it *is*: its ranks
//! in their order, its channel and its options. Equal groups are one, whoever made them.

use std::fmt;
use std::sync::Arc;

use crate::{GroupOptions, MAX_RANKS, MeshError, Result, text};

/// Ranks in order, with the channel and the options of their communication. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    ranks: Arc<[usize]>,
    channel: Channel,
    options: Arc<GroupOptions>,
}

impl Group {
    /// A group of these ranks in this order, on the main channel with the default options.
    ///
    /// # Errors
    /// [`MeshError::EmptyGroup`], [`MeshError::MemberTwice`], [`MeshError::MemberTooLarge`].
    pub fn new(ranks: impl Into<Arc<[usize]>>) -> Result<Group> {
        let ranks = ranks.into();
        check_members(&ranks)?;
        Ok(Group::from_distinct(ranks))
    }

    /// A group of these ranks in this order, on the main channel with the default options. The ranks
    /// must be distinct: [`Mesh::group`](crate::Mesh::group) makes them so.
    pub(crate) fn from_distinct(ranks: impl Into<Arc<[usize]>>) -> Group {
        Group {
            ranks: ranks.into(),
            channel: Channel::default(),
            options: Arc::default(),
        }
    }

    /// Its ranks, in order.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// How many ranks.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Never: a group has ranks.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Whether it is one rank, which has nobody to communicate with.
    pub fn is_singleton(&self) -> bool {
        self.ranks.len() == 1
    }

    /// Where in it a rank stands, if it is a member.
    pub fn index_of(&self, rank: usize) -> Option<usize> {
        self.ranks.iter().position(|member| *member == rank)
    }

    /// Which of the communicators between these ranks.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// How its communicator is to be made.
    pub fn options(&self) -> &GroupOptions {
        &self.options
    }

    /// The same ranks on another channel: another communicator, that runs beside this one.
    pub fn with_channel(mut self, channel: Channel) -> Group {
        self.channel = channel;
        self
    }

    /// The same ranks with other options, in their [normal form](GroupOptions::normalized): options
    /// that mean the same make equal groups.
    pub fn with_options(mut self, options: GroupOptions) -> Group {
        self.options = Arc::new(options.normalized());
        self
    }
}

fn check_members(ranks: &[usize]) -> Result<()> {
    let mut members: Vec<(usize, usize)> = ranks.iter().copied().zip(0..).collect();
    members.sort_unstable();
    let twice = members.windows(2).find(|pair| pair[0].0 == pair[1].0);

    match (members.last(), twice) {
        (None, _) => Err(MeshError::EmptyGroup),
        (Some((rank, _)), _) if *rank >= MAX_RANKS => {
            Err(MeshError::MemberTooLarge { rank: *rank })
        }
        (_, Some(pair)) => Err(MeshError::MemberTwice {
            rank: pair[0].0,
            first: pair[0].1,
            second: pair[1].1,
        }),
        _ => Ok(()),
    }
}

/// `[0, 1] on channel gather with timeout 10s`; nothing is said of what is the default.
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

/// Which of several communicators between the same ranks. Collectives of one communicator run one
/// after the other; what shall overlap takes another channel, and pays for it with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Channel {
    /// What needs nothing of its own.
    #[default]
    Main,
    /// Gathering weights.
    Gather,
    /// Reducing gradients.
    Reduce,
    /// Sending to the next pipeline stage.
    Forward,
    /// Sending to the previous pipeline stage.
    Backward,
    /// Tokens to their experts and back.
    Dispatch,
    /// A user's own.
    Own(u16),
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
        }
    }
}
