//! Exported functions: memory.

use std::ffi::c_int;

use super::arguments::{In, Out, Pointer};
use super::{driver, exports};
use crate::driver::error::{Code, Result};
use crate::driver::memory::AllocationKind;
use crate::driver::pointer::PointerAttribute;
use crate::driver::work::Work;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Location {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

exports! {
    /// Encodes a tensor map of the Tensor Memory Accelerator (compute capability 9.0 and later).
    fn cuTensorMapEncodeTiled(
        map: Pointer,
        _element: c_int,
        _rank: u32,
        _address: Pointer,
        _extents: In<u64>,
        _strides: In<u64>,
        _tile: In<u32>,
        _element_strides: In<u32>,
        _interleave: c_int,
        _swizzle: c_int,
        _promotion: c_int,
        _fill: c_int,
    ) {
        let message = format!("tensor maps are not supported (tensor map at {:#x})", map.address());
        Err(Code::NotSupported.because(message))
    }

    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        address.set(driver()?.allocate(bytes, AllocationKind::Device)?)
    }

    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, flags: u32) {
        match flags {
            1 | 2 => address.set(driver()?.allocate(bytes, AllocationKind::Managed)?),
            _ => Err(Code::InvalidValue
                .because(format!("{flags:#x} are not valid attachment flags"))),
        }
    }

    fn cuMemFree_v2(address: u64) {
        driver()?.free(address)
    }

    fn cuMemHostAlloc(pointer: Out<u64>, bytes: usize, flags: u32) {
        match flags & !7 {
            0 => pointer.set(driver()?.allocate(bytes, AllocationKind::Pinned)?),
            _ => Err(Code::InvalidValue
                .because(format!("{flags:#x} are not valid allocation flags"))),
        }
    }

    fn cuMemAllocHost_v2(pointer: Out<u64>, bytes: usize) {
        pointer.set(driver()?.allocate(bytes, AllocationKind::Pinned)?)
    }

    fn cuMemFreeHost(pointer: Pointer) {
        driver()?.free_host(pointer.address())
    }

    fn cuMemHostRegister_v2(pointer: Pointer, bytes: usize, flags: u32) {
        driver()?.register(pointer.range(bytes), flags)
    }

    fn cuMemHostUnregister(pointer: Pointer) {
        driver()?.unregister(pointer.address())
    }

    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, pointer: Pointer, flags: u32) {
        match flags {
            0 => address.set(driver()?.device_address(pointer.address())?),
            _ => Err(Code::InvalidValue.because("cuMemHostGetDevicePointer: flags must be 0")),
        }
    }

    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: u64) {
        address.set(driver()?.allocate_async(bytes, None, stream)?)
    }

    fn cuMemFreeAsync(address: u64, stream: u64) {
        driver()?.free_async(address, stream)
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (free_bytes, total_bytes) = driver()?.memory_info()?;
        free.set(free_bytes)?;
        total.set(total_bytes)
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) {
        let (first, length) = driver()?.address_range(address)?;
        base.set_if_not_null(first);
        bytes.set_if_not_null(length);
        Ok(())
    }

    fn cuPointerGetAttribute(data: Pointer, attribute: c_int, address: u64) {
        match driver()?.pointer_attribute(attribute, address)? {
            PointerAttribute::Word(value) => data.out().set(value),
            PointerAttribute::Wide(value) => data.out().set(value),
        }
    }

    fn cuMemAdvise_v2(address: u64, bytes: usize, advice: c_int, _location: Location) {
        match advice {
            1..=6 => driver()?.check_managed(address, bytes),
            _ => Err(Code::InvalidValue.because(format!("{advice} is not a CUmem_advise"))),
        }
    }

    fn cuMemPrefetchAsync_v2(
        address: u64,
        bytes: usize,
        _location: Location,
        flags: u32,
        stream: u64,
    ) {
        reject_flags(flags)?;
        driver()?.check_managed(address, bytes)?;
        driver()?.submit(stream, Work::Join)
    }

    fn cuStreamAttachMemAsync(stream: u64, address: u64, _bytes: usize, flags: u32) {
        match flags {
            1 | 2 | 4 => {
                driver()?.check_managed(address, 1)?;
                driver()?.submit(stream, Work::Join)
            }
            _ => Err(Code::InvalidValue
                .because(format!("{flags:#x} are not valid attachment flags"))),
        }
    }

    fn cuImportExternalMemory(_memory: Out<u64>, _description: Pointer) {
        driver()?;
        Err(Code::NotSupported.because("external memory is not supported"))
    }

    fn cuExternalMemoryGetMappedBuffer(_address: Out<u64>, memory: u64, _description: Pointer) {
        driver()?;
        Err(Code::InvalidHandle.because(format!("{memory:#x} is not external memory")))
    }

    fn cuDestroyExternalMemory(memory: u64) {
        driver()?;
        Err(Code::InvalidHandle.because(format!("{memory:#x} is not external memory")))
    }
}

fn reject_flags(flags: u32) -> Result<()> {
    match flags {
        0 => Ok(()),
        _ => {
            Err(Code::InvalidValue.because(format!("{flags:#x} are not valid flags for this call")))
        }
    }
}
