//! In place of `loading` where the feature `progress` is off.

/// Calls `load` with a callback that takes the bytes read and the total, and shows nothing.
pub fn with_loading_bar<T>(load: impl FnOnce(&(dyn Fn(u64, u64) + Sync)) -> T) -> T {
    load(&|_, _| {})
}
