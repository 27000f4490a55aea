//! A transport that only counts, for all ranks of a world in one process.
//!
//! Its creations are meetings as real ones are: one is made when all members have started it, and not
//! before. So what would hang a cluster stands still here, and [`RecordingWorld::pending`] says who waits
//! for whom.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meshgrad_mesh::Group;

use super::connect::{Connect, Creation, Progress};
use super::key::Key;
use super::text;

/// What all ranks have done. Cheap to clone; clones are the same recording.
#[derive(Clone, Default)]
pub struct RecordingWorld {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// Who has started, by group and generation. Stays when it is made.
    meetings: BTreeMap<Meeting, BTreeSet<usize>>,
    ranks: BTreeMap<usize, Counts>,
}

/// A group and its generation.
type Meeting = (Key, u64);

/// What one rank has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Its groups, in the order in which it began to make their communicators.
    pub started: Vec<Group>,
    /// How many it has made.
    pub created: usize,
    /// How many of these it has dropped.
    pub dropped: usize,
}

/// A creation that some members have started and not all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingCreation {
    /// What is made.
    pub group: Group,
    /// Who has started.
    pub started: Vec<usize>,
    /// Whom they wait for.
    pub missing: Vec<usize>,
}

impl RecordingWorld {
    /// Of a world in which nothing has been made.
    pub fn new() -> RecordingWorld {
        RecordingWorld::default()
    }

    /// The transport of a rank.
    pub fn connector(&self, rank: usize) -> RecordingConnector {
        RecordingConnector {
            rank,
            recording: self.clone(),
        }
    }

    /// What a rank has done.
    pub fn counts(&self, rank: usize) -> Counts {
        self.lock().ranks.get(&rank).cloned().unwrap_or_default()
    }

    /// The creations that wait for somebody.
    pub fn pending(&self) -> Vec<PendingCreation> {
        let shared = self.lock();
        let meetings = shared.meetings.iter();
        let open = meetings.filter_map(|((key, _), started)| {
            let missing = missing(&key.0, started);
            (!missing.is_empty() && !started.is_empty()).then(|| PendingCreation {
                group: key.0.clone(),
                started: started.iter().copied().collect(),
                missing,
            })
        });
        open.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn missing(group: &Group, started: &BTreeSet<usize>) -> Vec<usize> {
    let ranks = group.ranks().iter().copied();
    let mut missing: Vec<usize> = ranks.filter(|rank| !started.contains(rank)).collect();
    missing.sort_unstable();
    missing
}

/// The transport of one rank of a [`RecordingWorld`].
pub struct RecordingConnector {
    rank: usize,
    recording: RecordingWorld,
}

/// A creation of a [`RecordingConnector`]. Dropped before it is made, it is given up.
pub struct RecordedCreation {
    meeting: Meeting,
    rank: usize,
    recording: RecordingWorld,
    is_made: bool,
}

/// A communicator of a [`RecordingConnector`].
pub struct RecordedCommunicator {
    meeting: Meeting,
    rank: usize,
    recording: RecordingWorld,
}

impl RecordedCommunicator {
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
    Singleton(Group),
    /// A rank makes what it is no member of.
    #[error("{} is no member of {group}", text::ranks(&[*.rank]))]
    NotMember {
        /// The rank.
        rank: usize,
        /// The group.
        group: Group,
    },
    /// A rank makes the same twice.
    #[error("{} makes {group} twice", text::ranks(&[*.rank]))]
    Duplicate {
        /// The rank.
        rank: usize,
        /// The group.
        group: Group,
    },
}

impl Connect for RecordingConnector {
    type Communicator = RecordedCommunicator;
    type Connecting = RecordedCreation;
    type Error = Misuse;

    fn begin(&mut self, creation: &Creation<'_>) -> Result<RecordedCreation, Misuse> {
        let (rank, group) = (self.rank, creation.group.clone());
        if group.is_singleton() {
            return Err(Misuse::Singleton(group));
        }
        if group.index_of(rank).is_none() {
            return Err(Misuse::NotMember { rank, group });
        }

        let meeting = (Key(group.clone()), creation.generation);
        let mut shared = self.recording.lock();
        let started = shared.meetings.entry(meeting.clone()).or_default();
        if !started.insert(rank) {
            return Err(Misuse::Duplicate { rank, group });
        }
        shared.ranks.entry(rank).or_default().started.push(group);
        Ok(RecordedCreation {
            meeting,
            rank,
            recording: self.recording.clone(),
            is_made: false,
        })
    }

    fn poll(
        &mut self,
        entered: &mut RecordedCreation,
    ) -> Result<Progress<RecordedCommunicator>, Misuse> {
        let mut shared = self.recording.lock();
        let missing = missing(&entered.meeting.0.0, &shared.meetings[&entered.meeting]);
        if !missing.is_empty() {
            return Ok(Progress::Waiting { missing });
        }
        shared.ranks.entry(self.rank).or_default().created += 1;
        entered.is_made = true;
        Ok(Progress::Ready(RecordedCommunicator {
            meeting: entered.meeting.clone(),
            rank: self.rank,
            recording: self.recording.clone(),
        }))
    }
}

impl Drop for RecordedCreation {
    fn drop(&mut self) {
        let mut shared = self.recording.lock();
        if let Some(started) = shared.meetings.get_mut(&self.meeting)
            && !self.is_made
        {
            started.remove(&self.rank);
        }
    }
}

impl Drop for RecordedCommunicator {
    fn drop(&mut self) {
        let mut shared = self.recording.lock();
        shared.ranks.entry(self.rank).or_default().dropped += 1;
    }
}
