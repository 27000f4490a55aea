//! One communicator of a rank: its users and its state.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use meshgrad_error::{Error, error};

use super::connect::{Connect, Creation, Progress};
use super::key::Key;
use super::text;

/// The time limit of a creation if the group's options do not set one.
pub const BOOTSTRAP_TIMEOUT: Duration = Duration::from_secs(300);

pub(super) struct Slot<C: Connect> {
    /// The number of live handles by name.
    pub(super) users: BTreeMap<Arc<str>, usize>,
    pub(super) state: CreationState<C>,
    /// Whether the transport has begun the creation.
    pub(super) has_begun: bool,
    /// Set once, so that handles can read it without a lock.
    pub(super) communicator: Arc<OnceLock<C::Communicator>>,
}

pub(super) enum CreationState<C: Connect> {
    /// Requested only.
    Declared,
    /// In flight.
    Creating { connecting: C::Connecting, since: Duration },
    /// The communicator is in `communicator`.
    Ready,
    /// Failed permanently. To retry, drop all handles and request the group again.
    Failed(Error),
}

impl<C: Connect> Slot<C> {
    pub(super) fn declared() -> Slot<C> {
        Slot {
            users: BTreeMap::new(),
            state: CreationState::Declared,
            has_begun: false,
            communicator: Arc::default(),
        }
    }

    pub(super) fn join(&mut self, name: &Arc<str>) {
        *self.users.entry(name.clone()).or_default() += 1;
    }

    pub(super) fn leave(&mut self, name: &str) {
        if let Some(count) = self.users.get_mut(name) {
            *count -= 1;
        }
        self.users.retain(|_, count| *count > 0);
    }

    pub(super) fn is_declared(&self) -> bool {
        matches!(self.state, CreationState::Declared)
    }

    pub(super) fn is_creating(&self) -> bool {
        matches!(self.state, CreationState::Creating { .. })
    }

    pub(super) fn failure(&self) -> Option<&Error> {
        match &self.state {
            CreationState::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Whether it can be dropped. A creation in flight must be finished first, because the other
    /// members wait for this rank.
    pub(super) fn is_idle(&self) -> bool {
        self.users.is_empty() && !self.is_creating()
    }

    pub(super) fn begin(&mut self, connector: &mut C, rank: usize, key: &Key, attempt: Attempt) {
        let creation = Creation { group: &key.0, generation: attempt.generation };
        let begun = connector.begin(&creation);
        self.has_begun = begun.is_ok();
        self.state = match begun {
            Ok(connecting) => CreationState::Creating { connecting, since: attempt.now },
            Err(error) => CreationState::Failed(self.transport(rank, key, error)),
        };
    }

    /// Polls the transport.
    pub(super) fn advance(&mut self, connector: &mut C, rank: usize, key: &Key, now: Duration) {
        let CreationState::Creating { connecting, since } = &mut self.state else {
            return;
        };
        let waited = now.saturating_sub(*since);
        let limit = key.0.options().bootstrap_timeout;
        let is_late = waited >= limit.unwrap_or(BOOTSTRAP_TIMEOUT);

        self.state = match connector.poll(connecting) {
            Ok(Progress::Ready(communicator)) => {
                let was_empty = self.communicator.set(communicator).is_ok();
                debug_assert!(was_empty, "a creation is not polled after it is ready");
                CreationState::Ready
            }
            Ok(Progress::Waiting { .. }) if !is_late => return,
            Ok(Progress::Waiting { missing }) => CreationState::Failed(error!(
                Stuck,
                "rank {rank} waited {waited:?} for the communicator of {} (for {}): {}. If they \
                 only need more time, raise the group option `bootstrap_timeout`",
                key.0,
                text::names(&self.requesters()),
                missing_text(&missing)
            )),
            Err(error) => CreationState::Failed(self.transport(rank, key, error)),
        };
    }

    fn transport(&self, rank: usize, key: &Key, error: Error) -> Error {
        error.context(format!(
            "rank {rank} could not create the communicator of {} (for {})",
            key.0,
            text::names(&self.requesters())
        ))
    }

    pub(super) fn requesters(&self) -> Vec<String> {
        self.users.keys().map(|name| name.to_string()).collect()
    }
}

/// The start time and the generation of a creation.
#[derive(Clone, Copy)]
pub(super) struct Attempt {
    pub(super) generation: u64,
    pub(super) now: Duration,
}

fn missing_text(missing: &[usize]) -> String {
    match missing {
        [] => "some members did not join, and the transport cannot list them".to_owned(),
        _ => format!(
            "{} did not join; {} terminated, or {} not request this group with the same order, \
             channel and options",
            text::ranks(missing),
            text::verb(missing, "it has", "they have"),
            text::verb(missing, "does", "do")
        ),
    }
}
