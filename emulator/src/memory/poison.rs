//! Bytes of global memory that hold an undefined value because a kernel stored one, and the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bytes::ByteSet;
use crate::report::Finding;

/// Stores that are remembered per allocation. For a later one, a store to a nearby word is reported.
const STORES: usize = 1 << 16;

/// The undefined bytes of an allocation. A byte counts only while it is not initialized.
pub(crate) struct Poison {
    bytes: ByteSet,
    /// The store that last wrote each word.
    stores: Mutex<BTreeMap<u64, Arc<Finding>>>,
}

impl Poison {
    pub(crate) fn new(bytes: usize) -> Poison {
        Poison { bytes: ByteSet::new(bytes), stores: Mutex::default() }
    }

    /// Marks bytes that one store wrote. `store` may look at the bytes that are marked so far.
    pub(crate) fn add(&self, bytes: &[usize], store: impl FnOnce() -> Arc<Finding>) {
        let words: Vec<u64> = bytes.iter().map(|at| *at as u64 / 4).collect();
        let is_kept = |stores: &BTreeMap<u64, Arc<Finding>>, word: u64| {
            stores.len() < STORES || stores.contains_key(&word)
        };
        if words.iter().any(|word| is_kept(&self.stores(), *word)) {
            let store = store();
            let mut stores = self.stores();
            for word in words {
                if is_kept(&stores, word) {
                    stores.insert(word, store.clone());
                }
            }
        }
        bytes.iter().for_each(|at| self.bytes.set(*at, 1));
    }

    /// Unmarks bytes.
    pub(crate) fn remove(&self, at: usize, count: usize) {
        self.bytes.unset(at, count);
    }

    /// The store that marked a byte.
    pub(crate) fn at(&self, at: usize) -> Option<Arc<Finding>> {
        if !self.bytes.all(at, 1) {
            return None;
        }
        let (word, stores) = (at as u64 / 4, self.stores());
        let before = stores.range(..=word).next_back();
        let store = before.or_else(|| stores.iter().next());
        store.map(|(_, store)| store.clone())
    }

    fn stores(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Finding>>> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
