//! cudarc's safe layer with randomly interleaved streams: work ordered by events stays correct, and
//! unordered work fails with some seed.

#![cfg(target_os = "linux")]

#[path = "emulated/broken.rs"]
mod broken;
mod emulated;
#[path = "emulated/nccl.rs"]
mod nccl;
#[path = "emulated/processes.rs"]
mod processes;

use std::collections::BTreeSet;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError, LaunchConfig, PushKernelArg, result};
use cudarc::nvrtc::Ptx;

pub(crate) fn open_emulator() {
    emulated::driver(&[
        ("MESHGRAD_EMULATOR_STREAMS", "random:11"),
        ("MESHGRAD_EMULATOR_DEVICES", "4"),
        ("MESHGRAD_EMULATOR_SUMS", "perturbed:5"),
        ("MESHGRAD_EMULATOR_QUIET", "1"),
        ("MESHGRAD_EMULATOR_LEAKS", "error"),
    ]);
}

fn context() -> Arc<CudaContext> {
    open_emulator();
    CudaContext::new_non_primary(0, 0).expect("contexts can be created")
}

/// x[i] = x[i] + 1 for one block.
const INCREMENT: &str = "
    .version 7.0
    .target sm_80
    .address_size 64
    .visible .entry increment(.param .u64 x)
    {
        .reg .u64 %x, %at;
        .reg .u32 %i, %value;
        ld.param.u64 %x, [x];
        mov.u32 %i, %tid.x;
        mul.wide.u32 %at, %i, 4;
        add.u64 %x, %x, %at;
        ld.global.u32 %value, [%x];
        add.u32 %value, %value, 1;
        st.global.u32 [%x], %value;
        ret;
    }";

fn block(threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

#[test]
fn work_ordered_by_events_is_correct() -> Result<(), DriverError> {
    let context = context();
    let streams = (0..3).map(|_| context.new_stream()).collect::<Result<Vec<_>, _>>()?;
    let kernel = context.load_module(Ptx::from_src(INCREMENT))?.load_function("increment")?;
    for round in 0..50 {
        let mut x = streams[round % 3].clone_htod(&[0_u32; 8])?;
        for step in 0..9 {
            // cudarc waits for the stream that wrote last.
            let mut launch = streams[step % 3].launch_builder(&kernel);
            launch.arg(&mut x);
            // SAFETY: the argument matches the kernel.
            unsafe { launch.launch(block(8)) }?;
        }
        assert_eq!(streams[0].clone_dtoh(&x)?, [9; 8]);
    }
    Ok(())
}

/// A producer stream overwrites 0 by 1, and a consumer stream copies the value. Nothing orders the
/// two. Returns the copied value.
fn unordered(producer: &Arc<CudaStream>, consumer: &Arc<CudaStream>) -> Result<u32, DriverError> {
    // SAFETY: plain allocations, freed below.
    let (from, to) = unsafe { (result::malloc_sync(4)?, result::malloc_sync(4)?) };
    let mut seen = [9];
    // SAFETY: all have four bytes.
    unsafe {
        result::memset_d8_sync(from, 0, 4)?;
        result::ctx::synchronize()?;
        result::memset_d8_async(from, 1, 4, producer.cu_stream())?;
        result::memcpy_dtod_async(to, from, 4, consumer.cu_stream())?;
        result::ctx::synchronize()?;
        result::memcpy_dtoh_sync(&mut seen, to)?;
        result::free_sync(from)?;
        result::free_sync(to)?;
    }
    Ok(seen[0] & 1)
}

#[test]
fn unordered_work_fails_with_some_seed() -> Result<(), DriverError> {
    let context = context();
    let (producer, consumer) = (context.new_stream()?, context.new_stream()?);
    let seen = (0..50).map(|_| unordered(&producer, &consumer));
    let seen = seen.collect::<Result<BTreeSet<_>, _>>()?;
    assert_eq!(seen, BTreeSet::from([0, 1]));
    Ok(())
}

#[test]
fn pageable_memory_is_read_at_submission() -> Result<(), DriverError> {
    let context = context();
    let stream = context.new_stream()?;
    for _ in 0..20 {
        let mut x = stream.alloc_zeros::<u32>(4)?;
        let mut host = vec![5_u32; 4];
        stream.memcpy_htod(&host, &mut x)?;
        host.fill(6);
        assert_eq!(stream.clone_dtoh(&x)?, [5; 4]);
    }
    Ok(())
}

#[test]
fn pinned_memory_is_read_when_the_copy_runs() -> Result<(), DriverError> {
    let context = context();
    let stream = context.new_stream()?;
    let mut seen = BTreeSet::new();
    for _ in 0..50 {
        let mut back = [0_u8];
        // SAFETY: all have one byte; the early write by the host is what is tested.
        unsafe {
            let pinned = result::malloc_host(1, 0)?.cast::<u8>();
            let x = result::malloc_sync(1)?;
            pinned.write(5);
            let copied = std::slice::from_raw_parts(pinned, 1);
            result::memcpy_htod_async(x, copied, stream.cu_stream())?;
            pinned.write(6);
            stream.synchronize()?;
            result::memcpy_dtoh_sync(&mut back, x)?;
            result::free_sync(x)?;
            result::free_host(pinned.cast())?;
        }
        seen.insert(back[0]);
    }
    assert_eq!(seen, BTreeSet::from([5, 6]));
    Ok(())
}

#[test]
fn a_failed_kernel_is_reported_at_synchronization() -> Result<(), DriverError> {
    let context = context();
    let stream = context.new_stream()?;
    let kernel = context.load_module(Ptx::from_src(INCREMENT))?.load_function("increment")?;
    let mut x = stream.clone_htod(&[0_u32; 8])?;
    stream.synchronize()?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut x);
    // SAFETY: the emulator catches the access of the ninth thread, which is what is tested.
    let launched = unsafe { launch.launch(block(9)) };
    let error = launched.and_then(|_| stream.synchronize()).unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    Ok(())
}

#[test]
fn a_destroyed_context_reports_leaks() -> Result<(), DriverError> {
    context().bind_to_thread()?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: the result has an address; the context is destroyed below.
    unsafe { sys::cuCtxCreate_v4(&mut raw, std::ptr::null_mut(), 0, 0) }.result()?;
    // SAFETY: it is not used, and freed with the context.
    let kept = unsafe { result::malloc_sync(100) }?;
    assert_ne!(kept, 0);
    // SAFETY: it is no longer used.
    let ended = unsafe { sys::cuCtxDestroy_v2(raw) };
    assert_eq!(ended, CUresult::CUDA_ERROR_ILLEGAL_STATE);
    // SAFETY: as above.
    unsafe { sys::cuCtxCreate_v4(&mut raw, std::ptr::null_mut(), 0, 0) }.result()?;
    // SAFETY: as above.
    unsafe { sys::cuCtxDestroy_v2(raw) }.result()
}
