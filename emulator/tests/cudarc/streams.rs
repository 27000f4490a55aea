//! Events, captured graphs and host functions.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};
use cudarc::driver::{DriverError, LaunchConfig, PushKernelArg, result};
use cudarc::nvrtc::Ptx;

use crate::{SQUARE, context, own_context};

#[test]
fn events_order_and_time() -> Result<(), DriverError> {
    let context = own_context();
    let (stream, other) = (context.new_stream()?, context.new_stream()?);
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let start = stream.record_event(timed)?;
    let numbers = stream.clone_htod(&[7_u8; 1000])?;
    let end = stream.record_event(timed)?;
    other.wait(&end)?;
    assert_eq!(other.clone_dtoh(&numbers)?, [7; 1000]);
    assert!(start.elapsed_ms(&end)? >= 0.0);
    assert!(end.try_is_complete()?);
    let untimed = stream.record_event(None)?;
    let error = start.elapsed_ms(&untimed).unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_INVALID_HANDLE);
    Ok(())
}

#[test]
fn graphs_are_captured_and_launched() -> Result<(), DriverError> {
    let context = own_context();
    // SAFETY: only one stream is used.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?;
    let module = context.load_module(Ptx::from_src(SQUARE))?;
    let kernel = module.load_function("square")?;
    let mut x = stream.clone_htod(&[1.0_f32, 2.0])?;
    let mut y = stream.alloc_zeros::<f32>(2)?;

    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut y).arg(&x).arg(&2_i32);
    // SAFETY: the arguments match the kernel.
    unsafe { launch.launch(LaunchConfig::for_num_elems(2)) }?;
    stream.memset_zeros(&mut x)?;
    let capturing = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    assert_eq!(stream.capture_status()?, capturing);
    let none = sys::CUgraphInstantiate_flags_enum(0);
    let graph = stream.end_capture(none)?.expect("the capture has a graph");

    let mut nodes = 0;
    // SAFETY: with a null pointer, only the number is returned.
    unsafe { sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &mut nodes) }.result()?;
    assert_eq!(nodes, 2);
    assert_eq!(stream.clone_dtoh(&y)?, [0.0, 0.0]);
    graph.upload()?;
    graph.launch()?;
    assert_eq!(stream.clone_dtoh(&y)?, [1.0, 4.0]);
    graph.launch()?;
    assert_eq!(stream.clone_dtoh(&y)?, [0.0, 0.0]);
    Ok(())
}

#[test]
fn contradictory_graph_flags_are_rejected() -> Result<(), DriverError> {
    let stream = own_context().new_stream()?;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let contradictory = sys::CUgraphInstantiate_flags_enum(1 | 4);
    stream.begin_capture(mode)?;
    let error = stream.end_capture(contradictory).err().expect("the flags are rejected");
    assert_eq!(error.0, CUresult::CUDA_ERROR_INVALID_VALUE);
    stream.begin_capture(mode)?;
    let none = sys::CUgraphInstantiate_flags_enum(0);
    let graph = stream.end_capture(none)?.expect("the capture has a graph");
    graph.launch()?;
    stream.synchronize()
}

#[test]
fn host_functions_run_in_stream_order() -> Result<(), DriverError> {
    unsafe extern "C" fn increment(number: *mut c_void) {
        let refused = result::device::get_count().unwrap_err();
        assert_eq!(refused.0, CUresult::CUDA_ERROR_NOT_PERMITTED);
        // SAFETY: the test passes this pointer.
        unsafe { *number.cast::<u32>() += 1 }
    }
    let stream = context(0).new_stream()?;
    let mut number = 0_u32;
    let data = (&raw mut number).cast();
    for _ in 0..3 {
        // SAFETY: `number` lives until the stream is synchronized.
        unsafe { result::stream::launch_host_function(stream.cu_stream(), increment, data) }?;
    }
    stream.synchronize()?;
    assert_eq!(number, 3);
    Ok(())
}
