//! A collective that some members have started, and how it ends.

use std::time::Duration;

use meshgrad_error::Error;
use meshgrad_runtime::Completion;

use crate::contribution::{Arrival, Tensors};

/// A collective that some members have started.
pub(super) struct Meeting {
    pub(super) completion: Completion,
    /// The time of the first call.
    pub(super) since: Duration,
    /// Whether the time of a waiting member is over.
    pub(super) is_late: bool,
    /// One per member: its call, or several that are fused.
    pub(super) places: Vec<Option<Vec<Arrival>>>,
}

impl Meeting {
    pub(super) fn new(since: Duration, members: usize) -> Meeting {
        Meeting {
            completion: Completion::default(),
            since,
            is_late: false,
            places: (0..members).map(|_| None).collect(),
        }
    }

    /// The first call, by place.
    pub(super) fn first(&self) -> Option<(usize, &[Arrival])> {
        let mut places = self.places.iter().enumerate();
        places.find_map(|(place, arrivals)| Some((place, arrivals.as_deref()?)))
    }
}

/// Collectives that have failed and whose members still wait.
#[derive(Default)]
#[must_use = "members wait until `complete` is called"]
pub(super) struct Failed(Vec<(Meeting, Error)>);

impl Failed {
    pub(super) fn push(&mut self, meeting: Meeting, error: Error) {
        self.0.push((meeting, error));
    }

    /// Returns the errors to the members that wait. Call it without a lock, because it may wait for
    /// GPUs.
    pub(super) fn complete(self) {
        let ended = self.0.into_iter().map(|(meeting, error)| {
            let arrivals = meeting.places.into_iter().flatten().flatten();
            let abandoned = release(arrivals);
            meeting.completion.complete(Err(error));
            abandoned
        });
        // All are complete before the first is freed.
        drop(ended.collect::<Vec<_>>());
    }
}

/// Gives up the tensors of a collective. Returns those whose `Pending` was dropped and that may
/// wait for a GPU when freed. Complete the collective before freeing them.
pub(super) fn release(arrivals: impl Iterator<Item = Arrival>) -> Vec<Tensors> {
    arrivals.filter_map(|one| one.contribution.release()).collect()
}
