//! Handles: numbers that name what the driver made, checked at every use.
//!
//! The driver API's handles are opaque pointers. Ours point nowhere: each is looked up, so a handle
//! that was destroyed, never made, or is of another kind is an error and not a crash.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::error::{Code, Error, Result};

/// Handles begin here: no pointer of a host and no address of a device looks like one.
const FIRST: u64 = 0x00e0_0000_0000_0000;

/// Counts all handles of the process, so that none is ever given out twice.
static SERIAL: AtomicU64 = AtomicU64::new(1);

/// What a table's handles name.
pub(crate) trait Named {
    /// The thing in words: `stream`.
    const NAME: &'static str;
    /// What the driver answers when a handle names none.
    const UNKNOWN: Code = Code::InvalidHandle;
    /// What it answers when the handle's thing was destroyed.
    const DESTROYED: Code = Code::InvalidHandle;
}

/// The name of a `T`.
pub(crate) struct Handle<T>(u64, PhantomData<fn() -> T>);

impl<T> Handle<T> {
    /// What a caller passed as one; it may name nothing.
    pub(crate) fn from_raw(raw: u64) -> Handle<T> {
        Handle(raw, PhantomData)
    }

    /// The number that the caller keeps.
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

/// All live things of one kind.
pub(crate) struct Table<T> {
    live: BTreeMap<Handle<T>, T>,
    /// The last handle that this table gave out.
    last: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table {
            live: BTreeMap::new(),
            last: 0,
        }
    }
}

impl<T: Named> Table<T> {
    pub(crate) fn insert(&mut self, value: T) -> Handle<T> {
        let handle = self.reserve();
        self.restore(handle, value);
        handle
    }

    /// A handle that names nothing yet.
    pub(crate) fn reserve(&mut self) -> Handle<T> {
        // Aligned as a pointer would be.
        self.last = FIRST + SERIAL.fetch_add(1, Relaxed) * 16;
        Handle::from_raw(self.last)
    }

    /// Lets a handle that names nothing, or nothing any more, name `value`.
    pub(crate) fn restore(&mut self, handle: Handle<T>, value: T) {
        self.live.insert(handle, value);
    }

    pub(crate) fn get(&self, handle: Handle<T>) -> Result<&T> {
        let last = self.last;
        self.live.get(&handle).ok_or_else(|| missing(last, handle))
    }

    pub(crate) fn get_mut(&mut self, handle: Handle<T>) -> Result<&mut T> {
        let last = self.last;
        self.live
            .get_mut(&handle)
            .ok_or_else(|| missing(last, handle))
    }

    pub(crate) fn remove(&mut self, handle: Handle<T>) -> Result<T> {
        let last = self.last;
        self.live
            .remove(&handle)
            .ok_or_else(|| missing(last, handle))
    }

    /// All of them in the order they were made.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle<T>, &T)> {
        self.live.iter().map(|(handle, value)| (*handle, value))
    }

    /// The handles of those for which `matches` holds.
    pub(crate) fn handles(&self, matches: impl Fn(&T) -> bool) -> Vec<Handle<T>> {
        let found = self.iter().filter(|(_, value)| matches(value));
        found.map(|(handle, _)| handle).collect()
    }
}

fn missing<T: Named>(last: u64, handle: Handle<T>) -> Error {
    let (name, raw) = (T::NAME, handle.0);
    // Handles only grow: those up to a table's last may have been its own, none above was.
    let may_have_been = (FIRST..=last).contains(&raw) && raw % 16 == 0;
    match may_have_been {
        _ if raw == 0 => T::UNKNOWN.because(format!("a null {name}")),
        true => T::DESTROYED.because(format!("{name} {raw:#x} was destroyed, or is no {name}")),
        false => T::UNKNOWN.because(format!("{raw:#x} is no {name}")),
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
    fn a_handle_names_its_thing_until_it_is_destroyed() {
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
    fn numbers_that_are_no_handles_are_told_from_destroyed_ones() {
        let mut table = Table::<Thing>::default();
        table.insert(Thing(1));
        for raw in [0, 1, 0x7fff_0000_1234, u64::MAX] {
            let error = table.get(Handle::from_raw(raw)).err().unwrap();
            assert_eq!(error.code, Code::InvalidHandle, "{raw:#x}");
        }
    }
}
