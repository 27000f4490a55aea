//! Exported functions: streams, capture, host callbacks and memory operations.

use std::ffi::c_int;

use super::arguments::{HostFunction, Out, Pointer, StreamCallback};
use super::{driver, exports};
use crate::driver::capture::CaptureMode;
use crate::driver::error::Code;
use crate::driver::event::EventHandle;
use crate::driver::work::Work;

exports! {
    fn cuStreamCreate(stream: Out<u64>, flags: u32) {
        stream.set(driver()?.create_stream(flags, 0)?.raw())
    }

    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: c_int) {
        stream.set(driver()?.create_stream(flags, priority)?.raw())
    }

    fn cuStreamDestroy_v2(stream: u64) {
        driver()?.destroy_stream(stream)
    }

    fn cuStreamSynchronize(stream: u64) {
        driver()?.synchronize_stream(stream)
    }

    fn cuStreamQuery(stream: u64) {
        driver()?.query_stream(stream)
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) {
        driver()?.wait_event(stream, EventHandle::from_raw(event), flags)
    }

    fn cuStreamGetFlags(stream: u64, flags: Out<u32>) {
        flags.set(driver()?.stream_flags(stream)?)
    }

    fn cuStreamGetPriority(stream: u64, priority: Out<c_int>) {
        priority.set(driver()?.stream_priority(stream)?)
    }

    fn cuStreamGetCtx(stream: u64, context: Out<u64>) {
        context.set(driver()?.stream_context(stream)?.raw())
    }

    fn cuStreamBeginCapture_v2(stream: u64, mode: c_int) {
        driver()?.begin_capture(stream, CaptureMode::from_number(mode)?)
    }

    fn cuStreamEndCapture(stream: u64, graph: Out<u64>) {
        graph.set(0)?;
        graph.set(driver()?.end_capture(stream)?.raw())
    }

    fn cuStreamIsCapturing(stream: u64, status: Out<c_int>) {
        status.set(driver()?.capture_status(stream)? as c_int)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        let new = CaptureMode::from_number(mode.get()?)?;
        mode.set(driver()?.exchange_capture_mode(new) as c_int)
    }

    fn cuLaunchHostFunc(stream: u64, function: HostFunction, data: Pointer) {
        driver()?.submit(stream, Work::Host(function.with(data)?))
    }

    fn cuStreamAddCallback(stream: u64, function: StreamCallback, data: Pointer, flags: u32) {
        match flags {
            0 => driver()?.submit(stream, Work::Host(function.with(stream, data)?)),
            _ => Err(Code::InvalidValue.because("the flags of cuStreamAddCallback must be 0")),
        }
    }

    fn cuStreamWriteValue32_v2(stream: u64, address: u64, value: u32, _flags: u32) {
        driver()?.write_value(stream, address, &value.to_le_bytes())
    }

    fn cuStreamWriteValue64_v2(stream: u64, address: u64, value: u64, _flags: u32) {
        driver()?.write_value(stream, address, &value.to_le_bytes())
    }

    fn cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: u32) {
        driver()?.wait_value(stream, address, value.into(), 4, flags)
    }

    fn cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: u32) {
        driver()?.wait_value(stream, address, value, 8, flags)
    }
}
