//! The host program's memory and callback functions.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;

use crate::memory::Block;

thread_local! {
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is running a host callback, which must not call the driver.
pub(crate) fn is_calling() -> bool {
    CALLING.get()
}

/// Host memory that a copy reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostRange {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the caller of `new` guarantees that any thread may access the memory until the copy is
// done.
unsafe impl Send for HostRange {}
// SAFETY: as above.
unsafe impl Sync for HostRange {}

impl HostRange {
    /// `bytes` bytes at `start`.
    ///
    /// # Safety
    ///
    /// The requirements of the driver API: the memory belongs to the caller and stays valid until
    /// the operation has run, and nothing else writes it meanwhile. If `start` is not a host
    /// pointer, nothing may be read or written through this range.
    pub(crate) unsafe fn new(start: *const c_void, bytes: usize) -> HostRange {
        HostRange { start: start.cast_mut().cast(), bytes }
    }

    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The range as memory that kernels access. `None` if the pointer is null or not aligned. The
    /// block must be dropped before the memory is freed, as the driver API requires of registered
    /// memory.
    pub(crate) fn block(&self) -> Option<Block> {
        let start = NonNull::new(self.start)?;
        // SAFETY: the caller of the driver API keeps the memory valid until it is unregistered.
        unsafe { Block::of_host(start, self.bytes) }
    }

    /// Copies bytes from `offset` to a buffer.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        // SAFETY: in bounds (checked above); the caller of `new` guarantees the memory.
        unsafe { self.start.add(offset).copy_to(into.as_mut_ptr(), into.len()) }
    }

    /// Copies a buffer to `offset`.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: in bounds (checked above); the caller of `new` guarantees the memory.
        unsafe { self.start.add(offset).copy_from(bytes.as_ptr(), bytes.len()) }
    }

    fn check(&self, offset: usize, bytes: usize) {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(
            fits,
            "{bytes} bytes at offset {offset} exceed a host range of {} bytes",
            self.bytes
        );
    }
}

/// A host function that a stream calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCall {
    function: HostFunction,
    data: *mut c_void,
}

#[derive(Clone, Copy, Debug)]
enum HostFunction {
    /// `CUhostFn`.
    Plain(unsafe extern "C" fn(*mut c_void)),
    /// `CUstreamCallback`, with its stream.
    Callback(unsafe extern "C" fn(*mut c_void, i32, *mut c_void), u64),
}

// SAFETY: the constructors require that any thread may call it.
unsafe impl Send for HostCall {}
// SAFETY: as above.
unsafe impl Sync for HostCall {}

impl HostCall {
    /// A `cuLaunchHostFunc` callback.
    ///
    /// # Safety
    ///
    /// Any thread may call the function with `data`, once per execution of the operation.
    pub(crate) unsafe fn function(
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> HostCall {
        HostCall { function: HostFunction::Plain(function), data }
    }

    /// A `cuStreamAddCallback` callback.
    ///
    /// # Safety
    ///
    /// As for [`HostCall::function`].
    pub(crate) unsafe fn callback(
        function: unsafe extern "C" fn(*mut c_void, i32, *mut c_void),
        stream: u64,
        data: *mut c_void,
    ) -> HostCall {
        HostCall { function: HostFunction::Callback(function, stream), data }
    }

    /// Calls the function; meanwhile [`is_calling`] returns true on this thread.
    pub(crate) fn call(&self) {
        CALLING.set(true);
        match self.function {
            // SAFETY: required by the constructor.
            HostFunction::Plain(function) => unsafe { function(self.data) },
            // SAFETY: required by the constructor.
            HostFunction::Callback(function, stream) => unsafe {
                function(stream as *mut c_void, 0, self.data);
            },
        }
        CALLING.set(false);
    }
}
