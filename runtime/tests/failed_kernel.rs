//! After a kernel has failed every call tells of that failure. Alone in its process, for a GPU's
//! context is of no use afterwards.

mod devices;

use devices::gpu;
use meshgrad_runtime::{CudaError, DType, Error, Kind, Shape, Tensor, UninitTensor, ops};

/// A tensor whose elements nobody has written: the emulator ends a kernel that reads them.
fn unwritten(gpu: &meshgrad_runtime::Device) -> Tensor {
    let shape = Shape::new(&[100]).unwrap();
    UninitTensor::new(gpu, shape, DType::F32).unwrap().finish()
}

#[test]
fn memory_that_cannot_be_had_after_a_failure_tells_of_the_failure() {
    let Some(gpu) = gpu().filter(|gpu| gpu.to_string().starts_with("emulator")) else {
        return;
    };
    let failed = ops::neg(&unwritten(&gpu)).err().unwrap();
    assert!(
        matches!(failed, Error::Cuda(CudaError::Launch { .. })),
        "{failed}"
    );

    // More than is cached, so that the driver is asked.
    let refused = Tensor::zeros(&gpu, &[64 << 20], DType::U8, Kind::Cache).err();
    let Some(Error::Cuda(CudaError::Call {
        function: "cuMemAlloc_v2",
        reason,
        ..
    })) = refused
    else {
        panic!("{refused:?}");
    };
    assert!(reason.contains("uninitialised-global"), "{reason}");
}
