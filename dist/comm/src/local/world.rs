//! What the ranks of a world share: their communicators, and which ranks have ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use meshgrad_mesh::Group;

use super::table::Table;
use crate::error::CommError;

/// A lock of a table may be held while this one is taken, but not the reverse.
pub(super) struct World {
    all: Group,
    deadline: Duration,
    state: Mutex<State>,
}

struct State {
    /// The first failure of a rank.
    failure: Option<CommError>,
    /// Whether each rank has returned.
    returned: Vec<bool>,
    /// Tables that some members have joined and others have not, by group and generation.
    joining: HashMap<(Group, u64), Joining>,
    /// All tables in use.
    tables: Vec<Weak<Table>>,
}

struct Joining {
    table: Arc<Table>,
    joined: usize,
}

impl World {
    pub(super) fn new(all: Group, deadline: Duration) -> World {
        let state = State {
            failure: None,
            returned: vec![false; all.len()],
            joining: HashMap::new(),
            tables: Vec::new(),
        };
        World {
            all,
            deadline,
            state: Mutex::new(state),
        }
    }

    /// The group of all ranks.
    pub(super) fn all(&self) -> &Group {
        &self.all
    }

    /// The table of a communicator. Each member joins once per generation.
    pub(super) fn join(self: &Arc<World>, group: &Group, generation: u64) -> Arc<Table> {
        let mut state = self.lock();
        let key = (group.clone(), generation);
        let (table, joined) = match state.joining.remove(&key) {
            Some(joining) => (joining.table, joining.joined + 1),
            None => {
                let deadline = group.options().timeout.unwrap_or(self.deadline);
                let table = Arc::new(Table::new(group.clone(), deadline, Arc::downgrade(self)));
                state.tables.retain(|table| table.strong_count() > 0);
                state.tables.push(Arc::downgrade(&table));
                (table, 1)
            }
        };
        if joined < group.len() {
            let table = table.clone();
            state.joining.insert(key, Joining { table, joined });
        }
        table
    }

    /// The failure that ended the world, if any.
    pub(super) fn failure(&self) -> Option<CommError> {
        self.lock().failure.clone()
    }

    /// Those of `ranks` that have returned.
    pub(super) fn returned_of(&self, ranks: &[usize]) -> Vec<usize> {
        let state = self.lock();
        let returned = ranks.iter().copied().filter(|rank| state.returned[*rank]);
        returned.collect()
    }

    /// Ends all ranks: every collective that waits or starts later fails. The first failure counts.
    pub(super) fn fail(&self, failure: CommError) {
        let mut state = self.lock();
        state.failure.get_or_insert(failure.clone());
        let tables = state.tables();
        drop(state);
        for table in tables {
            table.fail(&failure);
        }
    }

    /// Records that a rank returned. Collectives that it did not start can no longer complete.
    pub(super) fn returned(&self, rank: usize) {
        let mut state = self.lock();
        state.returned[rank] = true;
        let tables = state.tables();
        drop(state);
        for table in tables {
            table.fail_missing_returned();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tables(&self) -> Vec<Arc<Table>> {
        self.tables.iter().filter_map(Weak::upgrade).collect()
    }
}
