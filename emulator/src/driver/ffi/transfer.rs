//! Exported functions: copies and fills.

use std::ffi::c_int;

use super::arguments::{In, Pointer};
use super::{driver, exports};
use crate::driver::context::ContextHandle;
use crate::driver::error::{Code, Result};
use crate::driver::transfer::{CopyOrder, Endpoint};
use crate::driver::work::Rows;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy2d {
    from: Copy2dSide,
    to: Copy2dSide,
    width: usize,
    height: usize,
}

/// One side of a `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy2dSide {
    x: usize,
    y: usize,
    memory: c_int,
    host: Pointer,
    device: u64,
    array: u64,
    pitch: usize,
}

impl Copy2dSide {
    /// The copied region, from its first byte on. `CUmemorytype` selects the pointer.
    fn end(&self, extent: usize) -> Result<Endpoint> {
        let offset = self.y.checked_mul(self.pitch).and_then(|rows| rows.checked_add(self.x));
        let offset = offset
            .ok_or_else(|| Code::InvalidValue.because("the offset of a 2D copy overflows"))?;
        match self.memory {
            1 => {
                let address = self.host.address().wrapping_add(offset as u64);
                Ok(Endpoint::Pointer(Pointer::at(address).range(extent)))
            }
            2 => Ok(Endpoint::Device(self.device.wrapping_add(offset as u64))),
            4 => Ok(pointer(self.device.wrapping_add(offset as u64), extent)),
            _ => Err(Code::NotSupported.because("copies of CUDA arrays are not supported")),
        }
    }
}

/// A host or device address.
fn pointer(address: u64, bytes: usize) -> Endpoint {
    Endpoint::Pointer(Pointer::at(address).range(bytes))
}

/// A copy between two addresses of the unified address space.
fn copy(order: CopyOrder, to: Endpoint, from: Endpoint, bytes: usize) -> Result<()> {
    driver()?.copy(order, to, from, Rows::linear(bytes))
}

fn copy_2d(order: CopyOrder, copy: Copy2d) -> Result<()> {
    let rows = Rows {
        width: copy.width,
        height: copy.height,
        to_pitch: copy.to.pitch,
        from_pitch: copy.from.pitch,
    };
    let extents = rows.extent(rows.to_pitch).zip(rows.extent(rows.from_pitch));
    let (to_bytes, from_bytes) = extents.ok_or_else(|| {
        Code::InvalidValue
            .because(format!("the pitch is less than the row width of {} bytes", rows.width))
    })?;
    driver()?.copy(order, copy.to.end(to_bytes)?, copy.from.end(from_bytes)?, rows)
}

exports! {
    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        copy(CopyOrder::Now, pointer(to, bytes), pointer(from, bytes), bytes)
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) {
        copy(CopyOrder::InStream(stream), pointer(to, bytes), pointer(from, bytes), bytes)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: Pointer, bytes: usize) {
        copy(CopyOrder::Now, Endpoint::Device(to), Endpoint::Pointer(from.range(bytes)), bytes)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: Pointer, bytes: usize, stream: u64) {
        let order = CopyOrder::InStream(stream);
        copy(order, Endpoint::Device(to), Endpoint::Pointer(from.range(bytes)), bytes)
    }

    fn cuMemcpyDtoH_v2(to: Pointer, from: u64, bytes: usize) {
        copy(CopyOrder::Now, Endpoint::Pointer(to.range(bytes)), Endpoint::Device(from), bytes)
    }

    fn cuMemcpyDtoHAsync_v2(to: Pointer, from: u64, bytes: usize, stream: u64) {
        let order = CopyOrder::InStream(stream);
        copy(order, Endpoint::Pointer(to.range(bytes)), Endpoint::Device(from), bytes)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        copy(CopyOrder::Now, Endpoint::Device(to), Endpoint::Device(from), bytes)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        copy(CopyOrder::InStream(stream), Endpoint::Device(to), Endpoint::Device(from), bytes)
    }

    fn cuMemcpyPeer(to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize) {
        let to = (to, ContextHandle::from_raw(to_context));
        let from = (from, ContextHandle::from_raw(from_context));
        driver()?.copy_peer(CopyOrder::Now, to, from, bytes)
    }

    fn cuMemcpyPeerAsync(
        to: u64,
        to_context: u64,
        from: u64,
        from_context: u64,
        bytes: usize,
        stream: u64,
    ) {
        let to = (to, ContextHandle::from_raw(to_context));
        let from = (from, ContextHandle::from_raw(from_context));
        driver()?.copy_peer(CopyOrder::InStream(stream), to, from, bytes)
    }

    fn cuMemcpy2D_v2(what: In<Copy2d>) {
        copy_2d(CopyOrder::Now, what.get()?)
    }

    fn cuMemcpy2DAsync_v2(what: In<Copy2d>, stream: u64) {
        copy_2d(CopyOrder::InStream(stream), what.get()?)
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        driver()?.fill(CopyOrder::Now, to, &[value], count)
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) {
        driver()?.fill(CopyOrder::InStream(stream), to, &[value], count)
    }

    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) {
        driver()?.fill(CopyOrder::Now, to, &value.to_le_bytes(), count)
    }

    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: u64) {
        driver()?.fill(CopyOrder::InStream(stream), to, &value.to_le_bytes(), count)
    }

    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) {
        driver()?.fill(CopyOrder::Now, to, &value.to_le_bytes(), count)
    }

    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) {
        driver()?.fill(CopyOrder::InStream(stream), to, &value.to_le_bytes(), count)
    }
}
