//! One CTA: its shared memory, its barriers, and how its warps take turns.

use std::collections::HashMap;

use super::barrier::CtaBarrier;
use super::counters::Counts;
use super::grid::Grid;
use super::order::Committed;
use super::random::Random;
use super::registers::Registers;
use super::waiting::Circle;
use super::warp::{State, Warp};
use crate::memory::races::{LAST_STAMP, RaceShadow};
use crate::memory::{Block, ByteSet};
use crate::options::Asynchronous;
use crate::program::Kernel;
use crate::program::kernel::{Constant, LaneMask, Special};
use crate::report::{Fault, FindingKind};

/// Instructions a warp runs before others get their turn, where the order is not shuffled.
const TURN: u32 = 4096;

/// Shared memory, or the local memory of a CTA's threads, with what is known of it.
pub(crate) struct Own {
    pub(crate) data: Block,
    pub(crate) initialized: ByteSet,
    pub(crate) bytes: usize,
}

impl Own {
    fn new(bytes: usize) -> Option<Own> {
        Some(Own {
            data: Block::new(bytes)?,
            initialized: ByteSet::new(bytes),
            bytes,
        })
    }

    fn clear(&mut self) {
        self.data.clear();
        self.initialized.clear();
    }
}

/// What the warps of a CTA share.
pub(crate) struct Cta<'g> {
    pub(crate) grid: &'g Grid<'g>,
    pub(crate) index: u64,
    pub(crate) shared: Own,
    pub(crate) shared_races: RaceShadow,
    pub(crate) shared_stamp: u32,
    /// Local memory, thread after thread.
    pub(crate) local: Own,
    /// Bytes of local memory a thread, padded.
    pub(crate) local_stride: usize,
    pub(crate) barriers: Vec<CtaBarrier>,
    /// What was published where in shared memory.
    pub(crate) published: HashMap<u64, Committed>,
    /// By instruction; empty unless counting.
    pub(crate) counts: Vec<Counts>,
    pub(crate) random: Random,
    /// When asynchronous copies happen, where that is random.
    pub(crate) copy_chance: Random,
    /// The allocation that was accessed last.
    pub(crate) hint: usize,
    /// Instructions that were run: the clock of the CTA's threads.
    pub(crate) instructions: u64,
    /// What that was when something visible last happened.
    effect_at: u64,
    circle: Circle,
    /// The instruction being executed.
    pub(crate) pc: u32,
    /// Registers at the start, constants filled in.
    start: Registers,
}

/// How a CTA's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Done,
    /// Some warp can go on.
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
            shared: Own::new(shared_bytes)?,
            shared_races: RaceShadow::new(shared_bytes),
            shared_stamp: 0,
            local: Own::new(local_stride * grid.threads().next_multiple_of(32) as usize)?,
            local_stride,
            barriers: (0..16).map(|_| CtaBarrier::default()).collect(),
            published: HashMap::new(),
            counts,
            random: Random::new(0),
            copy_chance: Random::new(0),
            hint: 0,
            instructions: 0,
            effect_at: 0,
            circle: Circle::default(),
            pc: 0,
            start: start_registers(grid),
        })
    }

    /// Becomes CTA `index`, with its warps at the start.
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
        self.published.clear();
        let options = self.grid.options;
        self.random = Random::new(options.schedule_seed.unwrap_or(0) ^ index << 20);
        if let AsyncCopies::Random { seed } = options.async_copies {
            self.copy_chance = Random::new(seed ^ index << 20);
        }
        self.notice();

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

    /// Something visible happened.
    #[inline(always)]
    pub(super) fn progress(&mut self) {
        self.effect_at = self.instructions;
    }

    /// Somebody else did something visible: whoever waited may go on.
    pub(crate) fn notice(&mut self) {
        self.progress();
        self.circle = Circle::default();
    }

    /// Instructions since anything visible happened.
    pub(crate) fn idle(&self) -> u64 {
        self.instructions - self.effect_at
    }

    /// Whether it can only go on if somebody else does something: it runs in a circle, or has run
    /// without a visible effect for longer than is waited for.
    pub(crate) fn waits(&self) -> bool {
        self.circle.is_closed() || self.idle() > self.grid.options.stall_limit
    }

    /// Registers as a thread finds them, where the warp's may be those of a CTA before.
    fn start_registers_of(&self, warp: &mut Warp) {
        let registers = &mut warp.registers;
        let used = registers.planes() == self.start.planes();
        match used && self.grid.options.sanitize {
            // What counts as never written is not read, and constants are not written.
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
        }
    }

    /// Lets every warp run for a while.
    pub(crate) fn turn(&mut self, warps: &mut [Warp]) -> Result<Turn, (usize, Box<Fault>)> {
        let (mut ran, began) = (false, self.instructions);
        for turn in 0..warps.len() {
            let (at, instructions) = match self.grid.options.schedule_seed {
                None => (turn, TURN),
                Some(_) => {
                    let at = self.random.below(warps.len() as u64) as usize;
                    (at, 1 + self.random.below(200) as u32)
                }
            };
            ran |= self
                .run(&mut warps[at], instructions)
                .map_err(|fault| (at, fault))?;
            self.pass_barriers(warps);
        }
        if warps.iter().all(Warp::is_done) {
            return Ok(Turn::Done);
        }
        if ran || self.someone_can_run(warps) {
            let least = match self.grid.options.schedule_seed {
                None => 1,
                Some(_) => 64,
            };
            if self.effect_at > began {
                self.circle = Circle::default();
            }
            let idle = self.idle();
            self.circle.look(warps, idle, least);
            return Ok(Turn::Running);
        }
        Err(self.stuck(warps))
    }

    fn someone_can_run(&mut self, warps: &mut [Warp]) -> bool {
        warps.iter_mut().any(|warp| {
            self.wake(warp);
            warp.select().is_some()
        })
    }

    /// The fault of a CTA in which nobody can run: who waits where.
    fn stuck(&self, warps: &[Warp]) -> (usize, Box<Fault>) {
        let waiting = |state: fn(&State) -> bool| {
            warps
                .iter()
                .position(|warp| warp.fragments.iter().any(|it| state(&it.state)))
        };
        let waiters = self.waiters(warps);
        if let Some(at) = waiting(|state| *state == State::Meeting) {
            let message =
                format!("only part of the warp comes here, the rest waits elsewhere:{waiters}");
            return (
                at,
                Fault::of_all(FindingKind::DivergentInstruction, message),
            );
        }
        let at = waiting(|state| matches!(state, State::AtBarrier { .. })).unwrap_or(0);
        let torn = warps[at].fragments.len() > 1;
        let kind = if torn {
            FindingKind::DivergentBarrier
        } else {
            FindingKind::Deadlock
        };
        let message = format!("every thread that is left waits:{waiters}");
        (at, Fault::of_all(kind, message))
    }

    /// Everyone who waits, a line each.
    pub(crate) fn waiters(&self, warps: &[Warp]) -> String {
        let mut lines = String::new();
        for warp in warps {
            for fragment in &warp.fragments {
                let instruction = &self.grid.kernel.code[fragment.pc as usize];
                let what = match fragment.state {
                    State::AtBarrier { id, .. } => self.barriers[id].describe(id),
                    State::Meeting => "other lanes of its warp".to_owned(),
                    State::Ready | State::Yielded => "nothing: it runs".to_owned(),
                };
                lines += &format!(
                    "\n        warp {} lanes {:#010x} at ptx line {} ({}) for {what}",
                    warp.index,
                    fragment.mask,
                    instruction.line,
                    self.grid.kernel.line(instruction.line),
                );
            }
        }
        lines
    }
}

/// Registers with the kernel's constants.
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

/// Where dynamic shared memory begins, counted from the start of the CTA's: every array without an
/// extent begins there.
pub(crate) fn dynamic_shared_start(kernel: &Kernel) -> u32 {
    let aligns = kernel
        .constants
        .iter()
        .map(|(_, constant, _)| match constant {
            Constant::DynamicShared { align, .. } => *align,
            _ => 1,
        });
    kernel
        .static_shared
        .next_multiple_of(aligns.fold(16, u32::max))
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
