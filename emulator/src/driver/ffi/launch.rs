//! Exported functions: launches and occupancy.

use std::ffi::c_int;

use super::arguments::{BlockToShared, In, Out, Pointer};
use super::{driver, exports};
use crate::driver::error::{Code, Result};
use crate::driver::launch::Shape;
use crate::driver::module::FunctionHandle;
use crate::program::Kernel;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Configuration {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    stream: u64,
    attributes: In<Attribute>,
    count: u32,
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attribute {
    id: c_int,
    padding: [u8; 4],
    value: [u64; 8],
}

/// `CUlaunchAttributeID` values.
const COOPERATIVE: c_int = 2;
const CLUSTER: c_int = 4;
const PREFERRED_CLUSTER: c_int = 11;

impl Configuration {
    fn attributes(&self) -> Result<Vec<Attribute>> {
        (0..self.count as usize).map(|index| self.attributes.at(index).get()).collect()
    }

    /// The number of blocks per cluster.
    fn cluster(&self) -> Result<u32> {
        let attributes = self.attributes()?;
        let cluster = attributes.iter().find(|it| it.id == CLUSTER);
        Ok(cluster.map_or(1, |it| {
            let [xy, z, ..] = it.value;
            (xy as u32).saturating_mul((xy >> 32) as u32).saturating_mul(z as u32)
        }))
    }

    fn shape(&self) -> Result<Shape> {
        let mut shape = Shape {
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.dynamic_shared,
            is_cooperative: false,
        };
        for attribute in self.attributes()? {
            match attribute.id {
                COOPERATIVE => shape.is_cooperative = attribute.value[0] as u32 != 0,
                CLUSTER | PREFERRED_CLUSTER => {
                    if self.cluster()? != 1 {
                        return Err(
                            Code::NotSupported.because("thread block clusters are not supported")
                        );
                    }
                }
                // Hints, and permission to overlap launches; all may be ignored.
                0 | 1 | 3 | 5 | 6 | 8 | 9 | 10 | 14 => {}
                id => {
                    let message = format!("launch attribute {id} is not supported");
                    return Err(Code::NotSupported.because(message));
                }
            }
        }
        Ok(shape)
    }
}

/// `CU_LAUNCH_PARAM_*`: the keys of the list `extra`.
const END: u64 = 0;
const BUFFER: u64 = 1;
const BUFFER_BYTES: u64 = 2;

/// The bytes of a kernel's parameters, from an array of pointers or from the buffer in `extra`.
fn gather(kernel: &Kernel, each: In<Pointer>, extra: In<Pointer>) -> Result<Box<[u8]>> {
    let name = &kernel.name;
    let mut bytes = vec![0; kernel.parameter_bytes];
    match (each.is_null(), extra.is_null()) {
        (false, false) => {
            let message =
                format!("parameters of `{name}` are passed both as an array and in `extra`");
            return Err(Code::InvalidValue.because(message));
        }
        (true, true) if !kernel.parameters.is_empty() => {
            let count = kernel.parameters.len();
            let message = format!("`{name}` has {count} parameters, but none were passed");
            return Err(Code::InvalidValue.because(message));
        }
        (true, true) => {}
        (false, true) => {
            for (index, parameter) in kernel.parameters.iter().enumerate() {
                let value = each.at(index).get()?;
                if value.address() == 0 {
                    let message = format!("the pointer to parameter {index} of `{name}` is null");
                    return Err(Code::InvalidValue.because(message));
                }
                let place = parameter.offset..parameter.offset + parameter.bytes;
                value.range(parameter.bytes).read(0, &mut bytes[place]);
            }
        }
        (true, false) => read_buffer(kernel, extra, &mut bytes)?,
    }
    Ok(bytes.into())
}

fn read_buffer(kernel: &Kernel, extra: In<Pointer>, bytes: &mut [u8]) -> Result<()> {
    let (mut buffer, mut length) = (None, None);
    for index in (0..).step_by(2) {
        let value = || extra.at(index + 1).get();
        match extra.at(index).get()?.address() {
            END => break,
            BUFFER => buffer = Some(value()?),
            BUFFER_BYTES => length = Some(value()?.value::<usize>().get()?),
            name => {
                let message = format!("{name} is not a key of the launch's `extra` list");
                return Err(Code::InvalidValue.because(message));
            }
        }
    }
    match buffer.zip(length) {
        Some((buffer, length)) if length >= bytes.len() && buffer.address() != 0 => {
            buffer.range(length).read(0, bytes);
            Ok(())
        }
        _ => {
            let (name, needed) = (&kernel.name, bytes.len());
            let passed = match (buffer, length) {
                (Some(buffer), Some(length)) if buffer.address() != 0 => {
                    format!("the buffer has {length}")
                }
                (Some(buffer), None) if buffer.address() != 0 => {
                    "no buffer size was passed".to_owned()
                }
                _ => "no buffer was passed".to_owned(),
            };
            let message = format!("`{name}` needs a parameter buffer of {needed} bytes; {passed}");
            Err(Code::InvalidValue.because(message))
        }
    }
}

fn launch(
    function: u64,
    shape: Shape,
    stream: u64,
    each: In<Pointer>,
    extra: In<Pointer>,
) -> Result<()> {
    let handle = FunctionHandle::from_raw(function);
    let kernel = driver()?.function_of(handle)?.kernel;
    let parameters = gather(&kernel, each, extra)?;
    driver()?.launch(handle, shape, stream, parameters)
}

exports! {
    fn cuLaunchKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        dynamic_shared: u32,
        stream: u64,
        parameters: In<Pointer>,
        extra: In<Pointer>,
    ) {
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared,
            is_cooperative: false,
        };
        launch(function, shape, stream, parameters, extra)
    }

    fn cuLaunchCooperativeKernel(
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        dynamic_shared: u32,
        stream: u64,
        parameters: In<Pointer>,
    ) {
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared,
            is_cooperative: true,
        };
        launch(function, shape, stream, parameters, Pointer::at(0).value())
    }

    fn cuLaunchKernelEx(
        configuration: In<Configuration>,
        function: u64,
        parameters: In<Pointer>,
        extra: In<Pointer>,
    ) {
        let configuration = configuration.get()?;
        launch(function, configuration.shape()?, configuration.stream, parameters, extra)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>,
        function: u64,
        threads: c_int,
        dynamic_shared: usize,
    ) {
        let function = FunctionHandle::from_raw(function);
        blocks.set(driver()?.active_blocks(function, threads, dynamic_shared)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>,
        function: u64,
        threads: c_int,
        dynamic_shared: usize,
        _flags: u32,
    ) {
        let function = FunctionHandle::from_raw(function);
        blocks.set(driver()?.active_blocks(function, threads, dynamic_shared)?)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<c_int>,
        block: Out<c_int>,
        function: u64,
        to_shared: BlockToShared,
        dynamic_shared: usize,
        limit: c_int,
    ) {
        best_block(grid, block, function, &to_shared, dynamic_shared, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<c_int>,
        block: Out<c_int>,
        function: u64,
        to_shared: BlockToShared,
        dynamic_shared: usize,
        limit: c_int,
        _flags: u32,
    ) {
        best_block(grid, block, function, &to_shared, dynamic_shared, limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<usize>,
        function: u64,
        blocks: c_int,
        threads: c_int,
    ) {
        let function = FunctionHandle::from_raw(function);
        bytes.set(driver()?.available_shared(function, blocks, threads)?)
    }

    fn cuOccupancyMaxActiveClusters(
        clusters: Out<c_int>,
        function: u64,
        configuration: In<Configuration>,
    ) {
        let configuration = configuration.get()?;
        let size = configuration.cluster()?;
        let threads = configuration.block.iter().fold(1, |all: u32, it| all.saturating_mul(*it));
        let function = FunctionHandle::from_raw(function);
        let shared = configuration.dynamic_shared as usize;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        clusters.set(driver()?.active_clusters(function, threads, shared, size)?)
    }

    fn cuOccupancyMaxPotentialClusterSize(
        size: Out<c_int>,
        function: u64,
        configuration: In<Configuration>,
    ) {
        configuration.get()?;
        size.set(driver()?.max_cluster(FunctionHandle::from_raw(function))?)
    }
}

fn best_block(
    grid: Out<c_int>,
    block: Out<c_int>,
    function: u64,
    to_shared: &BlockToShared,
    dynamic_shared: usize,
    limit: c_int,
) -> Result<()> {
    let function = FunctionHandle::from_raw(function);
    let shared = |threads| to_shared.bytes(threads, dynamic_shared);
    let (blocks, threads) = driver()?.best_block(function, shared, limit)?;
    grid.set(blocks)?;
    block.set(threads)
}
