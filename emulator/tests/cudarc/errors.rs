//! Errors and their messages.

use std::ffi::{CString, c_void};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use crate::{SQUARE, context, open, own_context};

#[test]
fn ptx_errors_are_in_the_log() {
    let context = context(0);
    let wrong = CString::new(SQUARE.replace("mul.f32 ", "mull.f32 ")).unwrap();
    context.bind_to_thread().unwrap();
    let mut log = [0_u8; 512];
    let mut module = std::ptr::null_mut();
    let mut options = [
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
    // SAFETY: as many values as options, and a buffer of the given size.
    let outcome = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            wrong.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    assert_eq!(outcome, CUresult::CUDA_ERROR_INVALID_PTX);
    let log = String::from_utf8_lossy(&log[..values[1] as usize]);
    assert!(log.contains("mull.f32"), "{log}");

    let binary = context.load_module(Ptx::from_src("\x7fELF..."));
    assert_eq!(binary.unwrap_err().0, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    let missing = context.load_module(Ptx::from_file("/no/such.ptx"));
    assert_eq!(missing.unwrap_err().0, CUresult::CUDA_ERROR_FILE_NOT_FOUND);
}

#[test]
fn a_failed_kernel_is_reported_and_invalidates_its_context() -> Result<(), DriverError> {
    let context = own_context();
    let stream = context.default_stream();
    let kernel = context.load_module(Ptx::from_src(SQUARE))?.load_function("square")?;
    let x = stream.clone_htod(&[1.0_f32; 4])?;
    let mut y = stream.alloc_zeros::<f32>(3)?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut y).arg(&x).arg(&4_i32);
    // SAFETY: the emulator catches the invalid access, which is what is tested.
    let error = unsafe { launch.launch(LaunchConfig::for_num_elems(4)) }.unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let error = stream.clone_dtoh(&y).unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    // Other contexts are not affected.
    let other = own_context();
    assert_eq!(other.default_stream().clone_htod(&[1_u8])?.len(), 1);
    Ok(())
}

#[test]
fn invalid_handles_are_errors() {
    let context = context(0);
    context.bind_to_thread().unwrap();
    let nonsense = 0x1234_5678_usize as *mut c_void;
    let stream = context.new_stream().unwrap();
    let destroyed = stream.cu_stream();
    drop(stream);
    // SAFETY: the emulator looks handles up and does not dereference them.
    let outcomes = unsafe {
        [
            sys::cuStreamSynchronize(nonsense.cast()),
            sys::cuStreamSynchronize(destroyed),
            sys::cuEventQuery(nonsense.cast()),
            sys::cuModuleUnload(nonsense.cast()),
            sys::cuStreamDestroy_v2(std::ptr::null_mut()),
        ]
    };
    assert_eq!(outcomes, [CUresult::CUDA_ERROR_INVALID_HANDLE; 5]);
}

#[test]
fn errors_have_names() {
    open();
    let error = DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    let name = error.error_name().unwrap();
    assert_eq!(name.to_str(), Ok("CUDA_ERROR_STREAM_CAPTURE_ISOLATION"));
    let words = DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY).error_string().unwrap();
    assert_eq!(words.to_str(), Ok("out of memory"));
}
