//! After a kernel has failed, every call reports that failure.

use crate::devices::gpu;
use crate::processes;
use meshgrad_runtime::{DType, ErrorKind, Kind, Shape, Tensor, UninitTensor, ops};

/// Uninitialized indices. The emulator aborts a kernel that computes addresses from them.
fn unwritten(gpu: &meshgrad_runtime::Device) -> Tensor {
    let shape = Shape::new(&[100]).unwrap();
    UninitTensor::new(gpu, shape, DType::I64).unwrap().finish()
}

#[test]
fn a_failed_allocation_reports_the_earlier_kernel_failure() {
    processes::assert_pass(&["failed_kernel::a_kernel_and_then_an_allocation_fail"], &[]);
}

#[test]
#[ignore = "started by a_failed_allocation_reports_the_earlier_kernel_failure"]
fn a_kernel_and_then_an_allocation_fail() {
    let Some(gpu) = gpu().filter(|gpu| gpu.to_string().starts_with("emulator")) else {
        return;
    };
    let numbers = ops::full(&gpu, &[10], DType::F32, 1.0).unwrap();
    let failed = ops::index_select(&numbers, 0, &unwritten(&gpu)).err().unwrap();
    assert_eq!(failed.kind(), ErrorKind::Device);
    assert!(failed.to_string().contains(" could not launch `"), "{failed}");

    // The cache has no block of this size, so the allocation calls the driver.
    let rejected = Tensor::zeros(&gpu, &[64 << 20], DType::U8, Kind::Cache).err().unwrap();
    let message = rejected.to_string();
    assert!(message.contains(": cuMemAlloc_v2 failed: "), "{message}");
    assert!(message.contains("uninitialized-global"), "{message}");
}
