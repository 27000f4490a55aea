//! Occupancy: the number of resident blocks per multiprocessor (CUDA C++ Programming Guide,
//! "Technical Specifications per Compute Capability").

use super::Driver;
use super::device::{
    BLOCKS_PER_MULTIPROCESSOR, MAX_THREADS, Model, REGISTERS, THREADS_PER_MULTIPROCESSOR, WARP,
};
use super::error::{Code, Result};
use super::module::{Function, FunctionHandle};

/// Allocation unit of registers per warp.
const REGISTER_UNIT: i32 = 256;
/// Maximum registers per thread.
const MAX_REGISTERS: i32 = 255;
/// Allocation unit of shared memory per block, in bytes.
const SHARED_UNIT: i32 = 128;

/// The resources of one block of a kernel.
#[derive(Clone, Copy)]
struct BlockResources {
    threads: i32,
    registers: i32,
    /// Static and dynamic.
    shared: i32,
}

impl BlockResources {
    fn blocks(self, model: Model) -> i32 {
        let warps = (self.threads + WARP - 1) / WARP;
        let registers = round_up(self.registers * WARP, REGISTER_UNIT) * warps;
        let shared = round_up(self.shared, SHARED_UNIT) + model.reserved_shared();
        [
            BLOCKS_PER_MULTIPROCESSOR,
            THREADS_PER_MULTIPROCESSOR / (warps * WARP),
            REGISTERS / registers.max(1),
            model.data_sheet().shared / shared,
        ]
        .into_iter()
        .fold(i32::MAX, i32::min)
    }
}

fn round_up(value: i32, unit: i32) -> i32 {
    (value + unit - 1) / unit * unit
}

impl Driver {
    /// `cuOccupancyMaxActiveBlocksPerMultiprocessor`.
    pub(crate) fn active_blocks(
        &self,
        handle: FunctionHandle,
        threads: i32,
        dynamic_shared: usize,
    ) -> Result<i32> {
        let (function, model) = self.function_and_model(handle)?;
        check_threads(threads)?;
        Ok(blocks_of(&function, model, threads, dynamic_shared))
    }

    /// `cuOccupancyMaxPotentialBlockSize`: the grid size that fills the device, and the block size
    /// that maximizes active threads. `dynamic_shared` returns the dynamic shared memory for a
    /// block size.
    pub(crate) fn best_block(
        &self,
        handle: FunctionHandle,
        dynamic_shared: impl Fn(i32) -> usize,
        limit: i32,
    ) -> Result<(i32, i32)> {
        let (function, model) = self.function_and_model(handle)?;
        let most = match limit {
            ..=0 => function.kernel.max_threads as i32,
            _ => limit.min(function.kernel.max_threads as i32),
        };
        let sizes = (1..=most / WARP).rev().map(|warps| warps * WARP);
        let active = |threads: i32| {
            let blocks = blocks_of(&function, model, threads, dynamic_shared(threads));
            (blocks * threads, blocks)
        };
        // On a tie, the largest block wins.
        let best = sizes.map(|threads| (active(threads), threads));
        let best =
            best.fold(((0, 0), 0), |best, next| if next.0.0 > best.0.0 { next } else { best });
        let ((_, blocks), threads) = best;
        Ok((blocks * model.data_sheet().multiprocessors, threads))
    }

    /// `cuOccupancyAvailableDynamicSMemPerBlock`: dynamic shared memory available per block.
    pub(crate) fn available_shared(
        &self,
        handle: FunctionHandle,
        blocks: i32,
        threads: i32,
    ) -> Result<usize> {
        let (function, model) = self.function_and_model(handle)?;
        check_threads(threads)?;
        if blocks < 1 || blocks > blocks_of(&function, model, threads, 0) {
            let message =
                format!("{blocks} blocks of {threads} threads do not fit on a multiprocessor");
            return Err(Code::InvalidValue.because(message));
        }
        let own = function.kernel.static_shared as i32;
        let each = (model.data_sheet().shared / blocks - model.reserved_shared()) / SHARED_UNIT
            * SHARED_UNIT;
        Ok((each.min(model.shared_opt_in()) - own).max(0) as usize)
    }

    /// `cuOccupancyMaxActiveClusters`: how many clusters of `size` blocks the device holds.
    pub(crate) fn active_clusters(
        &self,
        handle: FunctionHandle,
        threads: i32,
        dynamic_shared: usize,
        size: u32,
    ) -> Result<i32> {
        let (function, model) = self.function_and_model(handle)?;
        check_threads(threads)?;
        let greatest = max_cluster(model);
        if !(1..=greatest as u32).contains(&size) {
            let message = format!("a cluster has 1 to {greatest} blocks, not {size}");
            return Err(Code::InvalidClusterSize.because(message));
        }
        let blocks = blocks_of(&function, model, threads, dynamic_shared);
        Ok(blocks * model.data_sheet().multiprocessors / size as i32)
    }

    /// `cuOccupancyMaxPotentialClusterSize`.
    pub(crate) fn max_cluster(&self, handle: FunctionHandle) -> Result<i32> {
        let (_, model) = self.function_and_model(handle)?;
        Ok(max_cluster(model))
    }

    fn function_and_model(&self, handle: FunctionHandle) -> Result<(Function, Model)> {
        self.with(|state| {
            let function = state.functions.get(handle)?.clone();
            let model = state.model_of(function.context)?;
            Ok((function, model))
        })
    }
}

/// Resident blocks of a kernel per multiprocessor.
pub(crate) fn blocks_of(
    function: &Function,
    model: Model,
    threads: i32,
    dynamic_shared: usize,
) -> i32 {
    let dynamic = i32::try_from(dynamic_shared).unwrap_or(i32::MAX / 2);
    if threads > function.kernel.max_threads as i32 {
        return 0;
    }
    // `ptxas` uses fewer registers than PTX declares; assume that one block fits.
    let warps = (threads + WARP - 1) / WARP;
    let fitting = REGISTERS / (warps.max(1) * WARP) / 8 * 8;
    let need = BlockResources {
        threads,
        registers: (function.kernel.registers as i32).min(fitting).min(MAX_REGISTERS),
        shared: function.kernel.static_shared as i32 + dynamic,
    };
    need.blocks(model)
}

/// The portable cluster size; 1 if the model has no clusters.
fn max_cluster(model: Model) -> i32 {
    match model.data_sheet().major {
        ..9 => 1,
        _ => 8,
    }
}

fn check_threads(threads: i32) -> Result<()> {
    match (1..=MAX_THREADS).contains(&threads) {
        true => Ok(()),
        false => Err(Code::InvalidValue.because(format!("invalid block of {threads} threads"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scarcest_resource_limits_occupancy() {
        let need = |threads, registers, shared| BlockResources { threads, registers, shared };
        // Threads: 2048 of them, in blocks of 256.
        assert_eq!(need(256, 32, 0).blocks(Model::H200), 8);
        // Blocks: 32 at most, however small.
        assert_eq!(need(32, 16, 0).blocks(Model::H200), 32);
        // Registers: 65536 / (128 * 128).
        assert_eq!(need(128, 128, 0).blocks(Model::A100), 4);
        // Shared memory: 228 KiB hold two blocks of 100 KiB, 164 KiB one.
        assert_eq!(need(128, 32, 100 * 1024).blocks(Model::H200), 2);
        assert_eq!(need(128, 32, 100 * 1024).blocks(Model::A100), 1);
        assert_eq!(need(128, 32, 227 * 1024).blocks(Model::H200), 1);
        assert_eq!(need(128, 32, 227 * 1024 + 1).blocks(Model::H200), 0);
    }
}
