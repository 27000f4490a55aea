//! Exports: copies and fills.

use std::ffi::c_int;

use super::arguments::{In, Pointer};
use super::{driver, exports};
use crate::driver::context::ContextHandle;
use crate::driver::error::{Code, Result};
use crate::driver::transfer::{End, Moment};
use crate::driver::work::Rows;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy2d {
    from: Corner,
    to: Corner,
    width: usize,
    height: usize,
}

/// One side of a `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Corner {
    x: usize,
    y: usize,
    memory: c_int,
    host: Pointer,
    device: u64,
    array: u64,
    pitch: usize,
}

impl Corner {
    /// The place of the first byte; `CUmemorytype` tells which of the pointers counts.
    fn end(&self, extent: usize) -> Result<End> {
        let offset = self
            .y
            .checked_mul(self.pitch)
            .and_then(|rows| rows.checked_add(self.x));
        let offset =
            offset.ok_or_else(|| Code::InvalidValue.because("a corner without address"))?;
        match self.memory {
            1 => {
                let address = self.host.address().wrapping_add(offset as u64);
                Ok(End::Pointer(Pointer::at(address).range(extent)))
            }
            2 => Ok(End::Device(self.device.wrapping_add(offset as u64))),
            4 => Ok(pointer(self.device.wrapping_add(offset as u64), extent)),
            _ => Err(Code::NotSupported.because("copies of arrays are not emulated")),
        }
    }
}

/// An address of the host or of a device.
fn pointer(address: u64, bytes: usize) -> End {
    End::Pointer(Pointer::at(address).range(bytes))
}

/// Between two addresses of the unified address space.
fn copy(moment: Moment, to: End, from: End, bytes: usize) -> Result<()> {
    driver()?.copy(moment, to, from, Rows::linear(bytes))
}

fn copy_2d(moment: Moment, copy: Copy2d) -> Result<()> {
    let rows = Rows {
        width: copy.width,
        height: copy.height,
        to_pitch: copy.to.pitch,
        from_pitch: copy.from.pitch,
    };
    let extents = rows.extent(rows.to_pitch).zip(rows.extent(rows.from_pitch));
    let (to_bytes, from_bytes) = extents.ok_or_else(|| {
        Code::InvalidValue.because(format!("a pitch below the width of {} bytes", rows.width))
    })?;
    driver()?.copy(
        moment,
        copy.to.end(to_bytes)?,
        copy.from.end(from_bytes)?,
        rows,
    )
}

exports! {
    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        copy(Moment::Now, pointer(to, bytes), pointer(from, bytes), bytes)
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) {
        copy(Moment::InStream(stream), pointer(to, bytes), pointer(from, bytes), bytes)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: Pointer, bytes: usize) {
        copy(Moment::Now, End::Device(to), End::Pointer(from.range(bytes)), bytes)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: Pointer, bytes: usize, stream: u64) {
        let moment = Moment::InStream(stream);
        copy(moment, End::Device(to), End::Pointer(from.range(bytes)), bytes)
    }

    fn cuMemcpyDtoH_v2(to: Pointer, from: u64, bytes: usize) {
        copy(Moment::Now, End::Pointer(to.range(bytes)), End::Device(from), bytes)
    }

    fn cuMemcpyDtoHAsync_v2(to: Pointer, from: u64, bytes: usize, stream: u64) {
        let moment = Moment::InStream(stream);
        copy(moment, End::Pointer(to.range(bytes)), End::Device(from), bytes)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        copy(Moment::Now, End::Device(to), End::Device(from), bytes)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) {
        copy(Moment::InStream(stream), End::Device(to), End::Device(from), bytes)
    }

    fn cuMemcpyPeer(to: u64, to_context: u64, from: u64, from_context: u64, bytes: usize) {
        let to = (to, ContextHandle::from_raw(to_context));
        let from = (from, ContextHandle::from_raw(from_context));
        driver()?.copy_peer(Moment::Now, to, from, bytes)
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
        driver()?.copy_peer(Moment::InStream(stream), to, from, bytes)
    }

    fn cuMemcpy2D_v2(what: In<Copy2d>) {
        copy_2d(Moment::Now, what.get()?)
    }

    fn cuMemcpy2DAsync_v2(what: In<Copy2d>, stream: u64) {
        copy_2d(Moment::InStream(stream), what.get()?)
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        driver()?.fill(Moment::Now, to, &[value], count)
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) {
        driver()?.fill(Moment::InStream(stream), to, &[value], count)
    }

    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) {
        driver()?.fill(Moment::Now, to, &value.to_le_bytes(), count)
    }

    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: u64) {
        driver()?.fill(Moment::InStream(stream), to, &value.to_le_bytes(), count)
    }

    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) {
        driver()?.fill(Moment::Now, to, &value.to_le_bytes(), count)
    }

    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) {
        driver()?.fill(Moment::InStream(stream), to, &value.to_le_bytes(), count)
    }
}
