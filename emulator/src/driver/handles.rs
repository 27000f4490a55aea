//! Handles of driver objects, checked at every use.
//!
//! The driver API's handles are opaque pointers. Ours are not addresses but keys of a table, so a
//! handle that is stale, invalid or of another kind causes an error and not a crash.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::error::{Code, Error, Result};

/// The first handle. No host pointer and no device address has this value.
const FIRST: u64 = 0x00e0_0000_0000_0000;

/// Counts all handles of the process, so that none is reused.
static SERIAL: AtomicU64 = AtomicU64::new(1);

/// An object that handles refer to.
pub(crate) trait Named {
    /// The name in error messages, such as `stream`.
    const NAME: &'static str;
    /// The error code for a handle that never existed.
    const UNKNOWN: Code = Code::InvalidHandle;
    /// The error code for a handle whose object was destroyed.
    const DESTROYED: Code = Code::InvalidHandle;
}

/// The handle of a `T`.
pub(crate) struct Handle<T>(u64, PhantomData<fn() -> T>);

impl<T> Handle<T> {
    /// A handle as a caller passed it; it may be invalid.
    pub(crate) fn from_raw(raw: u64) -> Handle<T> {
        Handle(raw, PhantomData)
    }

    /// The value that the caller holds.
    pub(crate) fn raw(self) -> u64 {
        self.0
    }
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Handle<T> {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Handle<T>) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Handle<T> {}

impl<T> PartialOrd for Handle<T> {
    fn partial_cmp(&self, other: &Handle<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Handle<T> {
    fn cmp(&self, other: &Handle<T>) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// All live objects of one kind.
pub(crate) struct Table<T> {
    live: BTreeMap<Handle<T>, T>,
    /// The last handle that this table created.
    last: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { live: BTreeMap::new(), last: 0 }
    }
}

impl<T: Named> Table<T> {
    pub(crate) fn insert(&mut self, value: T) -> Handle<T> {
        let handle = self.reserve();
        self.restore(handle, value);
        handle
    }

    /// Creates a handle without an object.
    pub(crate) fn reserve(&mut self) -> Handle<T> {
        // Aligned as a pointer would be.
        self.last = FIRST + SERIAL.fetch_add(1, Relaxed) * 16;
        Handle::from_raw(self.last)
    }

    /// Assigns an object to a handle that has none.
    pub(crate) fn restore(&mut self, handle: Handle<T>, value: T) {
        self.live.insert(handle, value);
    }

    pub(crate) fn get(&self, handle: Handle<T>) -> Result<&T> {
        let last = self.last;
        self.live.get(&handle).ok_or_else(|| missing(last, handle))
    }

    pub(crate) fn get_mut(&mut self, handle: Handle<T>) -> Result<&mut T> {
        let last = self.last;
        self.live.get_mut(&handle).ok_or_else(|| missing(last, handle))
    }

    pub(crate) fn remove(&mut self, handle: Handle<T>) -> Result<T> {
        let last = self.last;
        self.live.remove(&handle).ok_or_else(|| missing(last, handle))
    }

    /// All objects in the order of their creation.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle<T>, &T)> {
        self.live.iter().map(|(handle, value)| (*handle, value))
    }

    /// The handles of the objects that match.
    pub(crate) fn handles(&self, matches: impl Fn(&T) -> bool) -> Vec<Handle<T>> {
        let found = self.iter().filter(|(_, value)| matches(value));
        found.map(|(handle, _)| handle).collect()
    }
}

fn missing<T: Named>(last: u64, handle: Handle<T>) -> Error {
    let (name, raw) = (T::NAME, handle.0);
    // Handles only grow, so a table never created a handle larger than its last.
    let may_have_been = (FIRST..=last).contains(&raw) && raw % 16 == 0;
    match may_have_been {
        _ if raw == 0 => T::UNKNOWN.because(format!("the {name} is null")),
        true => T::DESTROYED.because(format!("{name} {raw:#x} was destroyed or is not a {name}")),
        false => T::UNKNOWN.because(format!("{raw:#x} is not a {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(u32);

    impl Named for Thing {
        const NAME: &'static str = "thing";
        const DESTROYED: Code = Code::IllegalState;
    }

    #[test]
    fn a_handle_is_valid_until_its_object_is_destroyed() {
        let mut table = Table::default();
        let one = table.insert(Thing(1));
        let two = table.insert(Thing(2));
        assert_ne!(one, two);
        assert_eq!(table.get(two).unwrap().0, 2);
        assert_eq!(table.handles(|it| it.0 == 1), [one]);

        assert_eq!(table.remove(one).unwrap().0, 1);
        let error = table.get(one).err().unwrap();
        assert_eq!(error.code, Code::IllegalState);
        assert!(error.message.contains("was destroyed"), "{error}");
        assert!(table.remove(one).is_err());
        assert_eq!(table.iter().count(), 1);
    }

    #[test]
    fn invalid_handles_are_distinguished_from_destroyed_ones() {
        let mut table = Table::<Thing>::default();
        table.insert(Thing(1));
        for raw in [0, 1, 0x7fff_0000_1234, u64::MAX] {
            let error = table.get(Handle::from_raw(raw)).err().unwrap();
            assert_eq!(error.code, Code::InvalidHandle, "{raw:#x}");
        }
    }
}
