//! Safe wrappers of the driver's C functions on device 0.
//!
//! Errors are the emulator's reports.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

// Links the driver functions that the emulator exports.
extern crate meshgrad_emulator as _;

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
    fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_void) -> i32;
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
    /// The emulator's own function: its last report; returns the length.
    fn meshgrad_emulator_last_report(buffer: *mut c_char, bytes: usize) -> usize;
}

/// The result of a call; the error is the emulator's report.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// A context, current in the thread that created it.
pub(crate) struct Context(*mut c_void);

/// A loaded module.
pub(crate) struct Module(*mut c_void);

/// A kernel of a module.
pub(crate) struct Kernel(*mut c_void);

impl Context {
    pub(crate) fn new() -> Outcome<Context> {
        let mut context = ptr::null_mut();
        // SAFETY: the output pointer points to a local.
        unsafe {
            outcome(cuInit(0))?;
            outcome(cuCtxCreate_v2(&mut context, 0, 0))?;
        }
        Ok(Context(context))
    }

    /// Destroys the context with everything it holds.
    pub(crate) fn end(&self) -> Outcome {
        // SAFETY: the emulator looks handles up and does not dereference them.
        outcome(unsafe { cuCtxDestroy_v2(self.0) })
    }
}

impl Module {
    pub(crate) fn load(ptx: &str) -> Outcome<Module> {
        let mut module = ptr::null_mut();
        let text = CString::new(ptx).expect("PTX contains no NUL");
        // SAFETY: the output pointer points to a local, and the text ends with a NUL.
        outcome(unsafe { cuModuleLoadData(&mut module, text.as_ptr().cast()) })?;
        Ok(Module(module))
    }

    pub(crate) fn unload(&self) -> Outcome {
        // SAFETY: the emulator looks handles up and does not dereference them.
        outcome(unsafe { cuModuleUnload(self.0) })
    }

    pub(crate) fn kernel(&self, name: &CStr) -> Outcome<Kernel> {
        let mut function = ptr::null_mut();
        // SAFETY: the output pointer points to a local.
        outcome(unsafe { cuModuleGetFunction(&mut function, self.0, name.as_ptr()) })?;
        Ok(Kernel(function))
    }
}

impl Kernel {
    /// Runs the kernel to completion; `arguments` are the bytes of each argument.
    pub(crate) fn launch(
        &self,
        [grid_x, grid_y, grid_z]: [u32; 3],
        [block_x, block_y, block_z]: [u32; 3],
        dynamic_shared: u32,
        arguments: &[&[u8]],
    ) -> Outcome {
        let places = arguments.iter().map(|it| it.as_ptr().cast_mut().cast());
        let mut places: Vec<*mut c_void> = places.collect();
        // SAFETY: all arguments live until the call returns, which copies them.
        outcome(unsafe {
            cuLaunchKernel(
                self.0,
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
        })?;
        // SAFETY: the function takes no arguments.
        outcome(unsafe { cuCtxSynchronize() })
    }
}

/// Allocates device memory; returns its address.
pub(crate) fn allocate(bytes: usize) -> Outcome<u64> {
    let mut address = 0;
    // SAFETY: the output pointer points to a local.
    outcome(unsafe { cuMemAlloc_v2(&mut address, bytes) })?;
    Ok(address)
}

pub(crate) fn free(address: u64) -> Outcome {
    // SAFETY: the emulator checks the address.
    outcome(unsafe { cuMemFree_v2(address) })
}

pub(crate) fn write(address: u64, bytes: &[u8]) -> Outcome {
    // SAFETY: `bytes` has this length; the emulator checks the device range.
    outcome(unsafe { cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) })
}

pub(crate) fn read(address: u64, bytes: &mut [u8]) -> Outcome {
    // SAFETY: as for `write`.
    outcome(unsafe { cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()) })
}

/// Tests that provoke reports hold this lock, because the emulator keeps only the last report.
pub(crate) fn reports() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The emulator's report of the last failure, in any thread.
pub(crate) fn last_report() -> String {
    let mut words = vec![0u8; 1 << 16];
    // SAFETY: the buffer has the given length.
    let length = unsafe { meshgrad_emulator_last_report(words.as_mut_ptr().cast(), words.len()) };
    words.truncate(length.min((1 << 16) - 1));
    String::from_utf8_lossy(&words).into_owned()
}

fn outcome(code: i32) -> Outcome {
    match code {
        0 => Ok(()),
        _ => Err(last_report()),
    }
}
