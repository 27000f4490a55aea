//! One CTA: its shared memory, its barriers, and the scheduling of its warps.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::barrier::CtaBarrier;
use super::barrier_state::BarrierState;
use super::counters::Counts;
use super::fault::Fault;
use super::grid::Grid;
use super::happens_before::SyncVar;
use super::livelock::CycleDetector;
use super::products::{ProxyFences, Warpgroup};
use super::random::Random;
use super::registers::Registers;
use super::undefined::Origin;
use super::warp::{State, Warp};
use crate::memory::races::{LAST_STAMP, RaceShadow};
use crate::memory::{Block, ByteSet};
use crate::options::AsyncCopies;
use crate::program::Kernel;
use crate::program::kernel::{Constant, LaneMask, Special};
use crate::report::FindingKind;

/// Instructions per time slice of a warp, unless the schedule is random.
const SLICE: u32 = 4096;

/// Shared memory, or the local memory of all threads of a CTA, with its initialization state.
pub(crate) struct CtaMemory {
    pub(crate) data: Block,
    pub(crate) initialized: ByteSet,
    /// Where the undefined values that were stored came from, by word. An entry counts only while a
    /// byte of the word is not initialized.
    pub(super) origins: HashMap<u64, Origin>,
    pub(crate) bytes: usize,
}

impl CtaMemory {
    fn new(bytes: usize) -> Option<CtaMemory> {
        Some(CtaMemory {
            data: Block::new(bytes)?,
            initialized: ByteSet::new(bytes),
            origins: HashMap::new(),
            bytes,
        })
    }

    fn clear(&mut self) {
        self.data.clear();
        self.initialized.clear();
        self.origins.clear();
    }
}

/// The state that the warps of a CTA share.
pub(crate) struct Cta<'g> {
    pub(crate) grid: &'g Grid<'g>,
    pub(crate) index: u64,
    pub(crate) shared: CtaMemory,
    pub(crate) shared_races: RaceShadow,
    pub(crate) shared_stamp: u32,
    /// The concatenated local memory of all threads.
    pub(crate) local: CtaMemory,
    /// Bytes of local memory per thread, padded.
    pub(crate) local_stride: usize,
    pub(crate) barriers: Vec<CtaBarrier>,
    /// Barriers in shared memory, by offset.
    pub(super) mbarriers: BTreeMap<u64, BarrierState>,
    /// Barriers that were tested in this time slice and found incomplete, if copies may be pending.
    pub(super) awaited: BTreeSet<u64>,
    /// The products that the warps of each warpgroup have started.
    pub(super) warpgroups: Vec<Warpgroup>,
    /// The executions of `fence.proxy.async`, by warp.
    pub(super) proxy_fences: Vec<ProxyFences>,
    /// Synchronization state of shared memory, by address.
    pub(crate) sync_vars: HashMap<u64, SyncVar>,
    /// Per instruction; empty unless counting.
    pub(crate) counts: Vec<Counts>,
    pub(crate) random: Random,
    /// Draws the times of asynchronous copies, if they are random.
    pub(crate) copy_random: Random,
    /// The most recently accessed allocation.
    pub(crate) hint: usize,
    /// Instructions executed so far; also the clock that the CTA's threads read.
    pub(crate) instructions: u64,
    /// `instructions` at the last visible effect.
    last_effect_at: u64,
    cycle: CycleDetector,
    /// The instruction being executed.
    pub(crate) pc: u32,
    /// The initial registers, with constants filled in.
    start: Registers,
}

/// The result of a time slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SliceEnd {
    Done,
    /// Some warp can continue.
    Running,
}

impl<'g> Cta<'g> {
    pub(crate) fn new(grid: &'g Grid<'g>) -> Option<Cta<'g>> {
        let kernel = grid.kernel;
        let local_stride = (kernel.local_bytes as usize).next_multiple_of(16);
        let shared_bytes = grid.shared_bytes as usize;
        let counts = match grid.options.counters {
            true => vec![Counts::default(); kernel.code.len()],
            false => Vec::new(),
        };
        Some(Cta {
            grid,
            index: 0,
            shared: CtaMemory::new(shared_bytes)?,
            shared_races: RaceShadow::new(shared_bytes),
            shared_stamp: 0,
            local: CtaMemory::new(local_stride * grid.threads().next_multiple_of(32) as usize)?,
            local_stride,
            barriers: (0..16).map(|_| CtaBarrier::default()).collect(),
            mbarriers: BTreeMap::new(),
            awaited: BTreeSet::new(),
            warpgroups: Vec::new(),
            proxy_fences: Vec::new(),
            sync_vars: HashMap::new(),
            counts,
            random: Random::new(0),
            copy_random: Random::new(0),
            hint: 0,
            instructions: 0,
            last_effect_at: 0,
            cycle: CycleDetector::default(),
            pc: 0,
            start: start_registers(grid),
        })
    }

    /// Restarts as CTA `index`, with all warps at the first instruction.
    pub(crate) fn restart(&mut self, index: u64, warps: &mut Vec<Warp>) {
        self.index = index;
        self.shared.clear();
        self.local.clear();
        if self.shared_stamp == LAST_STAMP {
            self.shared_races.clear();
            self.shared_stamp = 0;
        }
        self.shared_stamp += 1;
        for barrier in self.barriers.iter_mut().filter(|it| it.is_used()) {
            *barrier = CtaBarrier::default();
        }
        self.mbarriers.clear();
        self.warpgroups.clear();
        self.proxy_fences.clear();
        self.sync_vars.clear();
        let options = self.grid.options;
        self.random = Random::new(options.schedule_seed.unwrap_or(0) ^ index << 20);
        if let AsyncCopies::Random { seed } = options.async_copies {
            self.copy_random = Random::new(seed ^ index << 20);
        }
        self.reset_stall();

        let threads = self.grid.threads();
        let count = threads.div_ceil(32) as usize;
        warps.truncate(count);
        for at in 0..count {
            let lanes = (threads - at as u32 * 32).min(32);
            let mut warp = Warp::new(at, index as u32 & 0xf_ffff, u32::MAX >> (32 - lanes));
            if let Some(old) = warps.get_mut(at) {
                warp.registers = std::mem::take(&mut old.registers);
            }
            self.start_registers_of(&mut warp);
            match warps.get_mut(at) {
                Some(old) => *old = warp,
                None => warps.push(warp),
            }
        }
    }

    /// Records a visible effect.
    #[inline(always)]
    pub(super) fn progress(&mut self) {
        self.last_effect_at = self.instructions;
    }

    /// Restarts stall detection. Another CTA had a visible effect, so a waiting CTA may continue.
    pub(crate) fn reset_stall(&mut self) {
        self.progress();
        self.cycle = CycleDetector::default();
    }

    /// Instructions since the last visible effect.
    pub(crate) fn idle(&self) -> u64 {
        self.instructions - self.last_effect_at
    }

    /// Whether it can continue only if another CTA makes progress: its state repeats, or it has run
    /// too long without a visible effect.
    pub(crate) fn is_stalled(&self) -> bool {
        self.cycle.is_cycling() || self.idle() > self.grid.options.stall_limit
    }

    /// Sets the initial registers; the warp may hold those of an earlier CTA.
    fn start_registers_of(&self, warp: &mut Warp) {
        let registers = &mut warp.registers;
        let used = registers.planes() == self.start.planes();
        match used && self.grid.options.sanitize {
            // No defined value depends on an undefined register, and constants are never written, so
            // values can stay.
            true => {
                registers.forget(&self.start);
                for (slot, constant, wide) in &self.grid.kernel.constants {
                    if let Constant::Frame { offset, .. } = constant {
                        registers.broadcast(*slot, u64::from(*offset), *wide);
                    }
                }
            }
            false => registers.reset(&self.start),
        }
        self.set_specials(warp);
    }

    fn set_specials(&self, warp: &mut Warp) {
        let id = self.grid.cta_id(self.index);
        let threads = self.grid.thread_ids(warp.index);
        for (special, slot) in &self.grid.kernel.specials {
            if special.is_wide() {
                warp.registers.broadcast(*slot, self.grid.number, true);
                continue;
            }
            let value: [u32; 32] = std::array::from_fn(|lane| {
                self.special(*special, id, threads[lane], warp.index as u32, lane as u32)
            });
            warp.registers.set_narrow(*slot, u32::MAX, &value);
        }
    }

    fn special(
        &self,
        special: Special,
        id: [u32; 3],
        thread: [u32; 3],
        warp: u32,
        lane: u32,
    ) -> u32 {
        let grid = self.grid;
        match special {
            Special::Tid(dim) => thread[dim],
            Special::Ntid(dim) => grid.block[dim],
            Special::Ctaid(dim) => id[dim],
            Special::Nctaid(dim) => grid.grid[dim],
            Special::LaneId => lane,
            Special::WarpId => warp,
            Special::Nwarpid => grid.threads().div_ceil(32),
            Special::Smid => (self.index % u64::from(grid.multiprocessors)) as u32,
            Special::Nsmid => grid.multiprocessors,
            Special::GridId => grid.number as u32,
            Special::LaneMask(mask) => lane_mask(mask, lane),
            Special::DynamicSharedBytes => grid.dynamic_shared,
            Special::TotalSharedBytes => grid.shared_bytes,
            // The CUDA driver defines no meaning for them.
            Special::Environment => 0,
        }
    }

    /// Runs every warp for a time slice.
    pub(crate) fn run_slice(
        &mut self,
        warps: &mut [Warp],
    ) -> Result<SliceEnd, (usize, Box<Fault>)> {
        let (mut ran, began) = (false, self.instructions);
        for turn in 0..warps.len() {
            let (at, instructions) = match self.grid.options.schedule_seed {
                None => (turn, SLICE),
                Some(_) => {
                    let at = self.random.below(warps.len() as u64) as usize;
                    (at, 1 + self.random.below(200) as u32)
                }
            };
            ran |= self.run(&mut warps[at], instructions).map_err(|fault| (at, fault))?;
            self.complete_awaited_copies(warps)?;
            self.complete_barriers(warps);
        }
        if warps.iter().all(Warp::is_done) {
            return Ok(SliceEnd::Done);
        }
        if ran || self.any_warp_can_run(warps) {
            let least = match self.grid.options.schedule_seed {
                None => 1,
                Some(_) => 64,
            };
            if self.last_effect_at > began {
                self.cycle = CycleDetector::default();
            }
            let idle = self.idle();
            self.cycle.observe(warps, idle, least);
            return Ok(SliceEnd::Running);
        }
        Err(self.deadlock_fault(warps))
    }

    fn any_warp_can_run(&mut self, warps: &mut [Warp]) -> bool {
        warps.iter_mut().any(|warp| {
            self.wake(warp);
            warp.select().is_some()
        })
    }

    /// The fault of a CTA in which no warp can run, with all waiting threads.
    fn deadlock_fault(&self, warps: &[Warp]) -> (usize, Box<Fault>) {
        let waiting = |state: fn(&State) -> bool| {
            warps.iter().position(|warp| warp.subwarps.iter().any(|it| state(&it.state)))
        };
        let waiters = self.waiters(warps);
        if let Some(at) = waiting(|state| *state == State::WaitingForLanes) {
            let message = format!(
                "only part of the warp reaches this instruction, the rest waits elsewhere:{waiters}"
            );
            return (at, Fault::of_all(FindingKind::DivergentInstruction, message));
        }
        let at = waiting(|state| matches!(state, State::AtBarrier { .. })).unwrap_or(0);
        let is_diverged = warps[at].subwarps.len() > 1;
        let kind = if is_diverged { FindingKind::DivergentBarrier } else { FindingKind::Deadlock };
        let message = format!("all live threads wait:{waiters}");
        (at, Fault::of_all(kind, message))
    }

    /// Lists what each subwarp waits for, one line per subwarp.
    pub(crate) fn waiters(&self, warps: &[Warp]) -> String {
        let mut lines = String::new();
        for warp in warps {
            for subwarp in &warp.subwarps {
                let instruction = &self.grid.kernel.code[subwarp.pc as usize];
                let state = match subwarp.state {
                    State::AtBarrier { id, .. } => {
                        format!("waits for {}", self.barriers[id].describe(id))
                    }
                    State::WaitingForLanes => "waits for other lanes of the warp".to_owned(),
                    State::Ready | State::Yielded => self
                        .awaited_mbarrier(warp, subwarp.mask)
                        .unwrap_or_else(|| "is running".to_owned()),
                };
                lines += &format!(
                    "\n        warp {} lanes {:#010x} at ptx line {} ({}) {state}",
                    warp.index,
                    subwarp.mask,
                    instruction.line,
                    self.grid.kernel.line(instruction.line),
                );
            }
        }
        lines
    }
}

/// The initial registers: undefined, except for the kernel's constants.
fn start_registers(grid: &Grid<'_>) -> Registers {
    let kernel = grid.kernel;
    let mut registers = Registers::new(kernel.planes, kernel.predicates);
    let base = grid.options.shared_base;
    for (slot, constant, wide) in &kernel.constants {
        let bits = match constant {
            Constant::Bits(bits) => *bits,
            Constant::Shared(offset) => u64::from(base + offset),
            Constant::DynamicShared { offset, .. } => {
                u64::from(base + dynamic_shared_start(kernel) + offset)
            }
            Constant::Frame { offset, .. } => u64::from(*offset),
        };
        registers.broadcast(*slot, bits, *wide);
    }
    registers
}

/// Offset of dynamic shared memory. All arrays without an extent start there.
pub(crate) fn dynamic_shared_start(kernel: &Kernel) -> u32 {
    let aligns = kernel.constants.iter().map(|(_, constant, _)| match constant {
        Constant::DynamicShared { align, .. } => *align,
        _ => 1,
    });
    kernel.static_shared.next_multiple_of(aligns.fold(16, u32::max))
}

fn lane_mask(mask: LaneMask, lane: u32) -> u32 {
    let equal = 1u32 << lane;
    let less = equal - 1;
    match mask {
        LaneMask::Equal => equal,
        LaneMask::Less => less,
        LaneMask::LessOrEqual => less | equal,
        LaneMask::Greater => !(less | equal),
        LaneMask::GreaterOrEqual => !less,
    }
}
