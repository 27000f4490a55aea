//! Starting a kernel touches no heap memory. Alone in its process, for it counts allocations.

mod devices;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use devices::{gpu, numbered};
use meshgrad_runtime::{DType, Kind, Tensor, ops};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How often `work` asked for memory.
fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// An op that writes where there is memory already does nothing but check, plan and launch.
#[test]
fn launching_allocates_nothing() {
    let Some(gpu) = gpu() else { return };
    let x = numbered(&gpu, &[30, 7, 20], DType::F32, 1.0)
        .permute(&[2, 0, 1])
        .unwrap();
    let into = Tensor::zeros(&gpu, &[20, 30, 7], DType::F32, Kind::Cache).unwrap();
    let copy = || ops::copy_into(&x, &into).unwrap();
    copy();
    assert_eq!(allocations(copy), 0);
}

/// A result costs the heap its handle; its memory comes from the cache.
#[test]
fn a_result_allocates_its_handle() {
    let Some(gpu) = gpu() else { return };
    let x = numbered(&gpu, &[300, 70], DType::BF16, 1.0);
    let compute = || drop(ops::silu_grad(&x, &x).unwrap());
    compute();
    assert_eq!(allocations(compute), 1);
    assert_eq!(gpu.cache().unwrap().segments_taken, 1);
}
