//! Launches: the CTAs of a grid run in parallel on the host's cores. If they may communicate, they
//! are interleaved on one thread.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::machine::counters::{Counters, Counts};
use crate::machine::cta::{Cta, SliceEnd, dynamic_shared_start};
use crate::machine::fault::Fault;
use crate::machine::grid::Grid;
use crate::machine::locate::locate;
use crate::machine::random::Random;
use crate::machine::warp::Warp;
use crate::memory::{AddressSpace, Block, ByteSet};
use crate::options::Options;
use crate::program::Kernel;
use crate::report::{Finding, FindingKind};

/// A kernel launch.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// CTAs in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a CTA in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The bytes of the parameter space.
    pub parameters: &'a [u8],
    /// The value of `%nsmid`.
    pub multiprocessors: u32,
}

/// Why a launch failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The kernel has an error.
    #[error(transparent)]
    Finding(Box<Finding>),

    /// The host is out of memory.
    #[error("out of host memory for the shared and local memory of kernel `{kernel}`")]
    HostMemory {
        /// The kernel.
        kernel: String,
    },

    /// The launch configuration does not match the kernel.
    #[error("kernel `{kernel}`: {problem}")]
    Invalid {
        /// The kernel.
        kernel: String,
        /// The mismatch.
        problem: String,
    },
}

/// Runs a grid to completion.
///
/// # Errors
///
/// [`LaunchError`]. If several CTAs fail, the finding of the one with the lowest index.
pub fn launch(
    space: &AddressSpace,
    launch: &Launch<'_>,
    options: &Options,
) -> Result<Counters, LaunchError> {
    validate(launch)?;
    let stamp = space.next_stamp();
    let grid = prepare(space, launch, options, stamp.number())?;
    let outcome = match is_interleaved(launch.kernel, options) {
        true => run_interleaved(&grid),
        false => run_parallel(&grid, host_threads(launch, options)),
    }?;
    let accessed = |which: usize| {
        let sets = grid.accessed.iter().flatten();
        let sets = sets.filter_map(|sets| sets[which].get());
        sets.map(ByteSet::count).sum()
    };
    let unique = [accessed(0), accessed(1)];
    Ok(Counters::new(grid.kernel, grid.ctas(), &outcome, unique))
}

/// Whether CTAs are interleaved on one host thread: if they may communicate, or if the schedule is
/// random.
fn is_interleaved(kernel: &Kernel, options: &Options) -> bool {
    kernel.communicates || options.schedule_seed.is_some()
}

/// The number of host threads for a launch.
fn host_threads(launch: &Launch<'_>, options: &Options) -> u64 {
    if is_interleaved(launch.kernel, options) {
        return 1;
    }
    let threads = match options.threads {
        0 => rayon::current_num_threads(),
        threads => threads,
    };
    let ctas: u64 = launch.grid.iter().map(|extent| u64::from(*extent)).product();
    (threads as u64).min(ctas).max(1)
}

fn validate(launch: &Launch<'_>) -> Result<(), LaunchError> {
    let kernel = launch.kernel;
    let invalid =
        |problem: String| Err(LaunchError::Invalid { kernel: kernel.name.clone(), problem });
    let threads: u64 = launch.block.iter().map(|extent| u64::from(*extent)).product();
    if threads == 0 || launch.grid.contains(&0) {
        return invalid("grid and block extents must be positive".into());
    }
    if let Some(required) = kernel.required_threads
        && required != launch.block
    {
        let given = launch.block;
        return invalid(format!(
            "launched with a block of {given:?}, but it requires {required:?}"
        ));
    }
    if threads > u64::from(kernel.max_threads) {
        let max = kernel.max_threads;
        return invalid(format!(
            "launched with {threads} threads per block, but it allows at most {max}"
        ));
    }
    if launch.parameters.len() < kernel.parameter_bytes {
        let (given, needed) = (launch.parameters.len(), kernel.parameter_bytes);
        return invalid(format!(
            "launched with {given} bytes of parameters, but it needs {needed}"
        ));
    }
    Ok(())
}

fn prepare<'l>(
    space: &'l AddressSpace,
    launch: &Launch<'l>,
    options: &'l Options,
    stamp: u32,
) -> Result<Grid<'l>, LaunchError> {
    static NUMBER: AtomicU64 = AtomicU64::new(1);

    let kernel = launch.kernel;
    let Some(parameters) = Block::new(launch.parameters.len()) else {
        return Err(no_memory(kernel));
    };
    parameters.write(0, launch.parameters);
    let allocations = space.snapshot();
    let accessed = options.counters;
    let accessed = accessed.then(|| allocations.iter().map(|_| Default::default()).collect());
    Ok(Grid {
        kernel,
        space,
        options,
        grid: launch.grid,
        block: launch.block,
        shared_bytes: match launch.dynamic_shared {
            0 => kernel.static_shared,
            bytes => dynamic_shared_start(kernel) + bytes,
        },
        dynamic_shared: launch.dynamic_shared,
        parameters,
        parameter_bytes: launch.parameters.len(),
        allocations,
        contended: host_threads(launch, options) > 1,
        stamp,
        sync_vars: Mutex::new(HashMap::new()),
        accessed,
        multiprocessors: launch.multiprocessors.max(1),
        number: NUMBER.fetch_add(1, Relaxed),
    })
}

fn no_memory(kernel: &Kernel) -> LaunchError {
    LaunchError::HostMemory { kernel: kernel.name.clone() }
}

/// A fault and the CTA that it occurred in.
struct Failure {
    cta: u64,
    finding: Box<Finding>,
}

/// Runs CTAs that cannot communicate, on several host threads.
fn run_parallel(grid: &Grid<'_>, threads: u64) -> Result<Vec<Counts>, LaunchError> {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let work = || run_ctas(grid, &next, &stop);
    if threads == 1 {
        return finish(vec![work()], grid);
    }
    let outcomes = Mutex::new(Vec::new());
    rayon::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|_| {
                let outcome = work();
                let mut outcomes = outcomes.lock().unwrap_or_else(|it| it.into_inner());
                outcomes.push(outcome);
            });
        }
    });
    finish(outcomes.into_inner().unwrap_or_else(|it| it.into_inner()), grid)
}

type Outcome = Result<Vec<Counts>, Option<Failure>>;

fn run_ctas(grid: &Grid<'_>, next: &AtomicU64, stop: &AtomicBool) -> Outcome {
    let mut cta = Cta::new(grid).ok_or(None)?;
    let mut warps = Vec::new();
    loop {
        let index = next.fetch_add(1, Relaxed);
        if index >= grid.ctas() || stop.load(Relaxed) {
            return Ok(cta.counts);
        }
        cta.restart(index, &mut warps);
        loop {
            match cta.run_slice(&mut warps) {
                Ok(SliceEnd::Done) => break,
                Ok(SliceEnd::Running) if !cta.is_stalled() => {}
                Ok(SliceEnd::Running) => {
                    stop.store(true, Relaxed);
                    let fault = stall_fault(&cta, &warps);
                    return Err(Some(failure(&cta, &warps, 0, *fault)));
                }
                Err((warp, fault)) => {
                    stop.store(true, Relaxed);
                    return Err(Some(failure(&cta, &warps, warp, *fault)));
                }
            }
        }
    }
}

fn finish(outcomes: Vec<Outcome>, grid: &Grid<'_>) -> Result<Vec<Counts>, LaunchError> {
    let mut counts: Vec<Counts> = Vec::new();
    let mut failures = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(more) if counts.is_empty() => counts = more,
            Ok(more) => counts.iter_mut().zip(&more).for_each(|(a, b)| a.add(b)),
            Err(Some(failure)) => failures.push(failure),
            Err(None) => return Err(no_memory(grid.kernel)),
        }
    }
    let first = failures.into_iter().min_by_key(|failure| failure.cta);
    match first {
        None => Ok(counts),
        Some(failure) => Err(LaunchError::Finding(failure.finding)),
    }
}

/// Interleaves CTAs that may communicate, on one host thread.
fn run_interleaved(grid: &Grid<'_>) -> Result<Vec<Counts>, LaunchError> {
    let mut random = grid.options.schedule_seed.map(Random::new);
    let mut resident: Vec<(Cta<'_>, Vec<Warp>)> = Vec::new();
    let mut done: Vec<(Cta<'_>, Vec<Warp>)> = Vec::new();
    let mut counts: Vec<Counts> = Vec::new();
    let mut next = 0;
    let max_resident = resident_limit(grid);
    loop {
        let all_wait = resident.iter().all(|(cta, _)| cta.is_stalled());
        let target_count = match (all_wait, random.is_some()) {
            (true, _) => (2 * resident.len()).clamp(1, max_resident),
            (false, true) => 8,
            (false, false) => 1,
        };
        while next < grid.ctas() && resident.len() < target_count.min(max_resident) {
            let (mut cta, mut warps) = match done.pop() {
                Some(used) => used,
                None => (Cta::new(grid).ok_or_else(|| no_memory(grid.kernel))?, Vec::new()),
            };
            cta.restart(next, &mut warps);
            resident.push((cta, warps));
            next += 1;
        }
        if resident.is_empty() {
            break;
        }
        let count = resident.len();
        for turn in 0..count {
            let at = match &mut random {
                Some(random) => random.below(count as u64) as usize,
                None => turn,
            };
            let (cta, warps) = &mut resident[at];
            let began = cta.instructions;
            if let Err((warp, fault)) = cta.run_slice(warps) {
                let failure = failure(cta, warps, warp, *fault);
                return Err(LaunchError::Finding(failure.finding));
            }
            if cta.instructions - began > cta.idle() {
                resident.iter_mut().for_each(|(cta, _)| cta.reset_stall());
            }
        }
        let (ended, running): (Vec<_>, Vec<_>) =
            resident.into_iter().partition(|(_, warps)| warps.iter().all(Warp::is_done));
        resident = running;
        done.extend(ended);
        let no_more_ctas = next == grid.ctas() || resident.len() >= max_resident;
        let all_wait = resident.iter().all(|(cta, _)| cta.is_stalled());
        if no_more_ctas
            && all_wait
            && let Some((cta, warps)) = resident.first()
        {
            let failure = failure(cta, warps, 0, *stall_fault(cta, warps));
            return Err(LaunchError::Finding(failure.finding));
        }
    }
    for (cta, _) in done {
        match counts.is_empty() {
            true => counts = cta.counts,
            false => counts.iter_mut().zip(&cta.counts).for_each(|(a, b)| a.add(b)),
        }
    }
    Ok(counts)
}

/// The number of CTAs that are resident on a GPU: at most 2048 threads and 32 CTAs per
/// multiprocessor.
fn resident_limit(grid: &Grid<'_>) -> usize {
    let per_multiprocessor = (2048 / grid.threads().max(1)).clamp(1, 32);
    (per_multiprocessor * grid.multiprocessors) as usize
}

fn stall_fault(cta: &Cta<'_>, warps: &[Warp]) -> Box<Fault> {
    let (idle, waiters) = (cta.idle(), cta.waiters(warps));
    let message = format!(
        "no store, atomic, barrier or exit in {idle} instructions: the kernel waits for \
         something that never happens; if it only computes, raise \
         MESHGRAD_EMULATOR_STALL_LIMIT{waiters}"
    );
    Fault::of_all(FindingKind::Deadlock, message)
}

/// The finding of a fault, with its location and thread.
fn failure(cta: &Cta<'_>, warps: &[Warp], warp: usize, fault: Fault) -> Failure {
    let pc = match fault.lane {
        None if fault.kind == FindingKind::Deadlock
            || fault.kind == FindingKind::DivergentBarrier =>
        {
            let subwarps = &warps[warp].subwarps;
            subwarps.first().map_or(cta.pc, |subwarp| subwarp.pc)
        }
        _ => cta.pc,
    };
    Failure { cta: cta.index, finding: Box::new(locate(cta.grid, cta.index, warp, pc, fault)) }
}
