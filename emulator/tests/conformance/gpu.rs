//! A module on device 0, through the driver's C functions.

use std::ffi::{CString, c_char, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use bytemuck::Pod;
// Linked, not called by name: the driver's functions are what it exports.
extern crate meshgrad_emulator as _;

/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const ERROR_LOG: [i32; 2] = [5, 6];

// The CUDA driver API, `cuda.h`. A `CUresult` is an int, a handle a pointer.
unsafe extern "C" {
    fn cuInit(flags: u32) -> i32;
    fn cuCtxCreate_v2(context: *mut *mut c_void, flags: u32, device: i32) -> i32;
    fn cuCtxDestroy_v2(context: *mut c_void) -> i32;
    fn cuCtxSynchronize() -> i32;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> i32;
    fn cuMemFree_v2(address: u64) -> i32;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> i32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> i32;
    fn cuMemsetD8_v2(to: u64, value: u8, bytes: usize) -> i32;
    fn cuModuleLoadDataEx(
        module: *mut *mut c_void,
        image: *const c_void,
        count: u32,
        options: *mut i32,
        values: *mut *mut c_void,
    ) -> i32;
    fn cuModuleUnload(module: *mut c_void) -> i32;
    fn cuModuleGetFunction(
        function: *mut *mut c_void,
        module: *mut c_void,
        name: *const c_char,
    ) -> i32;
    fn cuLaunchKernel(
        function: *mut c_void,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        dynamic_shared: u32,
        stream: *mut c_void,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> i32;
}

/// A module in a context of its own on device 0, so that no failure reaches another test. The
/// context is current in the thread that made it.
pub(crate) struct Gpu {
    context: *mut c_void,
    module: *mut c_void,
}

/// Memory of the device.
pub(crate) struct Buffer {
    address: u64,
    bytes: usize,
    /// It is freed in the thread whose context it belongs to.
    _not_send: PhantomData<*const ()>,
}

/// What a kernel takes.
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
    ($($value:expr),* $(,)?) => { &[$($crate::gpu::Argument::from(&$value)),*] };
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
    /// Where its bytes lie.
    fn place(&self) -> *mut c_void {
        match self {
            Argument::Pointer(value) | Argument::U64(value) => {
                ptr::from_ref(value).cast_mut().cast()
            }
            Argument::U8(value) => ptr::from_ref(value).cast_mut().cast(),
            Argument::U32(value) => ptr::from_ref(value).cast_mut().cast(),
            Argument::I32(value) => ptr::from_ref(value).cast_mut().cast(),
            Argument::I64(value) => ptr::from_ref(value).cast_mut().cast(),
            Argument::F32(value) => ptr::from_ref(value).cast_mut().cast(),
            Argument::Bytes(value) => value.as_ptr().cast_mut().cast(),
        }
    }
}

impl Gpu {
    /// Compiles `ptx`; panics with the compiler's log.
    pub(crate) fn load(ptx: &str) -> Gpu {
        let (mut context, mut module) = (ptr::null_mut(), ptr::null_mut());
        let text = CString::new(ptx).expect("PTX has no zero byte");
        let mut log = vec![0u8; 1 << 14];
        let mut options = ERROR_LOG;
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
        // SAFETY: the out-pointers are to locals, the text ends with a zero, and the log is as long
        // as its option says.
        let outcome = unsafe {
            check("cuInit", cuInit(0));
            check("cuCtxCreate", cuCtxCreate_v2(&mut context, 0, 0));
            let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
            cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 2, options, values)
        };
        let log = String::from_utf8_lossy(&log);
        let log = log.trim_end_matches('\0');
        assert_eq!(outcome, 0, "cuModuleLoadDataEx: {log}");
        Gpu { context, module }
    }

    /// A buffer that holds `data`.
    pub(crate) fn upload<T: Pod>(&self, data: &[T]) -> Buffer {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let buffer = Buffer::new(bytes.len());
        let from = bytes.as_ptr().cast();
        // SAFETY: both sides are `bytes.len()` long.
        check("cuMemcpyHtoD", unsafe {
            cuMemcpyHtoD_v2(buffer.address, from, bytes.len())
        });
        buffer
    }

    /// A buffer of zeros.
    pub(crate) fn zeros(&self, bytes: usize) -> Buffer {
        let buffer = self.uninitialised(bytes);
        // SAFETY: the buffer is that long.
        check("cuMemsetD8", unsafe {
            cuMemsetD8_v2(buffer.address, 0, bytes)
        });
        buffer
    }

    /// A buffer that the kernel fills.
    pub(crate) fn uninitialised(&self, bytes: usize) -> Buffer {
        Buffer::new(bytes)
    }

    /// The whole of a buffer.
    pub(crate) fn download<T: Pod>(&self, buffer: &Buffer) -> Vec<T> {
        let mut values = vec![T::zeroed(); buffer.bytes / size_of::<T>()];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: `to` is `bytes.len()` long, and the buffer at least that.
        check("cuMemcpyDtoH", unsafe {
            cuMemcpyDtoH_v2(to, buffer.address, bytes.len())
        });
        values
    }

    /// Runs a kernel to its end; panics if it failed.
    pub(crate) fn launch(
        &self,
        kernel: &str,
        [grid_x, grid_y, grid_z]: [u32; 3],
        [block_x, block_y, block_z]: [u32; 3],
        dynamic_shared: u32,
        arguments: &[Argument],
    ) {
        let name = CString::new(kernel).expect("names have no zero byte");
        let mut places: Vec<*mut c_void> = arguments.iter().map(Argument::place).collect();
        let mut function = ptr::null_mut();
        // SAFETY: the out-pointer is to a local.
        let found = unsafe { cuModuleGetFunction(&mut function, self.module, name.as_ptr()) };
        check(kernel, found);
        // SAFETY: every place holds an argument until the call returns; the launch copies them.
        let launched = unsafe {
            cuLaunchKernel(
                function,
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                dynamic_shared,
                ptr::null_mut(),
                places.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check(kernel, launched);
        // SAFETY: takes nothing.
        check(kernel, unsafe { cuCtxSynchronize() });
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: both were made in `load`, and nothing runs. A failure was told by the launch.
        unsafe {
            cuModuleUnload(self.module);
            cuCtxDestroy_v2(self.context);
        }
    }
}

impl Buffer {
    fn new(bytes: usize) -> Buffer {
        let mut address = MaybeUninit::uninit();
        // SAFETY: the out-pointer is to a local, which is written on success.
        let address = unsafe {
            check("cuMemAlloc", cuMemAlloc_v2(address.as_mut_ptr(), bytes));
            address.assume_init()
        };
        Buffer {
            address,
            bytes,
            _not_send: PhantomData,
        }
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, and nothing runs. A failure was told by the launch already.
        unsafe { cuMemFree_v2(self.address) };
    }
}

#[track_caller]
fn check(what: &str, outcome: i32) {
    assert_eq!(
        outcome, 0,
        "{what}: CUDA error {outcome}; stderr tells the emulator's report"
    );
}
