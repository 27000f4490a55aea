//! After a kernel has failed, every call reports that failure. A separate test program, because the
//! GPU context is unusable afterwards.

mod devices;

use devices::gpu;
use meshgrad_runtime::{CudaError, DType, Error, Kind, Shape, Tensor, UninitTensor, ops};

/// An uninitialized tensor. The emulator aborts a kernel that reads it.
fn unwritten(gpu: &meshgrad_runtime::Device) -> Tensor {
    let shape = Shape::new(&[100]).unwrap();
    UninitTensor::new(gpu, shape, DType::F32).unwrap().finish()
}

#[test]
fn a_failed_allocation_reports_the_earlier_kernel_failure() {
    let Some(gpu) = gpu().filter(|gpu| gpu.to_string().starts_with("emulator")) else {
        return;
    };
    let failed = ops::neg(&unwritten(&gpu)).err().unwrap();
    assert!(
        matches!(failed, Error::Cuda(CudaError::Launch { .. })),
        "{failed}"
    );

    // The cache has no block of this size, so the allocation calls the driver.
    let rejected = Tensor::zeros(&gpu, &[64 << 20], DType::U8, Kind::Cache).err();
    let Some(Error::Cuda(CudaError::Call {
        function: "cuMemAlloc_v2",
        reason,
        ..
    })) = rejected
    else {
        panic!("{rejected:?}");
    };
    assert!(reason.contains("uninitialized-global"), "{reason}");
}
