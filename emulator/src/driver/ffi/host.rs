//! What belongs to the host's program: its memory and its functions.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;

use crate::memory::Block;

thread_local! {
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a function that a stream called, which must not use the driver.
pub(crate) fn is_calling() -> bool {
    CALLING.get()
}

/// Memory of the host's program that a copy reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostRange {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: whoever makes one promises that the memory may be accessed until the copy is done, by
// whichever thread does it.
unsafe impl Send for HostRange {}
// SAFETY: as above.
unsafe impl Sync for HostRange {}

impl HostRange {
    /// `bytes` bytes at `start`.
    ///
    /// # Safety
    /// As the driver API asks of its callers: the memory is theirs and stays so until the operation
    /// that it is passed to has run, and nobody else writes it meanwhile. If `start` is no memory
    /// of the host at all, nothing may be read or written through this.
    pub(crate) unsafe fn new(start: *const c_void, bytes: usize) -> HostRange {
        HostRange {
            start: start.cast_mut().cast(),
            bytes,
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// As memory that kernels access too; `None` when it is null, or not aligned for that. Must be
    /// dropped before the memory goes, as the driver API asks of who registers memory.
    pub(crate) fn block(&self) -> Option<Block> {
        let start = NonNull::new(self.start)?;
        // SAFETY: the caller of the driver API keeps the memory until it is unregistered.
        unsafe { Block::of_host(start, self.bytes) }
    }

    /// Copies out from `offset` on.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        // SAFETY: in bounds, as just checked; the memory is the caller's, as `new` was promised.
        unsafe {
            self.start
                .add(offset)
                .copy_to(into.as_mut_ptr(), into.len())
        }
    }

    /// Copies in at `offset` and on.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: in bounds, as just checked; the memory is the caller's, as `new` was promised.
        unsafe {
            self.start
                .add(offset)
                .copy_from(bytes.as_ptr(), bytes.len())
        }
    }

    fn check(&self, offset: usize, bytes: usize) {
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes);
        assert!(
            fits,
            "{bytes} bytes at {offset} of a range of {}",
            self.bytes
        );
    }
}

/// A function of the host's program that a stream calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCall {
    function: HostFunction,
    data: *mut c_void,
}

#[derive(Clone, Copy, Debug)]
enum HostFunction {
    /// `CUhostFn`.
    Plain(unsafe extern "C" fn(*mut c_void)),
    /// `CUstreamCallback`, with the stream it was added to.
    Callback(unsafe extern "C" fn(*mut c_void, i32, *mut c_void), u64),
}

// SAFETY: whoever makes one promises that any thread may call it.
unsafe impl Send for HostCall {}
// SAFETY: as above.
unsafe impl Sync for HostCall {}

impl HostCall {
    /// A function for `cuLaunchHostFunc`.
    ///
    /// # Safety
    /// The function may be called with `data` by any thread, as often as the operation runs.
    pub(crate) unsafe fn function(
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> HostCall {
        HostCall {
            function: HostFunction::Plain(function),
            data,
        }
    }

    /// A function for `cuStreamAddCallback`.
    ///
    /// # Safety
    /// As for [`HostCall::function`].
    pub(crate) unsafe fn callback(
        function: unsafe extern "C" fn(*mut c_void, i32, *mut c_void),
        stream: u64,
        data: *mut c_void,
    ) -> HostCall {
        HostCall {
            function: HostFunction::Callback(function, stream),
            data,
        }
    }

    /// Calls it; while it runs, [`is_calling`] holds on this thread.
    pub(crate) fn call(&self) {
        CALLING.set(true);
        match self.function {
            // SAFETY: as promised where it was made.
            HostFunction::Plain(function) => unsafe { function(self.data) },
            // SAFETY: as promised where it was made.
            HostFunction::Callback(function, stream) => unsafe {
                function(stream as *mut c_void, 0, self.data);
            },
        }
        CALLING.set(false);
    }
}
