//! What the driver provides to kernels, and what it refuses: `driver_functions.cu`.

use std::sync::{Arc, Mutex};

use meshgrad_emulator::launch::{Launch, launch};
use meshgrad_emulator::memory::{AddressSpace, MemoryKind};
use meshgrad_emulator::program::Module;
use meshgrad_emulator::{Options, Output};

use crate::conformance::gpu::arguments;
use crate::conformance::{corpus, nvcc};
use crate::driver::{self, Context};

#[test]
fn an_mbarrier_orders_the_phases_of_a_block() {
    let gpu = corpus("driver_functions");
    for threads in [32usize, 96, 256] {
        let input: Vec<i32> = (0..threads as i32).map(|i| i * i).collect();
        let (from, out) = (gpu.upload(&input), gpu.uninitialized(4 * threads));
        let block = [threads as u32, 1, 1];
        gpu.launch("rotate", [2, 1, 1], block, 0, arguments![from, out, 5i32]);
        let rotated = (0..threads).map(|i| input[(i + 15) % threads]);
        assert_eq!(gpu.download::<i32>(&out), rotated.collect::<Vec<_>>());
    }
}

/// The array's unset entries are loaded and then not used.
#[test]
fn entries_that_were_never_written_can_be_loaded() {
    let gpu = corpus("driver_functions");
    for which in [3i32, 6] {
        let out = gpu.uninitialized(4 * 32);
        gpu.launch("padded", [1, 1, 1], [32, 1, 1], 0, arguments![out, which]);
        let expected = if which < 4 { which * which + which } else { -1 };
        assert_eq!(gpu.download::<i32>(&out), [expected; 32]);
    }
}

#[test]
fn printf_writes_what_c_writes() {
    let ptx = nvcc::ptx("driver_functions");
    let text = Arc::new(Mutex::new(Vec::new()));
    let sink = text.clone();
    let options = Options {
        output: Output::Function(Arc::new(move |more| sink.lock().unwrap().extend(more))),
        ..Options::default()
    };
    let space = AddressSpace::new();
    let module = Module::load(&ptx, &space, 0, &options).unwrap_or_else(|e| panic!("{e}"));
    let input = [0.5f32, 2.25, 1.0, 1e7];
    let from = space.allocate(16, MemoryKind::Device(0)).unwrap();
    space.write(from, bytemuck::cast_slice(&input)).unwrap();
    let parameters = [from.to_le_bytes().as_slice(), &4u32.to_le_bytes()].concat();
    let call = Launch {
        kernel: &module.kernel("report").expect("the kernel"),
        grid: [1; 3],
        block: [32, 1, 1],
        dynamic_shared: 0,
        parameters: &parameters,
        multiprocessors: 1,
    };
    launch(&space, &call, &options).unwrap_or_else(|e| panic!("{e}"));
    let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
    assert_eq!(text, "in[1] = 2.25 is more than one\nin[3] = 1e+07 is more than one\n");
}

#[test]
fn a_failed_assertion_faults_the_context_and_a_texture_refuses_its_kernel() {
    let ptx = nvcc::ptx("driver_functions");
    let _guard = driver::reports();
    let context = Context::new().unwrap();
    let module = driver::Module::load(&ptx).unwrap();
    let error = module.kernel(c"sample").err().expect("an error");
    for part in ["CUDA_ERROR_NOT_SUPPORTED", "kernel `sample` cannot run", "tex.2d.v4.f32.f32"] {
        assert!(error.contains(part), "{error}");
    }

    let kernel = module.kernel(c"report").unwrap();
    let from = driver::allocate(8).unwrap();
    driver::write(from, bytemuck::cast_slice(&[0.5f32, -1.0])).unwrap();
    let arguments = [&from.to_le_bytes()[..], &2u32.to_le_bytes()];
    let error = kernel.launch([1; 3], [32, 1, 1], 0, &arguments).unwrap_err();
    for part in ["CUDA_ERROR_ASSERT", "driver_functions.cu:32: ", "report", "in[i] >= 0.0f"] {
        assert!(error.contains(part), "{error}");
    }
    let error = driver::allocate(8).unwrap_err();
    assert!(error.contains("CUDA_ERROR_ASSERT"), "{error}");
    context.end().unwrap();
}
