//! The registry of a rank, and handles that share its communicators.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use meshgrad_error::{Error, Result, bail, ensure};
use meshgrad_mesh::{Group, Hosts};

use super::connect::Connect;
use super::key::Key;
use super::plan::{AgreedPlan, GroupPlan, PlannedGroup};
use super::report::{CommunicatorReport, Report};
use super::slot::Slot;
use super::state::State;

/// The communicators of one rank. Cheap to clone; clones share the registry. It can serve any
/// number of parallel states, one after another or at the same time.
pub struct Registry<C: Connect> {
    inner: Arc<Inner<C>>,
}

struct Inner<C: Connect> {
    rank: usize,
    state: Mutex<State<C>>,
}

/// The result of requesting a group.
pub enum Share<C: Connect> {
    /// The rank is not a member.
    NotMember,
    /// The rank is the only member and needs no communicator.
    Singleton,
    /// The rank shares the communicator.
    Member(Handle<C>),
}

/// A shared handle to a communicator, ready or not. Dropping the last handle destroys the
/// communicator. A later request creates another one, in which all members must take part. So if
/// one rank drops and requests a group again, all its members must.
pub struct Handle<C: Connect> {
    inner: Arc<Inner<C>>,
    key: Key,
    name: Arc<str>,
    communicator: Arc<OnceLock<C::Communicator>>,
}

/// The outcome of [`Registry::poll`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollStatus {
    /// Creations that wait for other ranks.
    pub in_flight: usize,
    /// Planned creations that have not begun.
    pub queued: usize,
    /// Creations that failed in this call. Their handles return the same error from now on.
    pub failed: Vec<Error>,
}

impl PollStatus {
    /// Whether no creation is in flight or queued.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queued == 0
    }
}

impl<C: Connect> Registry<C> {
    /// The registry of a rank, with the transport that creates its communicators.
    pub fn new(rank: usize, connector: C) -> Registry<C> {
        let state = Mutex::new(State::new(connector));
        Registry { inner: Arc::new(Inner { rank, state }) }
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// Requests the communicator of a group. This only declares it; nothing is sent. `name`
    /// identifies the requester in reports, such as `actor.tp`, and has no other effect.
    ///
    /// # Errors
    /// When the group's options are invalid.
    pub fn share(&self, name: &str, group: &Group) -> Result<Share<C>> {
        let requests = |error: Error| error.context(format!("`{name}` requests {group}"));
        group.options().check().map_err(requests)?;

        if group.index_of(self.inner.rank).is_none() {
            return Ok(Share::NotMember);
        }
        if group.is_singleton() {
            return Ok(Share::Singleton);
        }
        Ok(Share::Member(Handle::join(&self.inner, Key(group.clone()), name.into())))
    }

    /// The plan of all communicators that this rank currently requests, ready or not.
    pub fn plan(&self) -> GroupPlan {
        let state = self.inner.lock();
        let used = state.slots.iter().filter(|(_, slot)| !slot.users.is_empty());
        let needs = used.map(|(key, slot)| PlannedGroup {
            group: key.0.clone(),
            generation: state.generation(key),
            requesters: slot.requesters(),
        });
        GroupPlan { rank: self.inner.rank, needs: needs.collect(), mesh: None }
    }

    /// Queues the creation of an agreed plan's communicators, in creation order; [`Registry::poll`]
    /// creates them. At most `at_most` creations are in flight: 1 is safe with a transport that
    /// blocks, more are faster with one that does not.
    ///
    /// # Errors
    /// For the plan of another rank, and if all handles of a planned group were dropped. After an
    /// error, nothing is queued.
    pub fn materialize(&self, agreed: &AgreedPlan, at_most: NonZeroUsize) -> Result<()> {
        let plan = agreed.plan();
        let rank = self.inner.rank;
        ensure!(
            plan.rank == rank,
            Invalid,
            "the plan of rank {} was passed to the registry of rank {rank}",
            plan.rank
        );
        let keys: Vec<Key> = plan.needs.iter().map(|need| Key(need.group.clone())).collect();
        let mut state = self.inner.lock();
        if let Some(key) = keys.iter().find(|key| !state.slots.contains_key(key)) {
            bail!(
                Invalid,
                "{} is in the agreed plan, but rank {rank} has dropped its handles since: keep \
                 them until the communicators are created",
                key.0
            );
        }
        state.at_once.queue.extend(keys);
        state.at_once.at_most = at_most;
        Ok(())
    }

    /// Advances all creations without blocking: polls those in flight and begins queued ones. `now`
    /// is the time since any fixed point; creations that exceed their time limit fail.
    ///
    /// Call it until [`PollStatus::is_idle`].
    pub fn poll(&self, now: Duration) -> PollStatus {
        let mut state = self.inner.lock();
        let mut failed = state.advance_all(self.inner.rank, now);
        failed.extend(state.begin_queued(self.inner.rank, now));

        let status = PollStatus {
            in_flight: state.slots.values().filter(|slot| slot.is_creating()).count(),
            queued: state.at_once.queue.len(),
            failed,
        };
        let unused = state.take_idle();
        drop(state);
        drop(unused);
        status
    }

    /// All communicators and their requesters.
    pub fn report(&self, hosts: &Hosts) -> Report {
        let state = self.inner.lock();
        let slots = state.slots.iter();
        let reported = slots.map(|(key, slot)| CommunicatorReport::of(key, slot, hosts));
        Report { rank: self.inner.rank, communicators: reported.collect() }
    }
}

impl<C: Connect> Inner<C> {
    /// Ignores poisoning: a panic inside a transport leaves all slots unchanged.
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Connect> Share<C> {
    /// The handle, if the rank is a member of a group of several ranks.
    pub fn handle(self) -> Option<Handle<C>> {
        match self {
            Share::Member(handle) => Some(handle),
            Share::NotMember | Share::Singleton => None,
        }
    }
}

impl<C: Connect> Handle<C> {
    fn join(inner: &Arc<Inner<C>>, key: Key, name: Arc<str>) -> Handle<C> {
        let mut state = inner.lock();
        let slot = state.slots.entry(key.clone()).or_insert_with(Slot::declared);
        slot.join(&name);
        Handle { inner: inner.clone(), key, name, communicator: slot.communicator.clone() }
    }

    /// Its group.
    pub fn group(&self) -> &Group {
        &self.key.0
    }

    /// The requester's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The communicator, if it is ready. Takes no lock.
    pub fn get(&self) -> Option<&C::Communicator> {
        self.communicator.get()
    }

    /// The communicator. The first call begins its creation. `None` while other members are
    /// missing.
    ///
    /// Never blocks. If it returns `None`, the rank must continue with other work and other groups:
    /// a rank that retries in a loop can deadlock with ranks that request groups in another order.
    ///
    /// `now` is the same clock as in [`Registry::poll`], which also advances this creation.
    ///
    /// # Errors
    /// When the creation fails or exceeds its time limit: the same error on every call, until all
    /// handles are dropped and the group is requested again.
    pub fn connect(&self, now: Duration) -> Result<Option<&C::Communicator>> {
        if let Some(communicator) = self.get() {
            return Ok(Some(communicator));
        }
        let mut state = self.inner.lock();
        state.begin(&self.key, self.inner.rank, now);
        state.advance(&self.key, self.inner.rank, now)?;
        drop(state);
        Ok(self.get())
    }
}

impl<C: Connect> fmt::Debug for Registry<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry(rank {})", self.inner.rank)
    }
}

impl<C: Connect> fmt::Debug for Share<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Share::NotMember => f.write_str("NotMember"),
            Share::Singleton => f.write_str("Singleton"),
            Share::Member(handle) => handle.fmt(f),
        }
    }
}

impl<C: Connect> fmt::Debug for Handle<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({} for `{}`)", self.key.0, self.name)
    }
}

impl<C: Connect> Clone for Registry<C> {
    fn clone(&self) -> Registry<C> {
        Registry { inner: self.inner.clone() }
    }
}

impl<C: Connect> Clone for Handle<C> {
    fn clone(&self) -> Handle<C> {
        Handle::join(&self.inner, self.key.clone(), self.name.clone())
    }
}

impl<C: Connect> Drop for Handle<C> {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        if let Some(slot) = state.slots.get_mut(&self.key) {
            slot.leave(&self.name);
        }
        let unused = state.take_idle();
        drop(state);
        drop(unused);
    }
}
