//! All ranks of a world with their registries and a shared recording.

use std::num::NonZeroUsize;
use std::time::Duration;

use meshgrad_collectives::registry::{
    GroupPlan, Handle, PollStatus, RecordingConnector, RecordingWorld, Registry,
};
use meshgrad_mesh::Group;

/// The time of all calls, except where a test advances it.
pub(crate) const NOW: Duration = Duration::ZERO;

pub(crate) type Shared = Handle<RecordingConnector>;

pub(crate) struct World {
    pub(crate) recording: RecordingWorld,
    pub(crate) registries: Vec<Registry<RecordingConnector>>,
}

impl World {
    pub(crate) fn of(ranks: usize) -> World {
        let recording = RecordingWorld::new();
        let registry = |rank| Registry::new(rank, recording.connector(rank));
        World { registries: (0..ranks).map(registry).collect(), recording }
    }

    /// One rank requests a group.
    pub(crate) fn share(&self, rank: usize, name: &str, group: &Group) -> Option<Shared> {
        self.registries[rank].share(name, group).unwrap().handle()
    }

    /// All members of each group request it.
    pub(crate) fn share_all(&self, name: &str, groups: &[Group]) -> Vec<Shared> {
        let members =
            groups.iter().flat_map(|group| group.ranks().iter().map(move |rank| (*rank, group)));
        members.filter_map(|(rank, group)| self.share(rank, name, group)).collect()
    }

    pub(crate) fn plans(&self) -> Vec<GroupPlan> {
        self.registries.iter().map(Registry::plan).collect()
    }

    /// Compares the plans of all ranks and queues them.
    pub(crate) fn materialize(&self, at_most: usize) {
        let agreed = GroupPlan::agree_all(self.plans()).unwrap();
        let at_most = NonZeroUsize::new(at_most).unwrap();
        for (registry, agreed) in self.registries.iter().zip(&agreed) {
            registry.materialize(agreed, at_most).unwrap();
        }
    }

    /// Polls ranks in rounds, in the order that `order` returns for each round, until all are idle
    /// or a round changes nothing. Returns whether all are idle.
    pub(crate) fn run(&self, mut order: impl FnMut(usize) -> Vec<usize>) -> bool {
        let mut before: Vec<(usize, usize)> = Vec::new();
        for round in 0.. {
            let mut after = vec![(0, 0); self.registries.len()];
            for rank in order(round) {
                let status = self.poll(rank);
                after[rank] = (status.queued, status.in_flight);
            }
            if after.iter().all(|left| *left == (0, 0)) {
                return true;
            }
            if after == before {
                return false;
            }
            before = after;
        }
        unreachable!("the loop is endless")
    }

    pub(crate) fn poll(&self, rank: usize) -> PollStatus {
        let status = self.registries[rank].poll(NOW);
        assert_eq!(status.failed, [], "rank {rank}");
        status
    }

    /// Polls all ranks in order.
    pub(crate) fn run_in_order(&self) -> bool {
        self.run(|_| (0..self.registries.len()).collect())
    }
}

pub(crate) fn group(ranks: &[usize]) -> Group {
    Group::new(ranks).unwrap()
}

/// Wraps a message at 90 columns for snapshots.
pub(crate) fn folded(message: impl ToString) -> String {
    let mut lines = vec![String::new()];
    for word in message.to_string().split(' ') {
        let line = lines.last_mut().unwrap();
        if line.len() + 1 + word.len() > 90 {
            lines.push(word.to_owned());
        } else {
            *line = format!("{line} {word}").trim_start().to_owned();
        }
    }
    lines.join("\n")
}
