//! cudarc's numbered examples, its safe layer and its raw bindings, unmodified, on the emulator.

#![cfg(target_os = "linux")]

#[path = "../emulated/mod.rs"]
mod emulated;
mod errors;
mod examples;
mod launches;
mod memory;
#[path = "../emulated/nccl.rs"]
mod nccl;
#[path = "../emulated/processes.rs"]
mod processes;
mod streams;
mod structures;

use std::sync::Arc;

use cudarc::driver::CudaContext;

pub(crate) use emulated::report;

pub(crate) fn context(device: usize) -> Arc<CudaContext> {
    open();
    CudaContext::new(device).expect("the emulator has four devices")
}

/// A separate context, for tests that invalidate it.
pub(crate) fn own_context() -> Arc<CudaContext> {
    open();
    CudaContext::new_non_primary(0, 0).expect("contexts can be created")
}

pub(crate) fn open_emulator() {
    open();
}

pub(crate) fn open() -> &'static libloading::os::unix::Library {
    emulated::driver(&[
        ("MESHGRAD_EMULATOR_DEVICES", "h200,a100,h200,h200"),
        ("MESHGRAD_EMULATOR_MEMORY", "64MiB"),
        ("MESHGRAD_EMULATOR_QUIET", "1"),
    ])
}

/// y[i] = scale * x[i]^2 for i < n, with the variable `scale`.
pub(crate) const SQUARE: &str = "
    .version 7.0
    .target sm_80
    .address_size 64
    .global .align 4 .f32 scale = 0f3F800000;
    .visible .entry square(.param .u64 y, .param .u64 x, .param .s32 n)
    {
        .reg .pred %past;
        .reg .u32 %i, %n, %cta, %size, %thread;
        .reg .u64 %x, %y, %at;
        .reg .f32 %value, %scale;
        ld.param.u64 %y, [y];
        ld.param.u64 %x, [x];
        ld.param.u32 %n, [n];
        mov.u32 %cta, %ctaid.x;
        mov.u32 %size, %ntid.x;
        mov.u32 %thread, %tid.x;
        mad.lo.u32 %i, %cta, %size, %thread;
        setp.ge.s32 %past, %i, %n;
        @%past bra DONE;
        cvta.to.global.u64 %x, %x;
        cvta.to.global.u64 %y, %y;
        mul.wide.u32 %at, %i, 4;
        add.u64 %x, %x, %at;
        add.u64 %y, %y, %at;
        ld.global.f32 %value, [%x];
        mul.f32 %value, %value, %value;
        ld.global.f32 %scale, [scale];
        mul.f32 %value, %value, %scale;
        st.global.f32 [%y], %value;
    DONE:
        ret;
    }";

pub(crate) fn square(x: f32) -> f32 {
    x * x
}
