//! cudarc's examples, by number.

use std::thread;

use cudarc::driver::{
    CudaSlice, DeviceRepr, DriverError, LaunchConfig, PushKernelArg, sys, sys::CUresult,
};
use cudarc::nvrtc::Ptx;

use crate::{SQUARE, context, own_context, square};

#[test]
fn example_01_allocate() -> Result<(), DriverError> {
    let stream = context(0).default_stream();
    // SAFETY: it is never read.
    let uninitialized: CudaSlice<f32> = unsafe { stream.alloc(10) }?;
    assert_eq!(uninitialized.len(), 10);
    let zeros: CudaSlice<f64> = stream.alloc_zeros(10)?;
    assert_eq!(stream.clone_dtoh(&zeros)?, [0.0; 10]);
    let numbers = stream.clone_htod(&[1_u32, 2, 3])?;
    assert_eq!(stream.clone_dtoh(&numbers)?, [1, 2, 3]);
    Ok(())
}

#[test]
fn example_02_copy() -> Result<(), DriverError> {
    let stream = context(0).default_stream();
    let a = stream.clone_htod(&[1.0_f64, 2.0, 3.0])?;
    let mut b = stream.alloc_zeros::<f64>(5)?;
    stream.memcpy_dtod(&a, &mut b.slice_mut(1..4))?;
    let mut back = [9.0; 5];
    stream.memcpy_dtoh(&b, &mut back)?;
    assert_eq!(back, [0.0, 1.0, 2.0, 3.0, 0.0]);
    stream.memset_zeros(&mut b)?;
    assert_eq!(stream.clone_dtoh(&b)?, [0.0; 5]);
    Ok(())
}

#[test]
fn example_03_launch_kernel() -> Result<(), DriverError> {
    let context = context(0);
    let stream = context.default_stream();
    let module = context.load_module(Ptx::from_src(SQUARE))?;
    let kernel = module.load_function("square")?;
    let x_host = [1.0_f32, 2.0, 3.0];
    let x = stream.clone_htod(&x_host)?;
    let mut y = x.clone();
    let n = 3_i32;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut y).arg(&x).arg(&n);
    // SAFETY: the arguments match the kernel.
    unsafe { launch.launch(LaunchConfig::for_num_elems(3)) }?;
    assert_eq!(stream.clone_dtoh(&x)?, x_host);
    assert_eq!(stream.clone_dtoh(&y)?, x_host.map(square));

    let missing = module.load_function("cube").unwrap_err();
    assert_eq!(missing.0, CUresult::CUDA_ERROR_NOT_FOUND);
    Ok(())
}

#[test]
fn example_04_streams() -> Result<(), DriverError> {
    let context = own_context();
    let stream = context.default_stream();
    let module = context.load_module(Ptx::from_src(SQUARE))?;
    let kernel = module.load_function("square")?;
    let x_host = [1.0_f32, 2.0, 3.0];
    let x = stream.clone_htod(&x_host)?;
    let mut y = stream.alloc_zeros::<f32>(3)?;
    let other = stream.fork()?;
    let mut launch = other.launch_builder(&kernel);
    launch.arg(&mut y).arg(&x).arg(&3_i32);
    // SAFETY: the arguments match the kernel.
    unsafe { launch.launch(LaunchConfig::for_num_elems(3)) }?;
    assert_eq!(stream.clone_dtoh(&y)?, x_host.map(square));
    assert_eq!(stream.clone_dtoh(&x)?, x_host);
    stream.join(&other)?;
    context.synchronize()
}

/// The parameter that the kernel of the next test declares.
#[repr(C)]
struct Mixed {
    a: f32,
    b: f64,
    c: u32,
    d: usize,
}

// SAFETY: plain numbers with C layout.
unsafe impl DeviceRepr for Mixed {}

#[test]
fn example_05_device_repr() -> Result<(), DriverError> {
    const SUM: &str = "
        .version 7.0
        .target sm_80
        .address_size 64
        .visible .entry sum(.param .u64 out, .param .align 8 .b8 mixed[32])
        {
            .reg .u64 %out, %d;
            .reg .u32 %c;
            .reg .f32 %a;
            .reg .f64 %sum, %term;
            ld.param.u64 %out, [out];
            ld.param.f32 %a, [mixed];
            ld.param.f64 %sum, [mixed + 8];
            ld.param.u32 %c, [mixed + 16];
            ld.param.u64 %d, [mixed + 24];
            cvt.f64.f32 %term, %a;
            add.f64 %sum, %sum, %term;
            cvt.rn.f64.u32 %term, %c;
            add.f64 %sum, %sum, %term;
            cvt.rn.f64.u64 %term, %d;
            add.f64 %sum, %sum, %term;
            st.global.f64 [%out], %sum;
            ret;
        }";
    let context = context(0);
    let stream = context.default_stream();
    let kernel = context.load_module(Ptx::from_src(SUM))?.load_function("sum")?;
    let mixed = Mixed { a: 1.0, b: 2.25, c: 57, d: 420 };
    let mut out = stream.alloc_zeros::<f64>(1)?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut out).arg(&mixed);
    let one_thread =
        LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the arguments match the kernel.
    unsafe { launch.launch(one_thread) }?;
    assert_eq!(stream.clone_dtoh(&out)?, [480.25]);
    Ok(())
}

#[test]
fn example_06_threading() {
    let context = context(0);
    let module = context.load_module(Ptx::from_src(SQUARE)).unwrap();
    thread::scope(|scope| {
        for index in 0..8 {
            let (context, module) = (context.clone(), module.clone());
            scope.spawn(move || {
                let stream = context.default_stream();
                let kernel = module.load_function("square").unwrap();
                let x_host = [index as f32; 100];
                let x = stream.clone_htod(&x_host).unwrap();
                let mut y = stream.alloc_zeros::<f32>(100).unwrap();
                let mut launch = stream.launch_builder(&kernel);
                launch.arg(&mut y).arg(&x).arg(&100_i32);
                // SAFETY: the arguments match the kernel.
                unsafe { launch.launch(LaunchConfig::for_num_elems(100)) }.unwrap();
                assert_eq!(stream.clone_dtoh(&y).unwrap(), x_host.map(square));
            });
        }
    });
}

#[test]
fn example_09_constant_memory() -> Result<(), DriverError> {
    let context = context(0);
    let stream = context.default_stream();
    let module = context.load_module(Ptx::from_src(SQUARE))?;
    let mut scale = module.get_global("scale", &stream)?;
    assert_eq!(scale.len(), 4);
    // SAFETY: four bytes are one f32.
    let mut scale = unsafe { scale.transmute_mut::<f32>(1) }.expect("the variable holds one f32");
    stream.memcpy_htod(&[10.0], &mut scale)?;
    let kernel = module.load_function("square")?;
    let x = stream.clone_htod(&[0.5_f32])?;
    let mut y = stream.alloc_zeros::<f32>(1)?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut y).arg(&x).arg(&1_i32);
    // SAFETY: the arguments match the kernel.
    unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }?;
    assert_eq!(stream.clone_dtoh(&y)?, [2.5]);
    Ok(())
}

#[test]
fn example_10_function_attributes() -> Result<(), DriverError> {
    let context = context(0);
    let kernel = context.load_module(Ptx::from_src(SQUARE))?.load_function("square")?;
    assert!(kernel.num_regs()? > 0);
    assert_eq!(kernel.shared_size_bytes()?, 0);
    assert_eq!(kernel.local_size_bytes()?, 0);
    assert_eq!(kernel.max_threads_per_block()?, 1024);
    assert_eq!(kernel.binary_version()?, 90);

    extern "C" fn no_shared(_threads: i32) -> usize {
        0
    }
    let (grid, block) = kernel.occupancy_max_potential_block_size(no_shared, 0, 0, None)?;
    assert_eq!((grid, block), (2 * 132, 1024));
    extern "C" fn much_shared(threads: i32) -> usize {
        threads as usize * 256
    }
    let (_, block) = kernel.occupancy_max_potential_block_size(much_shared, 0, 0, None)?;
    assert!(block as usize * 256 <= 232_448);
    let blocks = kernel.occupancy_max_active_blocks_per_multiprocessor(256, 100 << 10, None)?;
    assert_eq!(blocks, 2);
    let shared = kernel.occupancy_available_dynamic_smem_per_block(2, 256)?;
    assert!((100 << 10..114 << 10).contains(&shared), "{shared}");
    Ok(())
}

#[test]
fn example_12_context_config() -> Result<(), DriverError> {
    let context = context(1);
    use sys::CUlimit::*;
    for limit in [
        CU_LIMIT_STACK_SIZE,
        CU_LIMIT_MALLOC_HEAP_SIZE,
        CU_LIMIT_PRINTF_FIFO_SIZE,
        CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH,
        CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT,
    ] {
        let before = context.get_limit(limit)?;
        assert!(before > 0);
        context.set_limit(limit, before * 2)?;
        assert_eq!(context.get_limit(limit)?, before * 2);
        context.set_limit(limit, before)?;
    }
    let before = context.get_cache_config()?;
    context.set_cache_config(sys::CUfunc_cache::CU_FUNC_CACHE_PREFER_SHARED)?;
    let after = context.get_cache_config()?;
    assert_eq!(after, sys::CUfunc_cache::CU_FUNC_CACHE_PREFER_SHARED);
    context.set_cache_config(before)?;
    context.set_blocking_synchronize()
}

#[test]
fn example_13_copy_between_devices() -> Result<(), DriverError> {
    let (first, second) = (context(0).default_stream(), context(1).default_stream());
    let a = first.clone_htod(&[1.0_f64, 2.0, 3.0])?;
    let b = second.clone_dtod(&a)?;
    assert_eq!(second.clone_dtoh(&b)?, [1.0, 2.0, 3.0]);
    assert_eq!(first.clone_dtoh(&a)?, [1.0, 2.0, 3.0]);
    Ok(())
}
