//! Work of this thread that runs while an op waits for communication.

use std::cell::RefCell;
use std::rc::Rc;

use meshgrad_runtime::Pending;

use crate::Result;
use crate::saved::without_packing;
use crate::tape::{current_id, unrecorded};

type Work = Box<dyn FnMut() -> Result<()>>;

/// What runs at the first wait on the tape that was current when it was given, by its id.
struct Once {
    tape: Option<u64>,
    work: Box<dyn FnOnce()>,
}

thread_local! {
    static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
    static ONCE: RefCell<Option<Once>> = const { RefCell::new(None) };
}

/// Calls `body`, and `work` once: when an op of `body` that communicates has started to, and before it
/// waits; after `body` if none does. So the communication is under way while `work` computes. In
/// backward it is under way, too, while the gradients of `work` are computed.
///
/// For computations that do not depend on each other, in the same [`local`](crate::local). A
/// [`checkpoint`](crate::checkpoint()) inside of `body` waits without `work`, which is no part of it.
///
/// # Errors
/// Those of `body` and `work`.
pub fn beside<T, U: 'static>(
    work: impl FnOnce() -> Result<U> + 'static,
    body: impl FnOnce() -> Result<T>,
) -> Result<(U, T)> {
    /// Restores what was there, even if `body` panics.
    struct Restore(Option<Once>);

    impl Drop for Restore {
        fn drop(&mut self) {
            ONCE.set(self.0.take());
        }
    }

    let done = Rc::new(RefCell::new(None));
    let kept = done.clone();
    let work = Box::new(move || *kept.borrow_mut() = Some(work()));
    let _restore = Restore(ONCE.replace(Some(Once { tape: current_id(), work })));
    let of_body = body()?;
    run_once();
    let of_work = done.take().unwrap_or_else(|| unreachable!("the work has run"));
    Ok((of_work?, of_body))
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
    run_once();
    if let Some(mut work) = WORK.take() {
        let done = unrecorded(|| without_packing(&mut work));
        WORK.set(Some(work));
        done?;
    }
    pending.wait()
}

/// Runs what is to run once, if it belongs to the current tape.
fn run_once() {
    let tape = current_id();
    if let Some(once) = ONCE.with_borrow_mut(|once| once.take_if(|once| once.tape == tape)) {
        (once.work)();
    }
}
