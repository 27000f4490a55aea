//! What the ranks of a world share: their communicators and its status.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use meshgrad_mesh::Group;

use super::meeting::Failed;
use super::rules::Rules;
use super::table::{Shared, Table};
use super::watch::OpenCollectives;

/// No table is locked while its lock is held.
pub(super) struct World {
    all: Group,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Tables that some members have joined and others have not, by group, generation, and whether
    /// they are for control channels.
    joining: HashMap<(Group, u64, bool), Joining>,
    /// All tables in use.
    tables: Vec<Weak<Table>>,
}

struct Joining {
    table: Arc<Table>,
    joined: usize,
}

impl World {
    pub(super) fn new(all: Group, rules: Rules) -> World {
        let shared = Shared { rules, ..Shared::default() };
        World { all, shared: Arc::new(shared), state: Mutex::default() }
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.shared.rules
    }

    /// The group of all ranks.
    pub(super) fn all(&self) -> &Group {
        &self.all
    }

    /// The table of a communicator. Each member joins once per generation.
    pub(super) fn join(&self, group: &Group, generation: u64, is_control: bool) -> Arc<Table> {
        let mut state = self.lock();
        let key = (group.clone(), generation, is_control);
        let (table, joined) = match state.joining.remove(&key) {
            Some(joining) => (joining.table, joining.joined + 1),
            None => {
                let timeout = group.options().timeout;
                let deadline = timeout.unwrap_or(self.rules().deadline);
                let table = Arc::new(Table::new(group.clone(), deadline, self.shared.clone()));
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

    /// Ends all ranks after `rank` failed: every collective that waits or starts later fails. The
    /// first failure counts.
    pub(super) fn fail(&self, rank: usize, reason: String) {
        let failure = self.shared.status.set_failure(rank, reason);
        let mut failed = Failed::default();
        for table in self.tables() {
            table.fail(&failure, &mut failed);
        }
        failed.complete();
    }

    /// Records that a rank returned. Collectives that it did not start can no longer complete.
    pub(super) fn returned(&self, rank: usize) {
        self.shared.status.set_returned(rank);
        for table in self.tables() {
            table.fail_missing_returned();
        }
    }

    fn tables(&self) -> Vec<Arc<Table>> {
        self.lock().tables.iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
