//! Memory of targets that several threads fill at the same time: unsafe, for the borrow
//! checker cannot see what keeps them apart.
//!
//! Why they do not disturb each other. A byte of a target belongs to exactly one element of one
//! copy: that is the law of [`Graph::pull`](crate::graph::Graph::pull), and plans are made of what
//! it gives only. An element of a copy begins in exactly one chunk, since chunks cut the extents
//! without overlap, and a chunk is given to one thread once. So no byte is written by two threads,
//! and none is read before its target is complete; the count of missing bytes reaches zero after
//! the last write and before the sink gets the memory.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::{Sink, scatter};
use crate::Error;
use crate::plan::{Fill, LoadPlan, Target};

/// The targets of an execution.
pub(super) struct SharedTargets<'e, S: Sink> {
    sink: &'e S,
    targets: &'e [Target],
    fills: &'e [Fill],
    slots: Vec<Slot<S::Buffer>>,
}

struct Slot<B> {
    /// Into `buffer`, once there is one.
    place: OnceLock<TargetMemory>,
    /// Not touched while `place` is in use: from its making to its completion.
    buffer: Mutex<Option<B>>,
    missing: AtomicU64,
}

/// The memory of a target while it is filled.
#[derive(Debug)]
pub(super) struct TargetMemory {
    start: *mut u8,
    len: usize,
}

// SAFETY: what is behind the pointer is owned by the slot and may be sent (`Sink::Buffer: Send`).
unsafe impl Send for TargetMemory {}
// SAFETY: through a shared place different threads touch different bytes only, see above.
unsafe impl Sync for TargetMemory {}

impl TargetMemory {
    fn new(bytes: &mut [u8]) -> TargetMemory {
        TargetMemory {
            start: bytes.as_mut_ptr(),
            len: bytes.len(),
        }
    }
}

impl scatter::Destination for &TargetMemory {
    /// Each byte is asked for once, by the thread whose chunk has its element.
    fn bytes(&mut self, range: Range<u64>) -> &mut [u8] {
        let (start, end) = (range.start as usize, range.end as usize);
        assert!(
            start <= end && end <= self.len,
            "a plan writes inside of its targets"
        );
        // SAFETY: inside of the buffer, which is alive and not touched otherwise until the target
        // is complete, which it is not before these bytes are counted. No other reference to them
        // is made: see the head of this file.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), end - start) }
    }
}

impl<'e, S: Sink> SharedTargets<'e, S> {
    /// Completes the targets that need nothing: those without bytes and those that are filled.
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
        let shared = SharedTargets {
            sink,
            targets,
            fills,
            slots: slots.collect(),
        };
        let needs_nothing = (0..targets.len()).filter(|target| missing[*target] == 0);
        for target in needs_nothing {
            shared.place(target)?;
            shared.complete(target)?;
        }
        Ok(shared)
    }

    /// The memory of a target, asked of the sink for the first one who needs it.
    pub(super) fn place(&self, target: usize) -> Result<&TargetMemory, S::Error> {
        let slot = &self.slots[target];
        if let Some(place) = slot.place.get() {
            return Ok(place);
        }
        let mut buffer = slot.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been first; its buffer must not be touched any more.
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

    /// Counts bytes that are there. Gives the target back, and says so, if these were the last.
    pub(super) fn count(&self, target: usize, bytes: u64) -> Result<bool, S::Error> {
        let slot = &self.slots[target];
        // Release: our writes come before; acquire: all others' writes come before the completion.
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
    match buffer.len() as u64 == target.bytes {
        true => Ok(()),
        false => Err(Error::TargetSize {
            target: target.name.to_string(),
            expected: target.bytes,
            actual: buffer.len() as u64,
        }),
    }
}
