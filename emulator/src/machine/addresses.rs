//! Address resolution: which memory the lanes access (shared, local, parameters or an allocation),
//! and at which offset.

use super::cta::Cta;
use super::fault::Fault;
use super::lanes::{each_bit, each_lane};
use super::registers::LANES;
use super::warp::Warp;
use super::windows::{self, MemoryId};
use crate::memory::races::RaceShadow;
use crate::memory::{Block, ByteSet};
use crate::program::op::Space;
use crate::report::FindingKind;

/// One address or offset per lane.
pub(super) type Addresses = [u64; LANES];

/// The lanes of an access that resolve to one memory.
pub(super) struct ResolvedAddresses {
    pub(super) memory: MemoryId,
    pub(super) lanes: u32,
    /// Offsets into the memory's block. The block of local memory holds all threads of the CTA.
    pub(super) offsets: Addresses,
}

/// A memory and its shadow state.
pub(super) struct Region<'r> {
    pub(super) data: &'r Block,
    pub(super) initialized: Option<&'r ByteSet>,
    pub(super) races: Option<&'r RaceShadow>,
    pub(super) stamp: u32,
    pub(super) race: FindingKind,
}

impl Cta<'_> {
    /// Resolves the address of the first lane in `lanes`, and of all lanes in the same memory.
    #[inline(always)]
    pub(super) fn resolve(
        &mut self,
        warp: &Warp,
        space: Space,
        addresses: &Addresses,
        lanes: u32,
        bytes: usize,
    ) -> Result<ResolvedAddresses, Box<Fault>> {
        let (memory, lanes) = self.memory_of_first(space, addresses, lanes, bytes)?;
        Ok(ResolvedAddresses {
            memory,
            lanes,
            offsets: self.offsets(memory, addresses, warp.index),
        })
    }

    fn memory_of_first(
        &mut self,
        space: Space,
        addresses: &Addresses,
        lanes: u32,
        bytes: usize,
    ) -> Result<(MemoryId, u32), Box<Fault>> {
        let first = lanes.trailing_zeros() as usize & 31;
        let in_window = |window| {
            let inside = each_bit(|lane| windows::is_in(addresses[lane], window));
            inside & lanes
        };
        match space {
            Space::Shared => return Ok((MemoryId::Shared, lanes)),
            Space::Local => return Ok((MemoryId::Local, lanes)),
            Space::Param => return Ok((MemoryId::Param, lanes)),
            Space::Generic if windows::is_in(addresses[first], windows::SHARED) => {
                return Ok((MemoryId::Shared, in_window(windows::SHARED)));
            }
            Space::Generic if windows::is_in(addresses[first], windows::LOCAL) => {
                return Ok((MemoryId::Local, in_window(windows::LOCAL)));
            }
            Space::Generic | Space::Global => {}
        }
        let fault = |kind| {
            let place = self.grid.space.describe(addresses[first]);
            Err(Fault::new(kind, first, format!("access of {bytes} bytes at {place}")))
        };
        let Some(index) = self.grid.find(addresses[first], self.hint) else {
            return fault(FindingKind::OutOfBounds);
        };
        let allocation = &self.grid.allocations[index];
        if allocation.is_freed() {
            return fault(FindingKind::UseAfterFree);
        }
        self.hint = index;
        let (base, size) = (allocation.info.base, allocation.info.bytes as u64);
        let inside = each_bit(|lane| addresses[lane].wrapping_sub(base) < size);
        Ok((MemoryId::Global(index), inside & lanes))
    }

    /// Addresses as offsets into the memory's block.
    #[inline(always)]
    fn offsets(&self, memory: MemoryId, addresses: &Addresses, warp: usize) -> Addresses {
        let base = u64::from(self.grid.options.shared_base);
        match memory {
            MemoryId::Shared => {
                each_lane(|lane| (addresses[lane] & (windows::BYTES - 1)).wrapping_sub(base))
            }
            MemoryId::Local => each_lane(|lane| {
                let at = addresses[lane] & (windows::BYTES - 1);
                at.wrapping_add(self.thread_start(memory, warp, lane))
            }),
            MemoryId::Param => *addresses,
            MemoryId::Global(index) => {
                let base = self.grid.allocations[index].info.base;
                each_lane(|lane| addresses[lane].wrapping_sub(base))
            }
        }
    }

    /// Offset of a thread's part of a memory's block.
    #[inline(always)]
    pub(super) fn thread_start(&self, memory: MemoryId, warp: usize, lane: usize) -> u64 {
        match memory {
            MemoryId::Local => ((warp * LANES + lane) * self.local_stride) as u64,
            MemoryId::Shared | MemoryId::Param | MemoryId::Global(_) => 0,
        }
    }

    /// Bytes that a thread may access.
    #[inline(always)]
    pub(super) fn size(&self, memory: MemoryId) -> usize {
        match memory {
            MemoryId::Shared => self.shared.bytes,
            MemoryId::Local => self.grid.kernel.local_bytes as usize,
            MemoryId::Param => self.grid.parameter_bytes,
            MemoryId::Global(index) => self.grid.allocations[index].info.bytes,
        }
    }

    pub(super) fn data(&self, memory: MemoryId) -> &Block {
        match memory {
            MemoryId::Shared => &self.shared.data,
            MemoryId::Local => &self.local.data,
            MemoryId::Param => &self.grid.parameters,
            MemoryId::Global(index) => &self.grid.allocations[index].data,
        }
    }

    #[inline(always)]
    pub(super) fn region(&self, memory: MemoryId) -> Region<'_> {
        let own = Region {
            data: self.data(memory),
            initialized: None,
            races: None,
            stamp: 0,
            race: FindingKind::SharedRace,
        };
        match memory {
            MemoryId::Shared => Region {
                initialized: Some(&self.shared.initialized),
                races: Some(&self.shared_races),
                stamp: self.shared_stamp,
                ..own
            },
            MemoryId::Local => Region { initialized: Some(&self.local.initialized), ..own },
            MemoryId::Param => own,
            MemoryId::Global(index) => {
                let allocation = &self.grid.allocations[index];
                Region {
                    initialized: Some(allocation.initialized()),
                    races: self.grid.options.sanitize.then(|| allocation.races()),
                    stamp: self.grid.stamp,
                    race: FindingKind::GlobalRace,
                    ..own
                }
            }
        }
    }

    /// The description of an offset for messages.
    pub(super) fn place(&self, memory: MemoryId, warp: usize, lane: usize, offset: u64) -> String {
        let at = offset.wrapping_sub(self.thread_start(memory, warp, lane)) as i64;
        match memory {
            MemoryId::Shared => format!("byte {at} of shared memory"),
            MemoryId::Local => format!("byte {at} of the thread's local memory"),
            MemoryId::Param => format!("byte {at} of the parameters"),
            MemoryId::Global(index) => {
                let base = self.grid.allocations[index].info.base;
                let address = base.wrapping_add(offset);
                self.grid.space.describe(address).to_string()
            }
        }
    }
}
