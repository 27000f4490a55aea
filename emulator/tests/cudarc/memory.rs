//! Devices, device memory, page-locked memory and 2D copies.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use crate::{SQUARE, context, own_context, report};

#[test]
fn devices_are_configured_by_the_environment() -> Result<(), DriverError> {
    let (h200, a100) = (context(0), context(1));
    assert_eq!(CudaContext::device_count()?, 4);
    assert!(h200.name()?.contains("H200") && a100.name()?.contains("A100"));
    assert_eq!((h200.compute_capability()?, a100.compute_capability()?), ((9, 0), (8, 0)));
    assert_eq!(h200.total_mem()?, 64 << 20);
    assert_ne!(h200.uuid()?.bytes, a100.uuid()?.bytes);
    assert!(h200.has_async_alloc());
    let error = CudaContext::new(4).unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_INVALID_DEVICE);
    Ok(())
}

#[test]
fn allocation_fails_when_memory_is_exhausted() -> Result<(), DriverError> {
    let context = context(1);
    let stream = context.default_stream();
    let (_, total) = context.mem_get_info()?;
    // The last report is often that of a test in another thread.
    let reported = (0..1000).any(|_| {
        let error = stream.alloc_zeros::<u8>(total + 1).unwrap_err();
        assert_eq!(error.0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        report().contains("bytes requested")
    });
    assert!(reported, "{}", report());
    Ok(())
}

#[test]
fn pinned_and_managed_memory_is_accessible_on_the_host() -> Result<(), DriverError> {
    let context = context(0);
    let stream = context.default_stream();
    // SAFETY: it is written before it is read.
    let mut pinned = unsafe { context.alloc_pinned::<u32>(4) }?;
    pinned.as_mut_slice()?.copy_from_slice(&[1, 2, 3, 4]);
    let mut numbers = stream.alloc_zeros::<u32>(4)?;
    stream.memcpy_htod(&pinned, &mut numbers)?;
    assert_eq!(stream.clone_dtoh(&numbers)?, [1, 2, 3, 4]);
    // Host writes count as initialized.
    let kernel = context.load_module(Ptx::from_src(SQUARE))?.load_function("square")?;
    let mut squares = stream.alloc_zeros::<f32>(4)?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut squares).arg(&numbers).arg(&4_i32);
    // SAFETY: the arguments match the kernel, which accepts any bits.
    unsafe { launch.launch(LaunchConfig::for_num_elems(4)) }?;
    stream.synchronize()?;
    stream.memset_zeros(&mut numbers)?;
    stream.memcpy_dtoh(&numbers, &mut pinned)?;
    // cudarc synchronizes only once its context has a second stream.
    stream.synchronize()?;
    assert_eq!(pinned.as_slice()?, [0; 4]);

    // SAFETY: it is written before it is read.
    let mut managed = unsafe { context.alloc_unified::<u32>(4, true) }?;
    managed.as_mut_slice()?.copy_from_slice(&[5, 6, 7, 8]);
    stream.memcpy_dtod(&managed, &mut numbers)?;
    assert_eq!(stream.clone_dtoh(&numbers)?, [5, 6, 7, 8]);
    Ok(())
}

#[test]
fn kernels_access_registered_memory() -> Result<(), DriverError> {
    let context = own_context();
    let stream = context.default_stream();
    let kernel = context.load_module(Ptx::from_src(SQUARE))?.load_function("square")?;
    let mut numbers = [Aligned([1.0_f32, 2.0, 3.0, 4.0]), Aligned([0.0; 4])];
    let start: *mut c_void = (&raw mut numbers).cast();
    let bytes = size_of_val(&numbers);
    // SAFETY: the memory stays valid until it is unregistered below.
    let register = |at: usize, bytes: usize| unsafe {
        sys::cuMemHostRegister_v2(start.wrapping_byte_add(at), bytes, 0)
    };
    assert_eq!(register(4, 8), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    register(0, bytes).result()?;
    for (at, bytes) in [(0, 4), (16, 4), (0, bytes)] {
        let again = register(at, bytes);
        assert_eq!(again, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }

    let mut x = 0;
    // SAFETY: `x` receives the result.
    unsafe { sys::cuMemHostGetDevicePointer_v2(&mut x, start, 0) }.result()?;
    let y = x + 16;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&y).arg(&x).arg(&4_i32);
    // SAFETY: the arguments match the kernel.
    unsafe { launch.launch(LaunchConfig::for_num_elems(4)) }?;
    stream.synchronize()?;
    // SAFETY: it points to `start`, and the kernel has finished.
    let written = unsafe { start.cast::<[f32; 8]>().read_volatile() };
    assert_eq!(written, [1.0, 2.0, 3.0, 4.0, 1.0, 4.0, 9.0, 16.0]);

    // SAFETY: nothing uses it any more.
    let unregister = || unsafe { sys::cuMemHostUnregister(start) };
    unregister().result()?;
    let none = CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    assert_eq!(unregister(), none);
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&y).arg(&x).arg(&4_i32);
    // SAFETY: the emulator catches the error, which is what is tested.
    let error = unsafe { launch.launch(LaunchConfig::for_num_elems(4)) }.unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    Ok(())
}

/// Numbers aligned as registered memory must be.
#[repr(C, align(16))]
struct Aligned([f32; 4]);

#[test]
fn two_dimensional_copies_have_pitches() -> Result<(), DriverError> {
    let context = context(0);
    let stream = context.default_stream();
    let device = stream.alloc_zeros::<u8>(16)?;
    let host: [u8; 6] = [1, 2, 3, 4, 5, 6];
    let mut copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: host.as_ptr().cast(),
        srcDevice: 0,
        srcArray: std::ptr::null_mut(),
        srcPitch: 3,
        dstXInBytes: 1,
        dstY: 1,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: cudarc::driver::DevicePtr::device_ptr(&device, &stream).0,
        dstArray: std::ptr::null_mut(),
        dstPitch: 5,
        WidthInBytes: 2,
        Height: 2,
    };
    // SAFETY: both buffers hold the rows.
    unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.cu_stream()) }.result()?;
    let back = stream.clone_dtoh(&device)?;
    assert_eq!(back, [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 4, 5, 0, 0, 0]);
    copy.dstPitch = 1;
    // SAFETY: the call is rejected.
    let refused = unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.cu_stream()) };
    assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_VALUE);
    Ok(())
}
