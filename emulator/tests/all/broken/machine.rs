//! A context whose failures are the emulator's reports.

use std::ffi::CStr;

use crate::driver::{self, Context, Kernel, Module, last_report};

/// A context, current in this thread.
pub(crate) struct Machine {
    context: Context,
    report_before: String,
}

/// Device memory.
pub(crate) struct Buffer {
    address: u64,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine {
            context: Context::new().expect("a context is created"),
            report_before: last_report(),
        }
    }

    pub(crate) fn load(&self, ptx: &str) -> Result<Module, String> {
        Module::load(ptx)
    }

    pub(crate) fn kernel(&self, module: &Module, name: &CStr) -> Kernel {
        module.kernel(name).expect("the module has the kernel")
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Buffer {
        let address = driver::allocate(bytes).expect("memory is allocated");
        Buffer { address }
    }

    pub(crate) fn free(&self, buffer: &Buffer) {
        driver::free(buffer.address).expect("the buffer is allocated");
    }

    pub(crate) fn write(&self, buffer: &Buffer, bytes: &[u8]) {
        driver::write(buffer.address, bytes).expect("the bytes fit into the buffer");
    }

    /// The first `count` words.
    pub(crate) fn read(&self, buffer: &Buffer, count: usize) -> Result<Vec<u32>, String> {
        let mut words = vec![0u32; count];
        let bytes = bytemuck::cast_slice_mut(&mut words);
        driver::read(buffer.address, bytes)?;
        Ok(words)
    }

    /// Runs a kernel to completion.
    pub(crate) fn launch(
        &self,
        kernel: &Kernel,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
        buffers: &[(Buffer, &str)],
    ) -> Result<(), String> {
        let addresses = buffers.iter().map(|(buffer, _)| &buffer.address);
        let arguments: Vec<&[u8]> = addresses.map(bytemuck::bytes_of).collect();
        kernel.launch(grid, block, dynamic_shared, &arguments)
    }

    /// Destroys the context; returns the leak report, if there is one.
    pub(crate) fn end(self) -> Option<String> {
        self.context.end().expect("the context is current");
        Some(last_report()).filter(|report| *report != self.report_before)
    }
}
