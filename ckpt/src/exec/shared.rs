//! Memory of targets that several threads fill at the same time. This is unsafe because the borrow
//! checker cannot verify that the threads write different bytes.
//!
//! Why it is sound. A byte of a target belongs to exactly one element of one copy:
//! [`Graph::copies`](crate::graph::Graph::copies) guarantees this, and plans consist only of its
//! copies. An element of a copy starts in exactly one chunk, because chunks split the extents
//! without overlap, and each chunk goes to one thread once. So no two threads write the same byte,
//! and no byte is read before its target is complete: the count of missing bytes reaches zero after
//! the last write and before the sink gets the memory.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use meshgrad_error::{Error, error};

use super::{Sink, scatter};
use crate::plan::{Fill, LoadPlan, Target};

/// The targets of an execution.
pub(super) struct SharedTargets<'e, S: Sink> {
    sink: &'e S,
    targets: &'e [Target],
    fills: &'e [Fill],
    slots: Vec<Slot<S::Buffer>>,
}

struct Slot<B> {
    /// The memory in `buffer`, once it is allocated.
    place: OnceLock<TargetMemory>,
    /// Not accessed while `place` is in use: from the target's allocation to its completion.
    buffer: Mutex<Option<B>>,
    missing: AtomicU64,
}

/// The memory of a target while it is filled.
#[derive(Debug)]
pub(super) struct TargetMemory {
    start: *mut u8,
    len: usize,
}

// SAFETY: the slot owns the memory behind the pointer, and it is `Send` (`Sink::Buffer: Send`).
unsafe impl Send for TargetMemory {}
// SAFETY: threads write only different bytes through a shared place, see above.
unsafe impl Sync for TargetMemory {}

impl TargetMemory {
    fn new(bytes: &mut [u8]) -> TargetMemory {
        TargetMemory { start: bytes.as_mut_ptr(), len: bytes.len() }
    }
}

impl scatter::Destination for &TargetMemory {
    /// Each byte is requested once, by the thread whose chunk has its element.
    fn bytes(&mut self, range: Range<u64>) -> &mut [u8] {
        let (start, end) = (range.start as usize, range.end as usize);
        assert!(start <= end && end <= self.len, "a plan writes only inside its targets");
        // SAFETY: the range is inside the buffer. The buffer is alive and not otherwise touched
        // until the target is complete, which cannot happen before these bytes are counted. No
        // other reference to them exists: see the module documentation.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), end - start) }
    }
}

impl<'e, S: Sink> SharedTargets<'e, S> {
    /// Completes the targets that need no chunks: empty ones and constant fills.
    pub(super) fn new(plan: &'e LoadPlan, sink: &'e S) -> Result<SharedTargets<'e, S>, S::Error> {
        let (targets, fills) = (plan.targets(), plan.fills());
        let mut missing: Vec<u64> = targets.iter().map(|target| target.bytes).collect();
        for fill in fills {
            missing[fill.target as usize] -= fill.bytes();
        }
        let slots = missing.iter().map(|missing| Slot {
            place: OnceLock::new(),
            buffer: Mutex::new(None),
            missing: AtomicU64::new(*missing),
        });
        let shared = SharedTargets { sink, targets, fills, slots: slots.collect() };
        let needs_nothing = (0..targets.len()).filter(|target| missing[*target] == 0);
        for target in needs_nothing {
            shared.place(target)?;
            shared.complete(target)?;
        }
        Ok(shared)
    }

    /// The memory of a target, requested from the sink at its first use.
    pub(super) fn place(&self, target: usize) -> Result<&TargetMemory, S::Error> {
        let slot = &self.slots[target];
        if let Some(place) = slot.place.get() {
            return Ok(place);
        }
        let mut buffer = slot.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been first; its buffer must not be accessed any more.
        if let Some(place) = slot.place.get() {
            return Ok(place);
        }
        let buffer = buffer.insert(self.sink.buffer(&self.targets[target])?);
        let bytes = buffer.as_mut();
        check(&self.targets[target], bytes)?;
        let fills = self.fills.iter().filter(|it| it.target as usize == target);
        fills.for_each(|it| scatter::fill(&it.loops, it.to, &it.element, bytes));
        Ok(slot.place.get_or_init(|| TargetMemory::new(bytes)))
    }

    /// Counts written bytes. If these were the last, returns the target to the sink and returns
    /// true.
    pub(super) fn count(&self, target: usize, bytes: u64) -> Result<bool, S::Error> {
        let slot = &self.slots[target];
        // Release publishes our writes; acquire makes the other threads' writes visible to the
        // sink.
        let before = slot.missing.fetch_sub(bytes, Ordering::AcqRel);
        if bytes == 0 || before != bytes {
            return Ok(false);
        }
        self.complete(target)?;
        Ok(true)
    }

    fn complete(&self, target: usize) -> Result<(), S::Error> {
        let buffer = &self.slots[target].buffer;
        let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
        match buffer.take() {
            Some(buffer) => self.sink.complete(&self.targets[target], buffer),
            None => Ok(()),
        }
    }
}

fn check(target: &Target, buffer: &[u8]) -> Result<(), Error> {
    let is_right = buffer.len() as u64 == target.bytes;
    is_right.then_some(()).ok_or_else(|| wrong_size(target, buffer.len()))
}

pub(super) fn wrong_size(target: &Target, actual: usize) -> Error {
    error!(
        Invalid,
        "target `{}` has {} bytes, but its memory has {actual}: allocate the size that the plan \
         gives for the target",
        target.name.escape_debug(),
        target.bytes
    )
}
