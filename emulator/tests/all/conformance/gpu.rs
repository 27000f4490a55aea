//! A module on device 0, through the driver's C functions.

use std::ffi::CString;
use std::marker::PhantomData;

use bytemuck::{Pod, bytes_of};

use crate::driver::{self, Context, Module};

/// A module in its own context on device 0, so that a failure does not affect other tests. The
/// context is current in the thread that created it.
pub(crate) struct Gpu {
    context: Context,
    module: Module,
}

/// Device memory.
pub(crate) struct Buffer {
    address: u64,
    bytes: usize,
    /// Freed in the thread of its context.
    _not_send: PhantomData<*const ()>,
}

/// An argument of a kernel.
#[derive(Clone, Debug)]
pub(crate) enum Argument {
    Pointer(u64),
    U8(u8),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    /// A structure by value.
    Bytes(Vec<u8>),
}

/// Arguments of a launch, in the kernel's order.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => { &[$($crate::conformance::gpu::Argument::from(&$value)),*] };
}
pub(crate) use arguments;

macro_rules! arguments_from {
    ($($from:ty => $variant:ident),+ $(,)?) => {
        $(impl From<&$from> for Argument {
            fn from(value: &$from) -> Argument {
                Argument::$variant(value.clone())
            }
        })+
    };
}

arguments_from! {
    u8 => U8, u32 => U32, i32 => I32, u64 => U64, i64 => I64, f32 => F32, Vec<u8> => Bytes,
}

impl From<&Buffer> for Argument {
    fn from(buffer: &Buffer) -> Argument {
        Argument::Pointer(buffer.address)
    }
}

impl Argument {
    fn bytes(&self) -> &[u8] {
        match self {
            Argument::Pointer(value) | Argument::U64(value) => bytes_of(value),
            Argument::U8(value) => bytes_of(value),
            Argument::U32(value) => bytes_of(value),
            Argument::I32(value) => bytes_of(value),
            Argument::I64(value) => bytes_of(value),
            Argument::F32(value) => bytes_of(value),
            Argument::Bytes(value) => value,
        }
    }
}

impl Gpu {
    /// Compiles `ptx`; panics with the report if it fails.
    pub(crate) fn load(ptx: &str) -> Gpu {
        let context = Context::new().expect("a context is created");
        let module = Module::load(ptx).unwrap_or_else(|report| panic!("{report}"));
        Gpu { context, module }
    }

    /// A buffer that holds `data`.
    pub(crate) fn upload<T: Pod>(&self, data: &[T]) -> Buffer {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let buffer = Buffer::new(bytes.len());
        driver::write(buffer.address, bytes).expect("the data fits into the buffer");
        buffer
    }

    /// A buffer of zeros.
    pub(crate) fn zeros(&self, bytes: usize) -> Buffer {
        self.upload(&vec![0u8; bytes])
    }

    /// A buffer that the kernel fills.
    pub(crate) fn uninitialized(&self, bytes: usize) -> Buffer {
        Buffer::new(bytes)
    }

    /// The whole of a buffer.
    pub(crate) fn download<T: Pod>(&self, buffer: &Buffer) -> Vec<T> {
        let mut values = vec![T::zeroed(); buffer.bytes / size_of::<T>()];
        let bytes = bytemuck::cast_slice_mut(&mut values);
        driver::read(buffer.address, bytes).expect("the buffer has these bytes");
        values
    }

    /// Runs a kernel to completion; panics if it fails.
    pub(crate) fn launch(
        &self,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
        arguments: &[Argument],
    ) {
        let name = CString::new(kernel).expect("names contain no NUL");
        let bytes: Vec<&[u8]> = arguments.iter().map(Argument::bytes).collect();
        let function = self.module.kernel(&name).expect("the module has the kernel");
        let launched = function.launch(grid, block, dynamic_shared, &bytes);
        launched.unwrap_or_else(|report| panic!("{report}"));
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // Errors are ignored: the launch has already reported a failure.
        let _ = self.module.unload();
        let _ = self.context.end();
    }
}

impl Buffer {
    fn new(bytes: usize) -> Buffer {
        Buffer {
            address: driver::allocate(bytes).expect("memory is allocated"),
            bytes,
            _not_send: PhantomData,
        }
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // The launch has already reported a failure.
        let _ = driver::free(self.address);
    }
}
