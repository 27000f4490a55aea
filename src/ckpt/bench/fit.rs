//! What of a checkpoint fits into the budget at once.

use anyhow::anyhow;
use meshgrad::ckpt::Folder;
use meshgrad::ckpt::plan::PlanError;
use serde::Serialize;

use super::load::{Fate, Planner, Way};
use super::memory::ALIGNMENT;
use super::plain::{BLOCK, Files};
use crate::ckpt::catalog::shown;
use crate::ckpt::size;

/// The least that a thread reads, and that is loaded of a tensor, at once.
const LEAST: u64 = 64 << 10;

/// The most of a tensor that is loaded at once where not all of them fit.
const PIECE: u64 = 64 << 20;

/// How the budget is used.
pub(super) struct Fit {
    pub(super) fate: Fate,
    /// What plain reads take at once.
    pub(super) block: usize,
    /// Memory that is kept for all samples.
    pub(super) kept: usize,
    /// What plans may take: tensors, windows and themselves.
    pub(super) for_plans: u64,
    pub(super) memory: Memory,
}

/// The memory that samples take.
#[derive(Serialize, Clone, Copy)]
pub(super) struct Memory {
    /// Whether all tensors are in memory at once.
    pub(super) holds_all: bool,
    /// Kept for all samples.
    pub(super) kept: u64,
    /// Of tensors that are being loaded, in `kept` if that holds all.
    pub(super) targets: u64,
    pub(super) windows: u64,
    pub(super) plan: u64,
}

impl Memory {
    /// The most at any time.
    pub(super) fn total(&self) -> u64 {
        let targets = if self.holds_all { 0 } else { self.targets };
        self.kept + targets + self.windows + self.plan
    }
}

/// Holds all tensors if they fit, else lets them leave.
pub(super) fn fit(
    folder: &Folder,
    ways: &[Way],
    threads: usize,
    budget: u64,
) -> anyhow::Result<Fit> {
    let tensors: u64 = folder.tensors().map(|it| it.byte_len() as u64).sum();
    let paths = || folder.files().iter().map(|file| file.path());
    let room = Files::open(paths(), BLOCK, threads)?.room() as u64;
    let kept = room.max(tensors);
    if let Some(rest) = budget.checked_sub(kept) {
        let for_plans = rest + tensors;
        if let Ok(fit) = try_fit(folder, ways, threads, Fate::Held, kept, for_plans) {
            return Ok(fit);
        }
    }

    let share = budget / 4 / threads as u64;
    let block = share.min(BLOCK as u64) / ALIGNMENT as u64 * ALIGNMENT as u64;
    let piece = (share / 2).min(PIECE);
    if piece > LEAST
        && let Ok(fit) = leaving(folder, ways, threads, budget, block, piece)
    {
        return Ok(fit);
    }
    let least = leaving(folder, ways, threads, budget, LEAST, LEAST);
    least.map_err(|error| match error.downcast_ref() {
        Some(PlanError::Infeasible { need, .. }) => {
            let need = need + LEAST * threads as u64;
            anyhow!(
                "a budget of {} is too small: with {} it takes {} to load {} some rows at a time; \
                 give more by --budget, or fewer --threads",
                size::bytes(budget),
                size::counted(threads as u64, "thread"),
                // One decimal may show too little.
                size::bytes(need + need / 16),
                shown(folder.path()),
            )
        }
        _ => error,
    })
}

/// Each thread has a block for plain reads; the rest is for plans.
fn leaving(
    folder: &Folder,
    ways: &[Way],
    threads: usize,
    budget: u64,
    block: u64,
    piece: u64,
) -> anyhow::Result<Fit> {
    let kept = block * threads as u64;
    let (fate, for_plans) = (Fate::Leaving { piece }, budget.saturating_sub(kept));
    let fit = try_fit(folder, ways, threads, fate, kept, for_plans)?;
    let block = block as usize;
    Ok(Fit { block, ..fit })
}

fn try_fit(
    folder: &Folder,
    ways: &[Way],
    threads: usize,
    fate: Fate,
    kept: u64,
    for_plans: u64,
) -> anyhow::Result<Fit> {
    let planner = Planner {
        folder,
        threads,
        fate,
        budget: for_plans,
    };
    let mut memory = Memory {
        holds_all: fate == Fate::Held,
        kept,
        targets: 0,
        windows: 0,
        plan: 0,
    };
    for way in ways {
        let own = planner.plan(*way)?.memory();
        if own.total() > memory.targets + memory.windows + memory.plan {
            (memory.targets, memory.windows, memory.plan) = (own.targets, own.windows, own.plan);
        }
    }
    Ok(Fit {
        fate,
        block: BLOCK,
        kept: kept as usize,
        for_plans,
        memory,
    })
}
