//! cudarc's numbered examples and its safe layer, unmodified, on the emulator.

#![cfg(target_os = "linux")]

mod emulated;

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::thread;

use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaSlice, DeviceRepr, DriverError, LaunchConfig, PushKernelArg, result,
};
use cudarc::nvrtc::Ptx;

fn context(device: usize) -> Arc<CudaContext> {
    open();
    CudaContext::new(device).expect("the emulator has two devices")
}

/// A context of its own, for a test that leaves it unusable.
fn own_context() -> Arc<CudaContext> {
    open();
    CudaContext::new_non_primary(0, 0).expect("contexts can be created")
}

fn open() -> &'static libloading::os::unix::Library {
    emulated::driver(&[
        ("MESHGRAD_EMULATOR_DEVICES", "h200,a100"),
        ("MESHGRAD_EMULATOR_MEMORY", "64MiB"),
        ("MESHGRAD_EMULATOR_QUIET", "1"),
    ])
}

/// y[i] = scale * x[i]^2 for i < n, with `scale` in memory.
const SQUARE: &str = "
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

fn square(x: f32) -> f32 {
    x * x
}

#[test]
fn example_01_allocate() -> Result<(), DriverError> {
    let stream = context(0).default_stream();
    // SAFETY: it is never read.
    let uninitialised: CudaSlice<f32> = unsafe { stream.alloc(10) }?;
    assert_eq!(uninitialised.len(), 10);
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
    // SAFETY: the arguments are those of the kernel.
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
    // SAFETY: the arguments are those of the kernel.
    unsafe { launch.launch(LaunchConfig::for_num_elems(3)) }?;
    assert_eq!(stream.clone_dtoh(&y)?, x_host.map(square));
    assert_eq!(stream.clone_dtoh(&x)?, x_host);
    stream.join(&other)?;
    context.synchronize()
}

/// As the kernel of the next test declares it.
#[repr(C)]
struct Mixed {
    a: f32,
    b: f64,
    c: u32,
    d: usize,
}

// SAFETY: plain numbers, laid out as in C.
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
    let kernel = context
        .load_module(Ptx::from_src(SUM))?
        .load_function("sum")?;
    let mixed = Mixed {
        a: 1.0,
        b: 2.25,
        c: 57,
        d: 420,
    };
    let mut out = stream.alloc_zeros::<f64>(1)?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut out).arg(&mixed);
    let one_thread = LaunchConfig {
        grid_dim: (1, 1, 1),
        block_dim: (1, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the arguments are those of the kernel.
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
                // SAFETY: the arguments are those of the kernel.
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
    let mut scale = unsafe { scale.transmute_mut::<f32>(1) }.expect("it fits");
    stream.memcpy_htod(&[10.0], &mut scale)?;
    let kernel = module.load_function("square")?;
    let x = stream.clone_htod(&[0.5_f32])?;
    let mut y = stream.alloc_zeros::<f32>(1)?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut y).arg(&x).arg(&1_i32);
    // SAFETY: the arguments are those of the kernel.
    unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }?;
    assert_eq!(stream.clone_dtoh(&y)?, [2.5]);
    Ok(())
}

#[test]
fn example_10_function_attributes() -> Result<(), DriverError> {
    let context = context(0);
    let kernel = context
        .load_module(Ptx::from_src(SQUARE))?
        .load_function("square")?;
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

#[test]
fn devices_are_those_of_the_environment() -> Result<(), DriverError> {
    let (h200, a100) = (context(0), context(1));
    assert_eq!(CudaContext::device_count()?, 2);
    assert!(h200.name()?.contains("H200") && a100.name()?.contains("A100"));
    assert_eq!(
        (h200.compute_capability()?, a100.compute_capability()?),
        ((9, 0), (8, 0))
    );
    assert_eq!(h200.total_mem()?, 64 << 20);
    assert_ne!(h200.uuid()?.bytes, a100.uuid()?.bytes);
    assert!(h200.has_async_alloc());
    let error = CudaContext::new(2).unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_INVALID_DEVICE);
    Ok(())
}

#[test]
fn memory_runs_out() -> Result<(), DriverError> {
    let context = context(1);
    let stream = context.default_stream();
    let (_, total) = context.mem_get_info()?;
    let error = stream.alloc_zeros::<u8>(total + 1).unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(report().contains("bytes asked for"), "{}", report());
    Ok(())
}

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
    // SAFETY: one stream does all.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?;
    let module = context.load_module(Ptx::from_src(SQUARE))?;
    let kernel = module.load_function("square")?;
    let mut x = stream.clone_htod(&[1.0_f32, 2.0])?;
    let mut y = stream.alloc_zeros::<f32>(2)?;

    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut y).arg(&x).arg(&2_i32);
    // SAFETY: the arguments are those of the kernel.
    unsafe { launch.launch(LaunchConfig::for_num_elems(2)) }?;
    stream.memset_zeros(&mut x)?;
    let capturing = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    assert_eq!(stream.capture_status()?, capturing);
    let none = sys::CUgraphInstantiate_flags_enum(0);
    let graph = stream.end_capture(none)?.expect("a graph");

    let mut nodes = 0;
    // SAFETY: a null pointer asks for the number alone.
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
fn graphs_refuse_contradictory_flags() -> Result<(), DriverError> {
    let stream = own_context().new_stream()?;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let contradictory = sys::CUgraphInstantiate_flags_enum(1 | 4);
    stream.begin_capture(mode)?;
    let error = stream
        .end_capture(contradictory)
        .err()
        .expect("it is refused");
    assert_eq!(error.0, CUresult::CUDA_ERROR_INVALID_VALUE);
    stream.begin_capture(mode)?;
    let none = sys::CUgraphInstantiate_flags_enum(0);
    let graph = stream.end_capture(none)?.expect("a graph");
    graph.launch()?;
    stream.synchronize()
}

#[test]
fn pinned_and_managed_memory_is_the_hosts_too() -> Result<(), DriverError> {
    let context = context(0);
    let stream = context.default_stream();
    // SAFETY: it is written before it is read.
    let mut pinned = unsafe { context.alloc_pinned::<u32>(4) }?;
    pinned.as_mut_slice()?.copy_from_slice(&[1, 2, 3, 4]);
    let mut numbers = stream.alloc_zeros::<u32>(4)?;
    stream.memcpy_htod(&pinned, &mut numbers)?;
    assert_eq!(stream.clone_dtoh(&numbers)?, [1, 2, 3, 4]);
    // What the host wrote is known to be written where a kernel reads it.
    let kernel = context
        .load_module(Ptx::from_src(SQUARE))?
        .load_function("square")?;
    let mut squares = stream.alloc_zeros::<f32>(4)?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut squares).arg(&numbers).arg(&4_i32);
    // SAFETY: the arguments are those of the kernel, which takes any bits.
    unsafe { launch.launch(LaunchConfig::for_num_elems(4)) }?;
    stream.synchronize()?;
    stream.memset_zeros(&mut numbers)?;
    stream.memcpy_dtoh(&numbers, &mut pinned)?;
    // cudarc itself waits only once its context has a second stream.
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
fn host_functions_take_their_turn() -> Result<(), DriverError> {
    unsafe extern "C" fn increment(number: *mut c_void) {
        let refused = result::device::get_count().unwrap_err();
        assert_eq!(refused.0, CUresult::CUDA_ERROR_NOT_PERMITTED);
        // SAFETY: it is what the test passed.
        unsafe { *number.cast::<u32>() += 1 }
    }
    let stream = context(0).new_stream()?;
    let mut number = 0_u32;
    let data = (&raw mut number).cast();
    for _ in 0..3 {
        // SAFETY: `number` lives until the stream is synchronised.
        unsafe { result::stream::launch_host_function(stream.cu_stream(), increment, data) }?;
    }
    stream.synchronize()?;
    assert_eq!(number, 3);
    Ok(())
}

#[test]
fn what_is_wrong_with_ptx_is_in_the_log() {
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
    // SAFETY: as many values as options, and a buffer of the size that is told.
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
    assert_eq!(
        binary.unwrap_err().0,
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
    );
    let missing = context.load_module(Ptx::from_file("/no/such.ptx"));
    assert_eq!(missing.unwrap_err().0, CUresult::CUDA_ERROR_FILE_NOT_FOUND);
}

#[test]
fn a_wrong_kernel_is_reported_and_its_context_lost() -> Result<(), DriverError> {
    let context = own_context();
    let stream = context.default_stream();
    let kernel = context
        .load_module(Ptx::from_src(SQUARE))?
        .load_function("square")?;
    let x = stream.clone_htod(&[1.0_f32; 4])?;
    let mut y = stream.alloc_zeros::<f32>(3)?;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut y).arg(&x).arg(&4_i32);
    // SAFETY: the emulator catches what is wrong with it, which is what is tested.
    let error = unsafe { launch.launch(LaunchConfig::for_num_elems(4)) }.unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let error = stream.clone_dtoh(&y).unwrap_err();
    assert_eq!(error.0, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    // Contexts fail alone.
    let other = own_context();
    assert_eq!(other.default_stream().clone_htod(&[1_u8])?.len(), 1);
    Ok(())
}

#[test]
fn handles_that_name_nothing_are_errors() {
    let context = context(0);
    context.bind_to_thread().unwrap();
    let nonsense = 0x1234_5678_usize as *mut c_void;
    let stream = context.new_stream().unwrap();
    let destroyed = stream.cu_stream();
    drop(stream);
    // SAFETY: the emulator looks handles up and follows none.
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
fn launches_take_their_parameters_as_a_buffer_too() -> Result<(), DriverError> {
    let context = context(0);
    let stream = context.default_stream();
    let text = CString::new(SQUARE).unwrap();
    // SAFETY: the text ends with a NUL.
    let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
    // SAFETY: the module is loaded.
    let kernel = unsafe { result::module::get_function(module, c"square".to_owned()) }?;
    // SAFETY: plain allocations, given back below.
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
            sys::cuLaunchKernel(
                kernel,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream,
                none,
                extra.as_mut_ptr(),
            )
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
fn copies_of_rows_have_pitches() -> Result<(), DriverError> {
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
    // SAFETY: both ends hold the rows.
    unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.cu_stream()) }.result()?;
    let back = stream.clone_dtoh(&device)?;
    assert_eq!(back, [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 4, 5, 0, 0, 0]);
    copy.dstPitch = 1;
    // SAFETY: it is refused.
    let refused = unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.cu_stream()) };
    assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

#[test]
fn errors_have_names() {
    open();
    let error = DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    let name = error.error_name().unwrap();
    assert_eq!(name.to_str(), Ok("CUDA_ERROR_STREAM_CAPTURE_ISOLATION"));
    let words = DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
        .error_string()
        .unwrap();
    assert_eq!(words.to_str(), Ok("out of memory"));
}

#[test]
fn functions_are_found_by_name() {
    context(0);
    let find = |name: &std::ffi::CStr| {
        let mut function = std::ptr::null_mut();
        let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
        // SAFETY: there are places for both results.
        let code = unsafe {
            sys::cuGetProcAddress_v2(name.as_ptr(), &mut function, 12080, 0, &mut status)
        };
        (code, function.is_null(), status as u32)
    };
    assert_eq!(find(c"cuMemAlloc"), (CUresult::CUDA_SUCCESS, false, 0));
    assert_eq!(find(c"cuLaunchKernel"), (CUresult::CUDA_SUCCESS, false, 0));
    assert_eq!(
        find(c"cuArrayCreate"),
        (CUresult::CUDA_ERROR_NOT_FOUND, true, 1)
    );
}

#[test]
fn launches_are_counted_on_demand() -> Result<(), DriverError> {
    type Start = unsafe extern "C" fn();
    type Take = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    // SAFETY: these are their types.
    let (start, take) = unsafe {
        let start = open()
            .get::<Start>(b"meshgrad_emulator_counters_start")
            .unwrap();
        let take = open()
            .get::<Take>(b"meshgrad_emulator_counters_take")
            .unwrap();
        (start, take)
    };
    let context = context(0);
    let stream = context.default_stream();
    let text = SQUARE.replace("square", "counted_kernel");
    let kernel = context
        .load_module(Ptx::from_src(text))?
        .load_function("counted_kernel")?;
    let x = stream.clone_htod(&[1.0_f32; 64])?;
    let mut y = stream.alloc_zeros::<f32>(64)?;
    // SAFETY: counting has no conditions.
    unsafe { start() };
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut y).arg(&x).arg(&64_i32);
    // SAFETY: the arguments are those of the kernel.
    unsafe { launch.launch(LaunchConfig::for_num_elems(64)) }?;
    // SAFETY: without room, it tells how much is needed.
    let needed = unsafe { take(std::ptr::null_mut(), 0) };
    // Tests beside this one may add theirs.
    let mut json = vec![0_u8; needed * 100];
    // SAFETY: so much room there is.
    let length = unsafe { take(json.as_mut_ptr().cast(), json.len()) };
    let json = String::from_utf8_lossy(&json[..length]);
    assert!(json.starts_with('[') && json.ends_with(']'), "{json}");
    assert!(
        json.contains("\"kernel\":\"counted_kernel\",\"ctas\":1"),
        "{json}"
    );
    Ok(())
}

/// What the emulator says of the latest error.
fn report() -> String {
    type Last = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    let mut words = vec![0_u8; 4096];
    // SAFETY: this is its type, and so much room there is.
    let length = unsafe {
        let last = open()
            .get::<Last>(b"meshgrad_emulator_last_report")
            .unwrap();
        last(words.as_mut_ptr().cast(), words.len())
    };
    String::from_utf8_lossy(&words[..length.min(4095)]).into_owned()
}
