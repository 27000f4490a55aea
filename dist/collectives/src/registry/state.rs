//! The state behind a registry's lock: the communicators of a rank and their creations.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroUsize;
use std::time::Duration;

use meshgrad_error::{Error, Result};

use super::connect::Connect;
use super::key::Key;
use super::slot::{Attempt, Slot};

pub(super) struct State<C: Connect> {
    pub(super) connector: C,
    pub(super) slots: BTreeMap<Key, Slot<C>>,
    /// The number of creations begun so far per key. Kept when communicators are dropped.
    pub(super) generations: BTreeMap<Key, u64>,
    pub(super) at_once: AtOnce,
}

/// The remaining creations of agreed plans.
pub(super) struct AtOnce {
    pub(super) queue: VecDeque<Key>,
    /// Creations from the queue that are in flight.
    pub(super) in_flight: BTreeSet<Key>,
    pub(super) at_most: NonZeroUsize,
}

impl<C: Connect> State<C> {
    pub(super) fn new(connector: C) -> State<C> {
        let at_once = AtOnce {
            queue: VecDeque::new(),
            in_flight: BTreeSet::new(),
            at_most: NonZeroUsize::MIN,
        };
        State { connector, slots: BTreeMap::new(), generations: BTreeMap::new(), at_once }
    }

    /// The generation of a key's current communicator, or of the next one if no creation has begun.
    pub(super) fn generation(&self, key: &Key) -> u64 {
        let begun = self.generations.get(key).copied().unwrap_or(0);
        match self.slots.get(key) {
            Some(slot) if slot.has_begun => begun,
            _ => begun + 1,
        }
    }

    /// Begins the creation of a declared communicator. A creation that the transport refuses to
    /// begin takes no generation, because the other members do not learn of it.
    pub(super) fn begin(&mut self, key: &Key, rank: usize, now: Duration) {
        let generation = self.generation(key);
        if let Some(slot) = self.slots.get_mut(key)
            && slot.is_declared()
        {
            slot.begin(&mut self.connector, rank, key, Attempt { generation, now });
            if slot.has_begun {
                self.generations.insert(key.clone(), generation);
            }
        }
    }

    pub(super) fn advance(&mut self, key: &Key, rank: usize, now: Duration) -> Result<()> {
        let Some(slot) = self.slots.get_mut(key) else {
            return Ok(());
        };
        slot.advance(&mut self.connector, rank, key, now);
        slot.failure().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    pub(super) fn advance_all(&mut self, rank: usize, now: Duration) -> Vec<Error> {
        let mut failed = Vec::new();
        for (key, slot) in &mut self.slots {
            if slot.is_creating() {
                slot.advance(&mut self.connector, rank, key, now);
                failed.extend(slot.failure().cloned());
            }
        }
        failed
    }

    /// Begins queued creations in order, up to the limit of creations in flight.
    pub(super) fn begin_queued(&mut self, rank: usize, now: Duration) -> Vec<Error> {
        let slots = &self.slots;
        let is_creating = |key: &Key| slots.get(key).is_some_and(Slot::is_creating);
        self.at_once.in_flight.retain(is_creating);

        let mut failed = Vec::new();
        while self.at_once.in_flight.len() < self.at_once.at_most.get() {
            let Some(key) = self.at_once.queue.pop_front() else {
                break;
            };
            let Some(slot) = self.slots.get(&key) else {
                continue;
            };
            let was_declared = slot.is_declared();
            self.begin(&key, rank, now);
            match self.slots[&key].failure() {
                Some(failure) if was_declared => failed.push(failure.clone()),
                None if was_declared => {
                    self.at_once.in_flight.insert(key);
                }
                _ => {}
            }
        }
        failed
    }

    /// Removes unused communicators. The caller drops them after releasing the lock.
    pub(super) fn take_idle(&mut self) -> Vec<Slot<C>> {
        let slots = self.slots.iter();
        let idle = slots.filter(|(_, slot)| slot.is_idle());
        let idle: Vec<Key> = idle.map(|(key, _)| key.clone()).collect();
        idle.iter().filter_map(|key| self.slots.remove(key)).collect()
    }
}
