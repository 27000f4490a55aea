//! Launching a kernel does not allocate on the heap. A separate test program, because it replaces
//! the global allocator to count allocations.

mod devices;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};

use devices::{gpu, numbered};
use meshgrad_runtime::{Accumulator, DType, Device, Kind, Tensor, ops, with_stream};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: forwards to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The number of heap allocations of `work`.
fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// The number of heap allocations of `work` in the steady state.
fn steady(work: impl Fn()) -> usize {
    work(); // loads kernels, allocates segments
    work(); // the cache reaches its steady state
    allocations(work)
}

const FLOATS: [DType; 2] = [DType::F32, DType::BF16];

fn sums(gpu: &Device, shape: &[usize]) -> RefCell<Accumulator> {
    let buffer = Tensor::zeros(gpu, shape, DType::F32, Kind::Gradient).unwrap();
    RefCell::new(Accumulator::over(buffer).unwrap())
}

/// Ops that write to preallocated tensors make no heap allocation.
#[test]
fn launching_allocates_nothing() {
    let Some(gpu) = gpu() else { return };
    for dtype in FLOATS {
        let x = numbered(&gpu, &[30, 7, 20], dtype, 1.0);
        let transposed = x.permute(&[2, 0, 1]).unwrap();
        let into = Tensor::zeros(&gpu, &[20, 30, 7], dtype, Kind::Cache).unwrap();
        assert_eq!(steady(|| ops::copy_into(&transposed, &into).unwrap()), 0);
        assert_eq!(steady(|| ops::fill_into(&into, 0.5).unwrap()), 0);

        let total = sums(&gpu, &[30, 7, 20]);
        let add = || ops::add_into(&x, &mut total.borrow_mut()).unwrap();
        assert_eq!(steady(add), 0);

        let a = numbered(&gpu, &[40, 24], dtype, 1.0);
        let (b, product) = (a.transpose(0, 1).unwrap(), sums(&gpu, &[40, 40]));
        let multiply = || ops::matmul_into(&a, &b, &mut product.borrow_mut()).unwrap();
        assert_eq!(steady(multiply), 0);

        let (w, dw) = (numbered(&gpu, &[24], dtype, 1.0), sums(&gpu, &[24]));
        let (y, inv_rms) = ops::rms_norm(&a, &w, 1e-6).unwrap();
        let grad = || {
            let dw = &mut dw.borrow_mut();
            ops::rms_norm_grad_weight_into(&y, &a, &inv_rms, dw).unwrap();
        };
        assert_eq!(steady(grad), 0);
    }
}

/// Each result makes one heap allocation, for its handle. Its device memory comes from the cache.
#[test]
fn a_result_allocates_its_handle() {
    let Some(gpu) = gpu() else { return };
    for dtype in FLOATS {
        let x = numbered(&gpu, &[300, 70], dtype, 1.0);
        assert_eq!(steady(|| drop(ops::silu_grad(&x, &x).unwrap())), 1);

        let w = numbered(&gpu, &[70], dtype, 1.0);
        assert_eq!(steady(|| drop(ops::rms_norm(&x, &w, 1e-6).unwrap())), 2);
        let (_, inv_rms) = ops::rms_norm(&x, &w, 1e-6).unwrap();
        let grad = || drop(ops::rms_norm_grad_input(&x, &x, &w, &inv_rms).unwrap());
        assert_eq!(steady(grad), 1);

        let square = x.slice(0, 0..70).unwrap();
        assert_eq!(steady(|| drop(ops::linear(&x, &square).unwrap())), 1);
    }
    assert_eq!(gpu.allocator_stats().unwrap().segments_allocated, 1);
}

/// Indices of a whole dim are used as they are.
#[test]
fn indices_of_a_whole_dim_are_not_copied() {
    let cpu = Device::cpu();
    let x = numbered(&cpu, &[30, 7], DType::F32, 1.0);
    let ids = Tensor::from_slice(&cpu, &[4], &[3i64, 0, 29, 3]).unwrap();
    let embedding = steady(|| drop(ops::embedding(&x, &ids).unwrap()));
    let select = steady(|| drop(ops::index_select(&x, 0, &ids).unwrap()));
    assert_eq!(select, embedding);
}

/// Work on another stream makes no further allocation, although it records the tensors it uses.
#[test]
fn a_scope_allocates_nothing() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let x = numbered(&gpu, &[300, 70], DType::F32, 1.0);
    let cache = Tensor::zeros(&gpu, &[300, 70], DType::F32, Kind::Cache).unwrap();
    let pending = || {
        let pending = with_stream(&stream, || {
            ops::copy_into(&x, &cache)?;
            ops::mul(&x, &cache)
        });
        drop(pending.unwrap().wait().unwrap());
    };
    assert_eq!(steady(pending), 1, "the result's handle");
}
