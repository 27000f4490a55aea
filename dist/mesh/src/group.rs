//! Groups of ranks: who communicates with whom, as a value.
//!
//! A group creates nothing. What it would communicate through is decided by what it *is*: its ranks
//! in their order, its lane and its options. Equal groups are one, whoever made them.

use std::fmt;
use std::sync::Arc;

use crate::{GroupOptions, MAX_RANKS, MeshError, Result, text};

/// Ranks in order, with the lane and the options of their communication. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    ranks: Arc<[usize]>,
    lane: Lane,
    options: Arc<GroupOptions>,
}

impl Group {
    /// A group of these ranks in this order, on the main lane with the default options.
    ///
    /// # Errors
    /// [`MeshError::EmptyGroup`], [`MeshError::MemberTwice`], [`MeshError::MemberTooLarge`].
    pub fn of(ranks: impl Into<Arc<[usize]>>) -> Result<Group> {
        let ranks = ranks.into();
        check_members(&ranks)?;
        Ok(Group::new(ranks))
    }

    /// A group of these ranks in this order, on the main lane with the default options. The ranks
    /// must be distinct: [`Mesh::group`](crate::Mesh::group) makes them so.
    pub(crate) fn new(ranks: impl Into<Arc<[usize]>>) -> Group {
        Group {
            ranks: ranks.into(),
            lane: Lane::default(),
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
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// How its communicator is to be made.
    pub fn options(&self) -> &GroupOptions {
        &self.options
    }

    /// The same ranks on another lane: another communicator, that runs beside this one.
    pub fn on(mut self, lane: Lane) -> Group {
        self.lane = lane;
        self
    }

    /// The same ranks with other options, in their [normal form](GroupOptions::normal): options
    /// that mean the same make equal groups.
    pub fn with(mut self, options: GroupOptions) -> Group {
        self.options = Arc::new(options.normal());
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

/// `[0, 1] on lane gather with timeout 10s`; nothing is said of what is the default.
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", text::ranks(&self.ranks))?;
        match self.lane {
            Lane::Main => {}
            lane => write!(f, " on lane {lane}")?,
        }
        for (at, (option, value)) in self.options.stated().iter().enumerate() {
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
/// after the other; what shall overlap takes another lane, and pays for it with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Lane {
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

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lane::Main => f.write_str("main"),
            Lane::Gather => f.write_str("gather"),
            Lane::Reduce => f.write_str("reduce"),
            Lane::Forward => f.write_str("forward"),
            Lane::Backward => f.write_str("backward"),
            Lane::Dispatch => f.write_str("dispatch"),
            Lane::Own(number) => write!(f, "own {number}"),
        }
    }
}
