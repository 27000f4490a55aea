//! Divides the memory budget between tensors, blocks and plans.

use anyhow::anyhow;
use meshgrad::ckpt::Error;
use meshgrad::ckpt::plan::Infeasible;
use meshgrad_harness::PAGE;
use serde::Serialize;

use super::baseline::{BLOCK, Files};
use super::load::{Method, Planner, Residency};
use crate::ckpt::size;
use crate::ckpt::source::Source;
use crate::table::display_path;

/// The smallest read of a thread, and the smallest chunk of a tensor.
const MIN_CHUNK: u64 = 64 << 10;

/// The largest chunk of a tensor if not all tensors fit.
const MAX_CHUNK: u64 = 64 << 20;

/// How the budget is divided.
pub(super) struct Allocation {
    pub(super) residency: Residency,
    /// Bytes per plain read.
    pub(super) block: usize,
    /// Bytes that stay allocated for all samples.
    pub(super) kept: usize,
    /// The budget of a load plan: tensors, windows and the plan.
    pub(super) for_plans: u64,
    pub(super) memory: Memory,
}

/// The memory of a sample.
#[derive(Serialize, Clone, Copy)]
pub(super) struct Memory {
    /// Whether all tensors fit together.
    pub(super) holds_all: bool,
    /// Bytes that stay allocated for all samples.
    pub(super) kept: u64,
    /// Bytes of tensors being loaded; part of `kept` if `holds_all`.
    pub(super) targets: u64,
    pub(super) windows: u64,
    pub(super) plan: u64,
}

impl Memory {
    /// The peak.
    pub(super) fn total(&self) -> u64 {
        let targets = if self.holds_all { 0 } else { self.targets };
        self.kept + targets + self.windows + self.plan
    }
}

/// Keeps all tensors in memory if they fit, otherwise streams them.
pub(super) fn allocate(
    source: &Source,
    methods: &[Method],
    threads: usize,
    budget: u64,
) -> anyhow::Result<Allocation> {
    let tensors = source.summary().bytes;
    let paths = || source.stored().files().iter().map(|file| file.path());
    let room = Files::open(paths(), BLOCK, threads)?.room() as u64;
    let kept = room.max(tensors);
    if let Some(rest) = budget.checked_sub(kept) {
        let for_plans = rest + tensors;
        if let Ok(allocation) =
            try_allocate(source, methods, threads, Residency::Resident, kept, for_plans)
        {
            return Ok(allocation);
        }
    }

    let share = budget / 4 / threads as u64;
    let block = share.min(BLOCK as u64) / PAGE as u64 * PAGE as u64;
    let chunk = (share / 2).min(MAX_CHUNK);
    if chunk > MIN_CHUNK
        && let Ok(allocation) = allocate_streamed(source, methods, threads, budget, block, chunk)
    {
        return Ok(allocation);
    }
    let least = allocate_streamed(source, methods, threads, budget, MIN_CHUNK, MIN_CHUNK);
    least.map_err(|error| match error.downcast_ref().and_then(Error::details) {
        Some(Infeasible { need, .. }) => {
            let need = need + MIN_CHUNK * threads as u64;
            anyhow!(
                "--budget {} is too small: streaming {} with {} needs at least {} (raise --budget \
                 or lower --threads)",
                size::bytes(budget),
                display_path(source.path()),
                size::counted(threads as u64, "thread"),
                // The margin keeps the printed value, rounded to one decimal, above `need`.
                size::bytes(need + need / 16),
            )
        }
        _ => error,
    })
}

/// Reserves one block per thread for plain reads and gives the rest to plans.
fn allocate_streamed(
    source: &Source,
    methods: &[Method],
    threads: usize,
    budget: u64,
    block: u64,
    chunk: u64,
) -> anyhow::Result<Allocation> {
    let kept = block * threads as u64;
    let (residency, for_plans) = (Residency::Streamed { chunk }, budget.saturating_sub(kept));
    let allocation = try_allocate(source, methods, threads, residency, kept, for_plans)?;
    let block = block as usize;
    Ok(Allocation { block, ..allocation })
}

fn try_allocate(
    source: &Source,
    methods: &[Method],
    threads: usize,
    residency: Residency,
    kept: u64,
    for_plans: u64,
) -> anyhow::Result<Allocation> {
    let planner = Planner { source, threads, residency, budget: for_plans };
    let mut memory = Memory {
        holds_all: residency == Residency::Resident,
        kept,
        targets: 0,
        windows: 0,
        plan: 0,
    };
    for method in methods {
        let own = planner.plan(*method)?.memory();
        if own.total() > memory.targets + memory.windows + memory.plan {
            (memory.targets, memory.windows, memory.plan) = (own.targets, own.windows, own.plan);
        }
    }
    Ok(Allocation { residency, block: BLOCK, kept: kept as usize, for_plans, memory })
}
