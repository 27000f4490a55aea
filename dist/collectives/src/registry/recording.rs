//! A transport for tests: it only counts creations, and all ranks of a world are in one process.
//!
//! As with a real transport, a communicator is ready when all members have started its creation. A
//! creation that would hang a cluster stays pending here, and [`RecordingWorld::pending`] lists the
//! missing members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meshgrad_error::{Result, ensure};
use meshgrad_mesh::Group;

use super::connect::{Connect, Creation, Progress};
use super::key::Key;

/// Records the creations of all ranks. Cheap to clone; clones share the recording.
#[derive(Clone, Default)]
pub struct RecordingWorld {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// The ranks that have started each creation. Kept after the creation is complete.
    meetings: BTreeMap<Meeting, BTreeSet<usize>>,
    ranks: BTreeMap<usize, Counts>,
}

/// A group and the generation of its communicator.
type Meeting = (Key, u64);

/// Counts of one rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// The groups whose communicators the rank has started to create, in this order.
    pub started: Vec<Group>,
    /// The number of communicators that it has created.
    pub created: usize,
    /// The number of these communicators that it has dropped.
    pub dropped: usize,
}

/// A creation that only some members have started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingCreation {
    /// The group.
    pub group: Group,
    /// The members that have started it.
    pub started: Vec<usize>,
    /// The members that have not started it.
    pub missing: Vec<usize>,
}

impl RecordingWorld {
    /// A world without communicators.
    pub fn new() -> RecordingWorld {
        RecordingWorld::default()
    }

    /// The transport of a rank.
    pub fn connector(&self, rank: usize) -> RecordingConnector {
        RecordingConnector { rank, recording: self.clone() }
    }

    /// The counts of a rank.
    pub fn counts(&self, rank: usize) -> Counts {
        self.lock().ranks.get(&rank).cloned().unwrap_or_default()
    }

    /// The creations that wait for members.
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

/// A creation of a [`RecordingConnector`]. Dropping it before completion cancels it.
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
    /// Its group.
    pub fn group(&self) -> &Group {
        &self.meeting.0.0
    }

    /// The number of creations that this rank has begun for the group, including this one.
    pub fn generation(&self) -> u64 {
        self.meeting.1
    }
}

impl Connect for RecordingConnector {
    type Communicator = RecordedCommunicator;
    type Connecting = RecordedCreation;

    /// # Errors
    /// For bugs of the registry: a single rank, another rank's group, and a second creation.
    fn begin(&mut self, creation: &Creation<'_>) -> Result<RecordedCreation> {
        let (rank, group) = (self.rank, creation.group.clone());
        ensure!(
            !group.is_singleton(),
            Invalid,
            "{group} is a single rank and needs no communicator"
        );
        ensure!(group.index_of(rank).is_some(), Invalid, "rank {rank} is not a member of {group}");

        let meeting = (Key(group.clone()), creation.generation);
        let mut shared = self.recording.lock();
        let started = shared.meetings.entry(meeting.clone()).or_default();
        ensure!(started.insert(rank), Invalid, "rank {rank} creates {group} twice");
        shared.ranks.entry(rank).or_default().started.push(group);
        Ok(RecordedCreation { meeting, rank, recording: self.recording.clone(), is_made: false })
    }

    fn poll(&mut self, entered: &mut RecordedCreation) -> Result<Progress<RecordedCommunicator>> {
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
