//! Launches with a parameter buffer, counted launches, and function lookup by name.

use std::ffi::{CString, c_char, c_void};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{DriverError, LaunchConfig, PushKernelArg, result};
use cudarc::nvrtc::Ptx;

use crate::{SQUARE, context, open};

#[test]
fn launches_accept_a_parameter_buffer() -> Result<(), DriverError> {
    let context = context(0);
    let stream = context.default_stream();
    let text = CString::new(SQUARE).unwrap();
    // SAFETY: the text ends with a NUL.
    let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
    // SAFETY: the module is loaded.
    let kernel = unsafe { result::module::get_function(module, c"square".to_owned()) }?;
    // SAFETY: plain allocations, freed below.
    let (x, y) = unsafe { (result::malloc_sync(4)?, result::malloc_sync(4)?) };
    // SAFETY: `x` has four bytes.
    unsafe { result::memcpy_htod_sync(x, &[0.5_f32]) }?;
    let mut buffer = [y.to_ne_bytes(), x.to_ne_bytes(), 1_u64.to_ne_bytes()].concat();
    let mut length = 20_usize;
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(1),
        buffer.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(2),
        (&raw mut length).cast(),
        std::ptr::null_mut(),
    ];
    let none = std::ptr::null_mut();
    let launch = |extra: &mut [*mut c_void; 5]| {
        let stream = stream.cu_stream();
        // SAFETY: the buffer holds the kernel's parameters.
        unsafe {
            sys::cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, none, extra.as_mut_ptr())
        }
    };
    launch(&mut extra).result()?;
    let mut back = [0.0_f32];
    // SAFETY: `y` has four bytes.
    unsafe { result::memcpy_dtoh_sync(&mut back, y) }?;
    assert_eq!(back, [0.25]);

    length = 19;
    extra[3] = (&raw mut length).cast();
    assert_eq!(launch(&mut extra), CUresult::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: nothing uses them any more.
    unsafe {
        result::free_sync(x)?;
        result::free_sync(y)?;
        result::module::unload(module)
    }
}

#[test]
fn functions_are_found_by_name() {
    context(0);
    let find = |name: &std::ffi::CStr| {
        let mut function = std::ptr::null_mut();
        let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
        // SAFETY: both results have an address.
        let code = unsafe {
            sys::cuGetProcAddress_v2(name.as_ptr(), &mut function, 12080, 0, &mut status)
        };
        (code, function.is_null(), status as u32)
    };
    assert_eq!(find(c"cuMemAlloc"), (CUresult::CUDA_SUCCESS, false, 0));
    assert_eq!(find(c"cuLaunchKernel"), (CUresult::CUDA_SUCCESS, false, 0));
    assert_eq!(find(c"cuArrayCreate"), (CUresult::CUDA_ERROR_NOT_FOUND, true, 1));
}

#[test]
fn launches_are_counted_on_demand() -> Result<(), DriverError> {
    type Start = unsafe extern "C" fn();
    type Take = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    // SAFETY: these are the functions' types.
    let (start, take) = unsafe {
        let start = open().get::<Start>(b"meshgrad_emulator_counters_start").unwrap();
        let take = open().get::<Take>(b"meshgrad_emulator_counters_take").unwrap();
        (start, take)
    };
    let context = context(0);
    let stream = context.default_stream();
    let text = SQUARE.replace("square", "counted_kernel");
    let kernel = context.load_module(Ptx::from_src(text))?.load_function("counted_kernel")?;
    let x = stream.clone_htod(&[1.0_f32; 64])?;
    let mut y = stream.alloc_zeros::<f32>(64)?;
    // SAFETY: starting to count has no preconditions.
    unsafe { start() };
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut y).arg(&x).arg(&64_i32);
    // SAFETY: the arguments match the kernel.
    unsafe { launch.launch(LaunchConfig::for_num_elems(64)) }?;
    // SAFETY: without a buffer, it returns the required size.
    let needed = unsafe { take(std::ptr::null_mut(), 0) };
    // Concurrent tests may add their launches.
    let mut json = vec![0_u8; needed * 100];
    // SAFETY: the buffer has this size.
    let length = unsafe { take(json.as_mut_ptr().cast(), json.len()) };
    let json = String::from_utf8_lossy(&json[..length]);
    assert!(json.starts_with('[') && json.ends_with(']'), "{json}");
    assert!(json.contains("\"kernel\":\"counted_kernel\",\"ctas\":1"), "{json}");
    Ok(())
}
