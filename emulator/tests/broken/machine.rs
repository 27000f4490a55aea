//! A context on device 0, through the driver's C functions, whose failures are the emulator's
//! reports.

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr;

// Linked, not called by name: the driver's functions are what it exports.
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
    /// The emulator's own: its latest words, and how many bytes they take.
    fn meshgrad_emulator_last_report(buffer: *mut c_char, bytes: usize) -> usize;
}

/// A context of its own, current in this thread.
pub(crate) struct Machine {
    context: *mut c_void,
    report_before: String,
}

/// A loaded module.
pub(crate) struct Module(*mut c_void);

/// A kernel of a module.
pub(crate) struct Kernel(*mut c_void);

/// Memory of the device.
pub(crate) struct Buffer {
    address: u64,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        let mut context = ptr::null_mut();
        // SAFETY: the out-pointer is to a local.
        unsafe {
            check("cuInit", cuInit(0));
            check("cuCtxCreate", cuCtxCreate_v2(&mut context, 0, 0));
        }
        Machine {
            context,
            report_before: last_report(),
        }
    }

    pub(crate) fn load(&self, ptx: &str) -> Result<Module, String> {
        let text = CString::new(ptx).expect("PTX has no zero byte");
        let mut module = ptr::null_mut();
        // SAFETY: the out-pointer is to a local, and the text ends with a zero.
        reported(unsafe { cuModuleLoadData(&mut module, text.as_ptr().cast()) })?;
        Ok(Module(module))
    }

    pub(crate) fn unload(&self, module: Module) {
        // SAFETY: the module is loaded, and nothing runs.
        check("cuModuleUnload", unsafe { cuModuleUnload(module.0) });
    }

    pub(crate) fn kernel(&self, module: &Module, name: &CStr) -> Kernel {
        let mut function = ptr::null_mut();
        // SAFETY: the out-pointer is to a local.
        let found = unsafe { cuModuleGetFunction(&mut function, module.0, name.as_ptr()) };
        check("cuModuleGetFunction", found);
        Kernel(function)
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Buffer {
        let mut address = MaybeUninit::uninit();
        // SAFETY: the out-pointer is to a local, which is written on success.
        let address = unsafe {
            check("cuMemAlloc", cuMemAlloc_v2(address.as_mut_ptr(), bytes));
            address.assume_init()
        };
        Buffer { address }
    }

    pub(crate) fn free(&self, buffer: &Buffer) {
        // SAFETY: allocated above, and nothing runs.
        check("cuMemFree", unsafe { cuMemFree_v2(buffer.address) });
    }

    pub(crate) fn write(&self, buffer: &Buffer, bytes: &[u8]) {
        let from = bytes.as_ptr().cast();
        // SAFETY: `from` is `bytes.len()` long; the driver knows how long the buffer is.
        check("cuMemcpyHtoD", unsafe {
            cuMemcpyHtoD_v2(buffer.address, from, bytes.len())
        });
    }

    /// The first `count` words.
    pub(crate) fn read(&self, buffer: &Buffer, count: usize) -> Vec<u32> {
        let mut words = vec![0u32; count];
        let to = words.as_mut_ptr().cast();
        // SAFETY: `to` is `count` words long; the driver knows how long the buffer is.
        check("cuMemcpyDtoH", unsafe {
            cuMemcpyDtoH_v2(to, buffer.address, 4 * count)
        });
        words
    }

    /// Runs a kernel over its buffers to its end.
    pub(crate) fn launch(
        &self,
        kernel: &Kernel,
        [grid_x, grid_y, grid_z]: [u32; 3],
        [block_x, block_y, block_z]: [u32; 3],
        dynamic_shared: u32,
        buffers: &[(Buffer, &str)],
    ) -> Result<(), String> {
        let addresses: Vec<u64> = buffers.iter().map(|(buffer, _)| buffer.address).collect();
        let places = addresses
            .iter()
            .map(|address| ptr::from_ref(address).cast_mut().cast());
        let mut places: Vec<*mut c_void> = places.collect();
        // SAFETY: every place holds an address until the call returns, which copies them.
        let launched = unsafe {
            cuLaunchKernel(
                kernel.0,
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
        reported(launched)?;
        // SAFETY: takes nothing.
        reported(unsafe { cuCtxSynchronize() })
    }

    /// Ends the context; the report of what it still held, if it held something.
    pub(crate) fn end(self) -> Option<String> {
        // SAFETY: the context is this thread's, and nothing of it is used any more.
        check("cuCtxDestroy", unsafe { cuCtxDestroy_v2(self.context) });
        Some(last_report()).filter(|report| *report != self.report_before)
    }
}

/// The emulator's words for a call that has failed.
fn reported(outcome: i32) -> Result<(), String> {
    match outcome {
        0 => Ok(()),
        _ => Err(last_report()),
    }
}

fn last_report() -> String {
    let mut words = vec![0u8; 1 << 16];
    // SAFETY: the buffer is as long as is said.
    let length = unsafe { meshgrad_emulator_last_report(words.as_mut_ptr().cast(), words.len()) };
    words.truncate(length.min((1 << 16) - 1));
    String::from_utf8_lossy(&words).into_owned()
}

#[track_caller]
fn check(what: &str, outcome: i32) {
    assert_eq!(
        outcome,
        0,
        "{what}: CUDA error {outcome}: {}",
        last_report()
    );
}
