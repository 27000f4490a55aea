//! Which streams of a GPU use a mutable storage.
//!
//! On a CPU a borrow ends with the op that took it. On a GPU the enqueued work runs after the op
//! has returned, concurrently with other streams. So work inside a scope ([`crate::with_stream`])
//! records a *use* of every mutable storage, which ends when the scope's
//! [`Pending`](crate::Pending) is waited for. Uses follow the rule of borrows: many readers or one
//! writer.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// How work uses a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    /// Other work may read too.
    Read,
    /// No other work may use it.
    Write,
}

impl Access {
    /// Whether the order of two uses matters.
    pub(crate) fn conflicts_with(self, other: Access) -> bool {
        self == Access::Write || other == Access::Write
    }
}

/// The scope that a use belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScopeId {
    /// Unique in this process.
    pub(crate) scope: u64,
    /// The stream that the scope enqueues its work on.
    pub(crate) stream: u32,
}

/// A use of a storage by enqueued work that has not been waited for.
#[derive(Debug)]
struct StreamUse {
    by: ScopeId,
    access: Access,
}

/// The uses of one storage. Keeps its capacity, so that adding a use rarely allocates.
#[derive(Debug, Default)]
pub(crate) struct StreamUses(Mutex<Vec<StreamUse>>);

impl StreamUses {
    /// Whether new work may use the storage. `before(stream)` is whether the new work runs after
    /// all work enqueued on that stream.
    pub(crate) fn allow(&self, access: Access, before: impl Fn(u32) -> bool) -> bool {
        self.lock().iter().all(|one| before(one.by.stream) || !one.access.conflicts_with(access))
    }

    /// Adds a use by scope `by`. Returns false when the scope used the storage already.
    pub(crate) fn add(&self, by: ScopeId, access: Access) -> bool {
        let mut uses = self.lock();
        match uses.iter_mut().find(|one| one.by == by) {
            Some(one) => {
                one.access = one.access.max(access);
                false
            }
            None => {
                uses.push(StreamUse { by, access });
                true
            }
        }
    }

    /// Ends the use by a scope, and returns its access.
    pub(crate) fn end(&self, scope: u64) -> Option<Access> {
        let mut uses = self.lock();
        let at = uses.iter().position(|one| one.by.scope == scope)?;
        Some(uses.swap_remove(at).access)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<StreamUse>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: fn(u32) -> bool = |_| false;

    #[test]
    fn scopes_of_several_streams_may_read_or_those_of_one_may_write() {
        let uses = StreamUses::default();
        let [first, second] = [1, 2].map(|id| ScopeId { scope: id.into(), stream: id });
        assert!(uses.allow(Access::Write, NONE));
        assert!(uses.add(first, Access::Read) && uses.add(second, Access::Read));
        assert!(uses.allow(Access::Read, NONE));
        assert!(!uses.allow(Access::Write, |stream| stream == 1));

        assert_eq!(uses.end(2), Some(Access::Read));
        assert!(uses.allow(Access::Write, |stream| stream == 1));
        assert!(!uses.add(first, Access::Write), "the same scope");
        assert!(!uses.allow(Access::Read, NONE));
        assert_eq!(uses.end(1), Some(Access::Write));
        assert_eq!(uses.end(1), None);
    }
}
