//! Replaces `loading` without the feature `progress`: nothing is shown.

/// Calls `load` with a callback that takes the bytes read and the total, and shows nothing.
pub fn with_loading_bar<T>(load: impl FnOnce(&(dyn Fn(u64, u64) + Sync)) -> T) -> T {
    load(&|_, _| {})
}
