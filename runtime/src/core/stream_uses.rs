//! Who uses memory that may change, on which stream of a GPU.
//!
//! On a CPU a borrow ends with the op that took it. What an op puts into a stream goes on after
//! that, and another stream may meet it. So work inside a scope ([`crate::with_stream`]) leaves a
//! *hold* on every storage that may change, until somebody waits for its
//! [`Pending`](crate::Pending). The rule is that of borrows: many read or one writes.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What work does with a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    /// Others may read too.
    Read,
    /// Nobody else may use it.
    Write,
}

impl Access {
    /// Whether the order of two uses makes a difference.
    pub(crate) fn conflicts_with(self, other: Access) -> bool {
        self == Access::Write || other == Access::Write
    }
}

/// A scope as holds know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// No other scope of this process has it.
    pub(crate) scope: u64,
    /// The stream that the scope puts its work into.
    pub(crate) stream: u32,
}

/// The use of a storage by work that nobody has waited for.
#[derive(Debug)]
struct Hold {
    holder: Holder,
    access: Access,
}

/// The holds on one storage. Adding one where there were as many before touches no heap.
#[derive(Debug, Default)]
pub(crate) struct Holds(Mutex<Vec<Hold>>);

impl Holds {
    /// Whether work may use the storage that comes after all work of the streams that are
    /// `before`.
    pub(crate) fn allow(&self, access: Access, before: impl Fn(u32) -> bool) -> bool {
        self.lock()
            .iter()
            .all(|hold| before(hold.holder.stream) || !hold.access.conflicts_with(access))
    }

    /// Adds a use by `holder`; false where it had one already.
    pub(crate) fn add(&self, holder: Holder, access: Access) -> bool {
        let mut holds = self.lock();
        match holds.iter_mut().find(|hold| hold.holder == holder) {
            Some(hold) => {
                hold.access = hold.access.max(access);
                false
            }
            None => {
                holds.push(Hold { holder, access });
                true
            }
        }
    }

    /// Ends the use by a scope; returns what it was.
    pub(crate) fn end(&self, scope: u64) -> Option<Access> {
        let mut holds = self.lock();
        let at = holds.iter().position(|hold| hold.holder.scope == scope)?;
        Some(holds.swap_remove(at).access)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Hold>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: fn(u32) -> bool = |_| false;

    #[test]
    fn many_read_or_one_writes_and_a_stream_follows_itself() {
        let holds = Holds::default();
        let [first, second] = [1, 2].map(|id| Holder {
            scope: id.into(),
            stream: id,
        });
        assert!(holds.allow(Access::Write, NONE));
        assert!(holds.add(first, Access::Read) && holds.add(second, Access::Read));
        assert!(holds.allow(Access::Read, NONE));
        assert!(!holds.allow(Access::Write, |stream| stream == 1));

        assert_eq!(holds.end(2), Some(Access::Read));
        assert!(holds.allow(Access::Write, |stream| stream == 1));
        assert!(!holds.add(first, Access::Write), "the same scope");
        assert!(!holds.allow(Access::Read, NONE));
        assert_eq!(holds.end(1), Some(Access::Write));
        assert_eq!(holds.end(1), None);
    }
}
