//! Catches a panic without its message on standard error.

use std::cell::Cell;
use std::panic::{UnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether panics of this thread print nothing.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The result of `f`; `None` if it panics. Panics of other threads, and later ones of this thread,
/// are reported as before.
pub(super) fn catch_panic<T>(f: impl FnOnce() -> T + UnwindSafe) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                report(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    let result = catch_unwind(f);
    IS_QUIET.set(false);
    result.ok()
}
