//! The registry of one rank, and the handles through which its communicators are shared.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use meshgrad_mesh::{Group, Hosts};

use super::connect::Connect;
use super::error::{RegistryError, Result};
use super::key::Key;
use super::plan::{AgreedPlan, Plan, PlannedGroup};
use super::report::{CommunicatorReport, Report};
use super::slot::Slot;
use super::state::State;

/// The communicators of one rank. Cheap to clone; clones are the same registry. It outlives what
/// shares through it: any number of parallel states, one after the other or at once.
pub struct Registry<C: Connect> {
    inner: Arc<Inner<C>>,
}

struct Inner<C: Connect> {
    rank: usize,
    state: Mutex<State<C>>,
}

/// What a rank gets that asks for a group.
pub enum Share<C: Connect> {
    /// It is no member. Nothing to do.
    NotMember,
    /// It is the only member: it communicates with nobody, and there is nothing to make.
    Singleton,
    /// It shares the communicator.
    Member(Handle<C>),
}

/// A share in a communicator, made or not. The last one that is dropped drops the communicator; a
/// clone is one more. Whoever asks again after that gets another one, which all members have to make:
/// so ranks drop and ask alike.
pub struct Handle<C: Connect> {
    inner: Arc<Inner<C>>,
    key: Key,
    name: Arc<str>,
    made: Arc<OnceLock<C::Communicator>>,
}

/// What is left to do after [`Registry::poll`], and what went wrong in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PollStatus {
    /// Creations that wait for other ranks.
    pub in_flight: usize,
    /// Creations of plans that have not begun.
    pub queued: usize,
    /// Those that failed in this call. Their handles fail with the same from now on.
    pub failed: Vec<RegistryError>,
}

impl PollStatus {
    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queued == 0
    }
}

impl<C: Connect> Registry<C> {
    /// The registry of a rank, with the transport that makes its communicators.
    pub fn new(rank: usize, connector: C) -> Registry<C> {
        let state = Mutex::new(State::new(connector));
        Registry {
            inner: Arc::new(Inner { rank, state }),
        }
    }

    /// The rank whose registry it is.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// Takes a share in the communicator of a group, which is only declared by this: nothing is
    /// sent. `name` says who asks, as `actor.tp`, and decides nothing.
    ///
    /// # Errors
    /// [`RegistryError::InvalidGroup`] when the group has options that no transport takes.
    pub fn share(&self, name: &str, group: &Group) -> Result<Share<C>> {
        let wrong = |source| RegistryError::InvalidGroup {
            requester: name.to_owned(),
            group: group.to_string(),
            source,
        };
        group.options().check().map_err(wrong)?;

        if group.index_of(self.inner.rank).is_none() {
            return Ok(Share::NotMember);
        }
        if group.is_singleton() {
            return Ok(Share::Singleton);
        }
        Ok(Share::Member(Handle::join(
            &self.inner,
            Key(group.clone()),
            name.into(),
        )))
    }

    /// All that this rank shares now, made or not, as a plan.
    pub fn plan(&self) -> Plan {
        let state = self.inner.lock();
        let used = state
            .slots
            .iter()
            .filter(|(_, slot)| !slot.users.is_empty());
        let needs = used.map(|(key, slot)| PlannedGroup {
            group: key.0.clone(),
            generation: state.generation(key),
            requesters: slot.requesters(),
        });
        Plan {
            rank: self.inner.rank,
            needs: needs.collect(),
            mesh: None,
        }
    }

    /// Makes what an agreed plan needs and has not, in the order of creation, with at most
    /// `at_most` creations in flight: 1 is safe with a transport that waits inside, more are faster
    /// with one that does not. Only queues; [`Registry::poll`] does it.
    ///
    /// # Errors
    /// [`RegistryError::WrongRank`]; [`RegistryError::Released`] when a group of the plan has no
    /// handle any more. Nothing is queued then.
    pub fn materialize(&self, agreed: &AgreedPlan, at_most: NonZeroUsize) -> Result<()> {
        let plan = agreed.plan();
        if plan.rank != self.inner.rank {
            return Err(RegistryError::WrongRank {
                plan: plan.rank,
                registry: self.inner.rank,
            });
        }
        let keys: Vec<Key> = plan
            .needs
            .iter()
            .map(|need| Key(need.group.clone()))
            .collect();
        let mut state = self.inner.lock();
        if let Some(key) = keys.iter().find(|key| !state.slots.contains_key(key)) {
            return Err(RegistryError::Released {
                group: key.0.to_string(),
                rank: self.inner.rank,
            });
        }
        state.at_once.queue.extend(keys);
        state.at_once.at_most = at_most;
        Ok(())
    }

    /// Looks after all creations, never waiting: those in flight are asked how far they are, and
    /// those that are queued begin as far as they may. `now` is the time since any fixed moment; it
    /// ends creations that take too long.
    ///
    /// To be called again until [`PollStatus::is_idle`]; by whom and how often is the caller's choice.
    pub fn poll(&self, now: Duration) -> PollStatus {
        let mut state = self.inner.lock();
        let mut failed = state.advance_all(self.inner.rank, now);
        failed.extend(state.begin_queued(self.inner.rank, now));

        let turn = PollStatus {
            in_flight: state
                .slots
                .values()
                .filter(|slot| slot.is_creating())
                .count(),
            queued: state.at_once.queue.len(),
            failed,
        };
        let unwanted = state.take_idle();
        drop(state);
        drop(unwanted);
        turn
    }

    /// What there is, and who shares it.
    pub fn report(&self, hosts: &Hosts) -> Report {
        let state = self.inner.lock();
        let slots = state.slots.iter();
        let reported = slots.map(|(key, slot)| CommunicatorReport::of(key, slot, hosts));
        Report {
            rank: self.inner.rank,
            communicators: reported.collect(),
        }
    }
}

impl<C: Connect> Inner<C> {
    /// A panic inside a transport leaves the registry as it was before that call.
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Connect> Share<C> {
    /// The handle, of a member that is not alone.
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
        let slot = state
            .slots
            .entry(key.clone())
            .or_insert_with(Slot::declared);
        slot.join(&name);
        Handle {
            inner: inner.clone(),
            key,
            name,
            made: slot.made.clone(),
        }
    }

    /// Whom it connects, and how.
    pub fn group(&self) -> &Group {
        &self.key.0
    }

    /// Who asked.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The communicator, if it is made. Takes no lock.
    pub fn get(&self) -> Option<&C::Communicator> {
        self.made.get()
    }

    /// The communicator, begun now if it was not before; none while it waits for other members.
    ///
    /// Never waits, and a rank that gets none goes on: to what else it has to do, to other groups
    /// that it needs. That is what keeps the lazy path free of circles. A rank that asks for
    /// nothing else until it has this one brings them back, if others ask in another order.
    ///
    /// `now` is as for [`Registry::poll`], which also goes on with what was begun here.
    ///
    /// # Errors
    /// [`RegistryError::Timeout`], [`RegistryError::Transport`]: what made the creation fail, each
    /// time, until all have dropped their handles and ask anew.
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
        Registry {
            inner: self.inner.clone(),
        }
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
        let unwanted = state.take_idle();
        drop(state);
        drop(unwanted);
    }
}
