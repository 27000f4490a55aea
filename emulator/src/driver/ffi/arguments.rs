//! Argument types of the exported functions.
//!
//! Only callers of exported functions create values of these types. They guarantee what the driver
//! API requires: a pointer is null or valid for its type.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::host::{HostCall, HostRange};
use crate::driver::error::{Code, Error, Result};

/// An output pointer.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Stores a result; a null pointer is an error.
    pub(super) fn set(self, value: T) -> Result<()> {
        match self.0.is_null() {
            true => Err(null("the result pointer")),
            false => {
                self.set_if_not_null(value);
                Ok(())
            }
        }
    }

    /// Stores a result unless the pointer is null.
    pub(super) fn set_if_not_null(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: guaranteed by the caller of the exported function. It may point into a packed
            // structure, so it is not assumed to be aligned.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// The `index`-th element of an array.
    pub(super) fn at(self, index: usize) -> Out<T> {
        Out(self.0.wrapping_add(index))
    }
}

impl<T: Copy> Out<T> {
    /// The value that the caller stored there.
    pub(super) fn get(self) -> Result<T> {
        In(self.0.cast_const()).get()
    }
}

/// An input pointer.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(super) fn get(self) -> Result<T> {
        match self.0.is_null() {
            true => Err(null("an argument")),
            // SAFETY: guaranteed by the caller of the exported function.
            false => Ok(unsafe { self.0.read_unaligned() }),
        }
    }

    /// The `index`-th element of an array.
    pub(super) fn at(self, index: usize) -> In<T> {
        In(self.0.wrapping_add(index))
    }

    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A string argument.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Text(*const c_char);

impl Text {
    pub(super) fn get(self) -> Result<String> {
        if self.0.is_null() {
            return Err(null("a string"));
        }
        // SAFETY: guaranteed by the caller of the exported function.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// A buffer for a string.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct TextOut(*mut c_char);

impl TextOut {
    /// Writes as much of `text` as fits into `bytes` bytes with a final NUL. Returns the number of
    /// bytes written without the NUL.
    pub(super) fn set(self, text: &str, bytes: usize) -> usize {
        if self.0.is_null() || bytes == 0 {
            return 0;
        }
        let length = text.len().min(bytes - 1);
        // SAFETY: the caller of the exported function guarantees this many bytes.
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
    /// The pointer with this address.
    pub(super) fn at(address: u64) -> Pointer {
        Pointer(address as *mut c_void)
    }

    pub(super) fn address(self) -> u64 {
        self.0 as u64
    }

    /// The memory range of `bytes` bytes at this address.
    pub(super) fn range(self, bytes: usize) -> HostRange {
        // SAFETY: guaranteed by the caller of the exported function.
        unsafe { HostRange::new(self.0, bytes) }
    }

    /// Converts to an output pointer.
    pub(super) fn out<T>(self) -> Out<T> {
        Out(self.0.cast())
    }

    /// Converts to an input pointer.
    pub(super) fn value<T>(self) -> In<T> {
        In(self.0.cast_const().cast())
    }

    /// Converts to a string.
    pub(super) fn text(self) -> Text {
        Text(self.0.cast_const().cast())
    }

    /// Converts to a string buffer.
    pub(super) fn text_out(self) -> TextOut {
        TextOut(self.0.cast())
    }
}

/// `CUhostFn`.
#[repr(transparent)]
pub(super) struct HostFunction(Option<unsafe extern "C" fn(*mut c_void)>);

impl HostFunction {
    pub(super) fn with(self, data: Pointer) -> Result<HostCall> {
        let function = self.0.ok_or_else(|| null("the function"))?;
        // SAFETY: guaranteed by the caller of the exported function.
        Ok(unsafe { HostCall::function(function, data.0) })
    }
}

/// `CUstreamCallback`.
#[repr(transparent)]
pub(super) struct StreamCallback(Option<unsafe extern "C" fn(*mut c_void, i32, *mut c_void)>);

impl StreamCallback {
    pub(super) fn with(self, stream: u64, data: Pointer) -> Result<HostCall> {
        let function = self.0.ok_or_else(|| null("the function"))?;
        // SAFETY: guaranteed by the caller of the exported function.
        Ok(unsafe { HostCall::callback(function, stream, data.0) })
    }
}

/// `CUoccupancyB2DSize`: dynamic shared memory for a block size.
#[repr(transparent)]
pub(super) struct BlockToShared(Option<unsafe extern "C" fn(c_int) -> usize>);

impl BlockToShared {
    /// Calls the function; returns `otherwise` if it is null.
    pub(super) fn bytes(&self, threads: i32, otherwise: usize) -> usize {
        match self.0 {
            // SAFETY: guaranteed by the caller of the exported function.
            Some(function) => unsafe { function(threads) },
            None => otherwise,
        }
    }
}

fn null(what: &str) -> Error {
    Code::InvalidValue.because(format!("{what} is null"))
}
