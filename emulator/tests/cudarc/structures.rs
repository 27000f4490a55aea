//! Functions with structure arguments, called with the layout of NVIDIA's headers (cudarc's raw
//! bindings), and functions that cudarc's safe layer does not use.

use std::ffi::{CString, c_int, c_void};
use std::mem::{size_of, zeroed};
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig, CUmemPoolProps,
    CUpointer_attribute, CUresult,
};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DriverError, result};

use crate::context;

/// A context that is current in this thread.
fn bound_context() -> Arc<CudaContext> {
    let context = context(0);
    context.bind_to_thread().expect("the context can be current");
    context
}

/// Each CTA increments a counter and waits until all have.
const TOGETHER: &str = "
    .version 7.0
    .target sm_80
    .address_size 64
    .visible .entry together(.param .u64 counter)
    {
        .reg .pred %p;
        .reg .u32 %r<4>;
        .reg .u64 %counter;
        ld.param.u64 %counter, [counter];
        mov.u32 %r0, %nctaid.x;
        atom.global.add.u32 %r1, [%counter], 1;
        membar.gl;
    WAIT:
        ld.volatile.global.u32 %r2, [%counter];
        setp.lt.u32 %p, %r2, %r0;
        @%p bra WAIT;
        ret;
    }";

struct Loaded {
    function: sys::CUfunction,
    stream: Arc<CudaStream>,
}

/// The kernel; its module stays loaded as long as the context.
fn load(context: &Arc<CudaContext>) -> Loaded {
    let text = CString::new(TOGETHER).unwrap();
    // SAFETY: the text ends with a NUL.
    let module = unsafe { result::module::load_data(text.as_ptr().cast()) }.unwrap();
    // SAFETY: the module is loaded.
    let function = unsafe { result::module::get_function(module, c"together".to_owned()) };
    Loaded { function: function.unwrap(), stream: context.default_stream() }
}

fn launch_with(
    loaded: &Loaded,
    attributes: &mut [CUlaunchAttribute],
    grid: u32,
) -> Result<u32, CUresult> {
    let counter = loaded.stream.alloc_zeros::<u32>(1).unwrap();
    let configuration = CUlaunchConfig {
        gridDimX: grid,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: loaded.stream.cu_stream(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    };
    let (mut address, guard) = counter.device_ptr(&loaded.stream);
    let mut parameters = [(&raw mut address).cast::<c_void>()];
    // SAFETY: the kernel's only parameter, an address of four bytes.
    let code = unsafe {
        sys::cuLaunchKernelEx(&configuration, loaded.function, parameters.as_mut_ptr(), null_mut())
    };
    drop(guard);
    match code {
        CUresult::CUDA_SUCCESS => Ok(loaded.stream.clone_dtoh(&counter).unwrap()[0]),
        code => Err(code),
    }
}

fn attribute(
    id: CUlaunchAttributeID,
    set: impl FnOnce(&mut CUlaunchAttribute),
) -> CUlaunchAttribute {
    // SAFETY: integers and a union of integers, for which zeros are valid.
    let mut attribute: CUlaunchAttribute = unsafe { zeroed() };
    attribute.id = id;
    set(&mut attribute);
    attribute
}

#[test]
fn launch_configurations_have_the_layout_of_cuda_h() {
    let context = bound_context();
    let loaded = load(&context);
    assert_eq!(launch_with(&loaded, &mut [], 3), Ok(3));

    let cooperative = attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, |it| {
        it.value.cooperative = 1
    });
    assert_eq!(launch_with(&loaded, &mut [cooperative], 132), Ok(132));
    // More blocks than can be resident.
    assert_eq!(
        launch_with(&loaded, &mut [cooperative], 132 * 32 + 1),
        Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
    );

    let cluster = |x| {
        attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, |it| {
            // SAFETY: the union consists of integers.
            let dim = unsafe { &mut it.value.clusterDim };
            (dim.x, dim.y, dim.z) = (x, 1, 1);
        })
    };
    assert_eq!(launch_with(&loaded, &mut [cooperative, cluster(1)], 4), Ok(4));
    assert_eq!(launch_with(&loaded, &mut [cluster(2)], 4), Err(CUresult::CUDA_ERROR_NOT_SUPPORTED));
}

#[test]
fn blocks_of_cooperative_launches_are_all_resident() -> Result<(), DriverError> {
    let context = bound_context();
    let loaded = load(&context);
    let counter = loaded.stream.alloc_zeros::<u32>(1)?;
    let (mut address, guard) = counter.device_ptr(&loaded.stream);
    let mut parameters = [(&raw mut address).cast::<c_void>()];
    // SAFETY: the kernel's only parameter, an address of four bytes.
    let code = unsafe {
        sys::cuLaunchCooperativeKernel(
            loaded.function,
            200,
            1,
            1,
            1,
            1,
            1,
            0,
            loaded.stream.cu_stream(),
            parameters.as_mut_ptr(),
        )
    };
    drop(guard);
    code.result()?;
    assert_eq!(loaded.stream.clone_dtoh(&counter)?, [200]);
    Ok(())
}

#[test]
fn a_pool_enforces_its_limit() {
    let context = bound_context();
    let stream = context.default_stream();
    // SAFETY: integers and a pointer, for which zeros are valid.
    let mut properties: CUmemPoolProps = unsafe { zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.maxSize = 1 << 20;
    let (mut pool, mut address) = (null_mut(), 0);
    // SAFETY: the pool is destroyed after the memory is freed.
    unsafe {
        let stream = stream.cu_stream();
        assert_eq!(sys::cuMemPoolCreate(&mut pool, &properties), CUresult::CUDA_SUCCESS);
        let mut take = |bytes| sys::cuMemAllocFromPoolAsync(&mut address, bytes, pool, stream);
        assert_eq!(take((1 << 20) + 1), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(take(1 << 20), CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuMemFreeAsync(address, stream), CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuMemPoolDestroy(pool), CUresult::CUDA_SUCCESS);
    }
}

#[test]
fn pointer_attributes_are_reported() -> Result<(), DriverError> {
    let context = bound_context();
    let stream = context.default_stream();
    let memory = stream.clone_htod(&[1u64; 32])?;
    let (base, _guard) = memory.device_ptr(&stream);
    let inside = base + 40;
    let ask = |attribute, to: *mut c_void| {
        // SAFETY: `to` has the size of the attribute.
        unsafe { sys::cuPointerGetAttribute(to, attribute, inside) }.result()
    };
    let (mut kind, mut start, mut bytes, mut device) = (0u32, 0u64, 0usize, -1 as c_int);
    use CUpointer_attribute as A;
    ask(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw mut kind).cast())?;
    ask(A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, (&raw mut start).cast())?;
    ask(A::CU_POINTER_ATTRIBUTE_RANGE_SIZE, (&raw mut bytes).cast())?;
    ask(A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (&raw mut device).cast())?;
    let on_device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    assert_eq!((kind, start, bytes, device), (on_device, base, 256, 0));
    Ok(())
}

#[test]
fn a_stream_writes_a_value_that_another_waits_for() -> Result<(), DriverError> {
    let context = bound_context();
    let (first, second) = (context.new_stream()?, context.new_stream()?);
    let flag = first.alloc_zeros::<u32>(1)?;
    first.synchronize()?;
    let (address, guard) = flag.device_ptr(&first);
    // SAFETY: the address has four bytes.
    unsafe {
        sys::cuStreamWriteValue32_v2(first.cu_stream(), address, 7, 0).result()?;
        // Waits until it is at least 7.
        sys::cuStreamWaitValue32_v2(second.cu_stream(), address, 7, 0).result()?;
        sys::cuStreamWriteValue32_v2(second.cu_stream(), address, 9, 0).result()?;
    }
    second.synchronize()?;
    drop(guard);
    assert_eq!(first.clone_dtoh(&flag)?, [9]);
    Ok(())
}

#[test]
fn tensor_maps_are_rejected_with_a_message() {
    let _context = bound_context();
    let mut map = [0u64; 16];
    assert_eq!(size_of::<sys::CUtensorMap>(), size_of_val(&map));
    // SAFETY: the call is rejected before it reads or writes.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            map.as_mut_ptr().cast(),
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            1,
            null_mut(),
            null_mut(),
            null_mut(),
            null_mut(),
            null_mut(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    assert_eq!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED);
}
