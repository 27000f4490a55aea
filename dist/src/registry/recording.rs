//! A transport that only counts, for all ranks of a world in one process.
//!
//! Its creations are meetings as real ones are: one is made when all members have begun it, and not
//! before. So what would hang a cluster stands still here, and [`Recording::open`] says who waits
//! for whom.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meshgrad_mesh::Group;

use super::connect::{Connect, Creation, Progress};
use super::key::Key;
use super::text;

/// What all ranks have done. Cheap to clone; clones are the same recording.
#[derive(Clone, Default)]
pub struct Recording {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// Who has begun, by group and generation. Stays when it is made.
    meetings: BTreeMap<Meeting, BTreeSet<usize>>,
    ranks: BTreeMap<usize, Counts>,
}

/// A group and its generation.
type Meeting = (Key, u64);

/// What one rank has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Its groups, in the order in which it began to make their communicators.
    pub begun: Vec<Group>,
    /// How many it has made.
    pub made: usize,
    /// How many of these it has dropped.
    pub dropped: usize,
}

/// A creation that some members have begun and not all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// What is made.
    pub group: Group,
    /// Who has begun.
    pub begun: Vec<usize>,
    /// Whom they wait for.
    pub absent: Vec<usize>,
}

impl Recording {
    /// Of a world in which nothing has been made.
    pub fn new() -> Recording {
        Recording::default()
    }

    /// The transport of a rank.
    pub fn of_rank(&self, rank: usize) -> Recorder {
        Recorder {
            rank,
            recording: self.clone(),
        }
    }

    /// What a rank has done.
    pub fn counts(&self, rank: usize) -> Counts {
        self.lock().ranks.get(&rank).cloned().unwrap_or_default()
    }

    /// The creations that wait for somebody.
    pub fn open(&self) -> Vec<Open> {
        let shared = self.lock();
        let meetings = shared.meetings.iter();
        let open = meetings.filter_map(|((key, _), begun)| {
            let absent = absent(&key.0, begun);
            (!absent.is_empty() && !begun.is_empty()).then(|| Open {
                group: key.0.clone(),
                begun: begun.iter().copied().collect(),
                absent,
            })
        });
        open.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn absent(group: &Group, begun: &BTreeSet<usize>) -> Vec<usize> {
    let ranks = group.ranks().iter().copied();
    let mut absent: Vec<usize> = ranks.filter(|rank| !begun.contains(rank)).collect();
    absent.sort_unstable();
    absent
}

/// The transport of one rank of a [`Recording`].
pub struct Recorder {
    rank: usize,
    recording: Recording,
}

/// A creation of a [`Recorder`]. Dropped before it is made, it is given up.
pub struct Entered {
    meeting: Meeting,
    rank: usize,
    recording: Recording,
    is_made: bool,
}

/// A communicator of a [`Recorder`].
pub struct Recorded {
    meeting: Meeting,
    rank: usize,
    recording: Recording,
}

impl Recorded {
    /// Whom it connects.
    pub fn group(&self) -> &Group {
        &self.meeting.0.0
    }

    /// Counts the communicators of its group on this rank, from 1.
    pub fn generation(&self) -> u64 {
        self.meeting.1
    }
}

/// What a registry must never do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// A communicator for nobody.
    #[error("{0} is one rank, which needs no communicator")]
    Alone(Group),
    /// A rank makes what it is no member of.
    #[error("{} is no member of {group}", text::ranks(&[*.rank]))]
    Outside {
        /// The rank.
        rank: usize,
        /// The group.
        group: Group,
    },
    /// A rank makes the same twice.
    #[error("{} makes {group} twice", text::ranks(&[*.rank]))]
    Twice {
        /// The rank.
        rank: usize,
        /// The group.
        group: Group,
    },
}

impl Connect for Recorder {
    type Communicator = Recorded;
    type Connecting = Entered;
    type Error = Misuse;

    fn begin(&mut self, creation: &Creation<'_>) -> Result<Entered, Misuse> {
        let (rank, group) = (self.rank, creation.group.clone());
        if group.is_singleton() {
            return Err(Misuse::Alone(group));
        }
        if group.index_of(rank).is_none() {
            return Err(Misuse::Outside { rank, group });
        }

        let meeting = (Key(group.clone()), creation.generation);
        let mut shared = self.recording.lock();
        let begun = shared.meetings.entry(meeting.clone()).or_default();
        if !begun.insert(rank) {
            return Err(Misuse::Twice { rank, group });
        }
        shared.ranks.entry(rank).or_default().begun.push(group);
        Ok(Entered {
            meeting,
            rank,
            recording: self.recording.clone(),
            is_made: false,
        })
    }

    fn poll(&mut self, entered: &mut Entered) -> Result<Progress<Recorded>, Misuse> {
        let mut shared = self.recording.lock();
        let absent = absent(&entered.meeting.0.0, &shared.meetings[&entered.meeting]);
        if !absent.is_empty() {
            return Ok(Progress::Waiting { absent });
        }
        shared.ranks.entry(self.rank).or_default().made += 1;
        entered.is_made = true;
        Ok(Progress::Made(Recorded {
            meeting: entered.meeting.clone(),
            rank: self.rank,
            recording: self.recording.clone(),
        }))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut shared = self.recording.lock();
        if let Some(begun) = shared.meetings.get_mut(&self.meeting)
            && !self.is_made
        {
            begun.remove(&self.rank);
        }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let mut shared = self.recording.lock();
        shared.ranks.entry(self.rank).or_default().dropped += 1;
    }
}
