//! Work of this thread that runs while an op waits for communication.

use std::cell::RefCell;

use meshgrad_runtime::Pending;

use crate::Result;
use crate::saved::without_packing;
use crate::tape::unrecorded;

type Work = Box<dyn FnMut() -> Result<()>>;

thread_local! {
    static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
}

/// Calls `body`. Each time that an op of `body` has started communication, and before it waits,
/// `work` runs. Inside of `work`, ops only wait.
pub(crate) fn with_work<T>(
    work: impl FnMut() -> Result<()> + 'static,
    body: impl FnOnce() -> T,
) -> T {
    /// Restores what was there, even if `body` panics.
    struct Restore(Option<Work>);

    impl Drop for Restore {
        fn drop(&mut self) {
            WORK.set(self.0.take());
        }
    }

    let _restore = Restore(WORK.replace(Some(Box::new(work))));
    body()
}

/// The result of communication. All ranks call it at the same places, so that they communicate in the
/// same order.
pub(crate) fn wait<T>(pending: Pending<T>) -> Result<T> {
    if let Some(mut work) = WORK.take() {
        let done = unrecorded(|| without_packing(&mut work));
        WORK.set(Some(work));
        done?;
    }
    pending.wait()
}
