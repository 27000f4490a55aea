//! Arguments of exported functions: pointers that whoever calls the function vouches for.
//!
//! Values of these types come from the callers of exported functions alone, who promise what the
//! driver API asks of them: a pointer is null or points to what its type says.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::host::{HostCall, HostRange};
use crate::driver::error::{Code, Error, Result};

/// Where a result goes.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Stores the result; an error for a null pointer.
    pub(super) fn set(self, value: T) -> Result<()> {
        match self.0.is_null() {
            true => Err(null("a place for a result")),
            false => {
                self.set_if_wanted(value);
                Ok(())
            }
        }
    }

    /// Stores the result, unless the caller did not ask for it.
    pub(super) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller of the exported function vouches for it. It may lie anywhere in a
            // caller's structure, so alignment is not relied on.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// The `index`-th place of several.
    pub(super) fn at(self, index: usize) -> Out<T> {
        Out(self.0.wrapping_add(index))
    }
}

impl<T: Copy> Out<T> {
    /// What the caller left there.
    pub(super) fn get(self) -> Result<T> {
        In(self.0.cast_const()).get()
    }
}

/// A value that the caller has.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(super) fn get(self) -> Result<T> {
        match self.0.is_null() {
            true => Err(null("an argument")),
            // SAFETY: the caller of the exported function vouches for it.
            false => Ok(unsafe { self.0.read_unaligned() }),
        }
    }

    /// The `index`-th value of several.
    pub(super) fn at(self, index: usize) -> In<T> {
        In(self.0.wrapping_add(index))
    }

    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A string of the caller.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Text(*const c_char);

impl Text {
    pub(super) fn get(self) -> Result<String> {
        if self.0.is_null() {
            return Err(null("a string"));
        }
        // SAFETY: the caller of the exported function vouches for it.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Room of the caller for a string.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct TextOut(*mut c_char);

impl TextOut {
    /// Writes as much of `text` as `bytes` hold together with the final NUL; how many that were
    /// without it.
    pub(super) fn set(self, text: &str, bytes: usize) -> usize {
        if self.0.is_null() || bytes == 0 {
            return 0;
        }
        let length = text.len().min(bytes - 1);
        // SAFETY: the caller of the exported function vouches for so many bytes.
        let room = unsafe { HostRange::new(self.0.cast(), bytes) };
        room.write(0, &text.as_bytes()[..length]);
        room.write(length, &[0]);
        length
    }
}

/// An untyped pointer.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Pointer(*mut c_void);

impl Pointer {
    /// What has this address.
    pub(super) fn at(address: u64) -> Pointer {
        Pointer(address as *mut c_void)
    }

    pub(super) fn address(self) -> u64 {
        self.0 as u64
    }

    /// As memory of so many bytes.
    pub(super) fn range(self, bytes: usize) -> HostRange {
        // SAFETY: the caller of the exported function vouches for it.
        unsafe { HostRange::new(self.0, bytes) }
    }

    /// As a place for a result.
    pub(super) fn out<T>(self) -> Out<T> {
        Out(self.0.cast())
    }

    /// As a value.
    pub(super) fn value<T>(self) -> In<T> {
        In(self.0.cast_const().cast())
    }

    /// As a string.
    pub(super) fn text(self) -> Text {
        Text(self.0.cast_const().cast())
    }

    /// As room for a string.
    pub(super) fn text_out(self) -> TextOut {
        TextOut(self.0.cast())
    }
}

/// `CUhostFn`.
#[repr(transparent)]
pub(super) struct HostFunction(Option<unsafe extern "C" fn(*mut c_void)>);

impl HostFunction {
    pub(super) fn with(self, data: Pointer) -> Result<HostCall> {
        let function = self.0.ok_or_else(|| null("a function"))?;
        // SAFETY: the caller of the exported function vouches for it.
        Ok(unsafe { HostCall::function(function, data.0) })
    }
}

/// `CUstreamCallback`.
#[repr(transparent)]
pub(super) struct StreamCallback(Option<unsafe extern "C" fn(*mut c_void, i32, *mut c_void)>);

impl StreamCallback {
    pub(super) fn with(self, stream: u64, data: Pointer) -> Result<HostCall> {
        let function = self.0.ok_or_else(|| null("a function"))?;
        // SAFETY: the caller of the exported function vouches for it.
        Ok(unsafe { HostCall::callback(function, stream, data.0) })
    }
}

/// `CUoccupancyB2DSize`: the dynamic shared memory of a block of so many threads.
#[repr(transparent)]
pub(super) struct BlockToShared(Option<unsafe extern "C" fn(c_int) -> usize>);

impl BlockToShared {
    /// What the function says, or `otherwise` where there is none.
    pub(super) fn bytes(&self, threads: i32, otherwise: usize) -> usize {
        match self.0 {
            // SAFETY: the caller of the exported function vouches for it.
            Some(function) => unsafe { function(threads) },
            None => otherwise,
        }
    }
}

fn null(what: &str) -> Error {
    Code::InvalidValue.because(format!("{what} is a null pointer"))
}
