//! Storages of gathered values, which backward gathers again instead of keeping them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use meshgrad_runtime::{Result, StorageView, Tensor};

/// A storage that holds gathered values. It can be freed, and gathered again with the same values.
pub trait Regather: Send + Sync {
    /// The storage. Gathers it if it was freed.
    ///
    /// # Errors
    /// Errors of the communication.
    fn gather(&self) -> Result<Tensor>;

    /// The version of the values that it is gathered from.
    fn version(&self) -> u64;
}

/// Makes tensors in the storage of `storage` be saved for backward as "gather again", while the
/// result exists.
#[must_use = "tensors are saved whole after this is dropped"]
pub struct GatheredStorage(usize);

static GATHERED: RwLock<Option<HashMap<usize, Weak<dyn Regather>>>> = RwLock::new(None);
static GATHERED_COUNT: AtomicUsize = AtomicUsize::new(0);

impl GatheredStorage {
    /// Registers a storage. The caller drops the result before `storage`.
    pub fn new(storage: &Tensor, regather: &Arc<dyn Regather>) -> GatheredStorage {
        let mut all = GATHERED.write().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        all.insert(storage.storage_id(), Arc::downgrade(regather));
        GATHERED_COUNT.store(all.len(), Ordering::Release);
        GatheredStorage(storage.storage_id())
    }
}

impl Drop for GatheredStorage {
    fn drop(&mut self) {
        let mut all = GATHERED.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(all) = all.as_mut() {
            all.remove(&self.0);
            GATHERED_COUNT.store(all.len(), Ordering::Release);
        }
    }
}

/// A saved tensor in a gathered storage.
pub(crate) struct SavedGathered {
    regather: Arc<dyn Regather>,
    view: StorageView,
}

impl SavedGathered {
    /// `None` if `x` is in no gathered storage.
    pub(crate) fn of(x: &Tensor) -> Option<SavedGathered> {
        if GATHERED_COUNT.load(Ordering::Acquire) == 0 {
            return None;
        }
        let all = GATHERED.read().unwrap_or_else(PoisonError::into_inner);
        Some(SavedGathered {
            regather: all.as_ref()?.get(&x.storage_id())?.upgrade()?,
            view: x.storage_view(),
        })
    }

    pub(crate) fn version(&self) -> u64 {
        self.regather.version()
    }

    pub(crate) fn get(&self) -> Result<Tensor> {
        self.view.of(&self.regather.gather()?)
    }
}
