//! Exported functions: memory pools.

use std::ffi::c_int;

use super::arguments::{In, Out, Pointer};
use super::memory::Location;
use super::{driver, exports};
use crate::driver::error::Code;
use crate::driver::pool::PoolHandle;

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    allocation: c_int,
    handles: c_int,
    location: Location,
    security: Pointer,
    max_bytes: usize,
    usage: u16,
    reserved: [u8; 54],
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, the only allocation type.
const PINNED: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;

exports! {
    fn cuMemPoolCreate(pool: Out<u64>, properties: In<Properties>) {
        let properties = properties.get()?;
        let Location { kind, id } = properties.location;
        if properties.allocation != PINNED || kind != ON_DEVICE {
            let message = format!(
                "memory pools support only pinned allocations on devices; got allocation type {}, \
                 location type {kind}",
                properties.allocation
            );
            return Err(Code::InvalidValue.because(message));
        }
        if properties.handles != 0 {
            let message = "memory pools shared with other processes are not supported";
            return Err(Code::NotSupported.because(message));
        }
        pool.set(driver()?.create_pool(id, properties.max_bytes)?.raw())
    }

    fn cuMemPoolDestroy(pool: u64) {
        driver()?.destroy_pool(PoolHandle::from_raw(pool))
    }

    fn cuMemPoolTrimTo(pool: u64, keep: usize) {
        driver()?.trim_pool(PoolHandle::from_raw(pool), keep)
    }

    fn cuMemPoolGetAttribute(pool: u64, attribute: c_int, value: Pointer) {
        let found = driver()?.pool_attribute(PoolHandle::from_raw(pool), attribute)?;
        match is_switch(attribute) {
            true => value.out().set(found as c_int),
            false => value.out().set(found),
        }
    }

    fn cuMemPoolSetAttribute(pool: u64, attribute: c_int, value: Pointer) {
        let new = match is_switch(attribute) {
            true => value.value::<c_int>().get()? as u64,
            false => value.value::<u64>().get()?,
        };
        driver()?.set_pool_attribute(PoolHandle::from_raw(pool), attribute, new)
    }

    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: u64, stream: u64) {
        let pool = PoolHandle::from_raw(pool);
        address.set(driver()?.allocate_async(bytes, Some(pool), stream)?)
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<u64>, device: c_int) {
        pool.set(driver()?.default_pool(device)?.raw())
    }

    fn cuDeviceGetMemPool(pool: Out<u64>, device: c_int) {
        pool.set(driver()?.device_pool(device)?.raw())
    }

    fn cuDeviceSetMemPool(device: c_int, pool: u64) {
        driver()?.set_device_pool(device, PoolHandle::from_raw(pool))
    }
}

/// Whether an attribute is a 4-byte switch.
fn is_switch(attribute: c_int) -> bool {
    (1..=3).contains(&attribute)
}
