//! Whose memory lanes access: shared, local, the parameters, or an allocation; and where in it.

use super::cta::Cta;
use super::lanes::{each_bit, each_lane};
use super::registers::LANES;
use super::warp::Warp;
use super::windows;
use crate::memory::races::RaceShadow;
use crate::memory::{Block, ByteSet};
use crate::program::op::Space;
use crate::report::{Fault, FindingKind};

/// Addresses, or offsets, a lane each.
pub(super) type Addresses = [u64; LANES];

/// Where the lanes of an access go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    Shared,
    Local,
    Param,
    /// The allocation with this index.
    Global(usize),
}

/// Where some lanes access one memory.
pub(super) struct Spot {
    pub(super) home: Home,
    pub(super) lanes: u32,
    /// From the memory's beginning. Local memory is that of all threads of the CTA.
    pub(super) offsets: Addresses,
}

/// A memory, and what is known of it.
pub(super) struct Region<'r> {
    pub(super) data: &'r Block,
    pub(super) initialized: Option<&'r ByteSet>,
    pub(super) races: Option<&'r RaceShadow>,
    pub(super) stamp: u32,
    pub(super) uninitialized: FindingKind,
    pub(super) race: FindingKind,
}

impl Cta<'_> {
    /// Whose memory the first of `lanes` accesses, and where all lanes do that access the same.
    #[inline(always)]
    pub(super) fn locate(
        &mut self,
        warp: &Warp,
        space: Space,
        addresses: &Addresses,
        lanes: u32,
        bytes: usize,
    ) -> Result<Spot, Box<Fault>> {
        let (home, lanes) = self.home(space, addresses, lanes, bytes)?;
        Ok(Spot {
            home,
            lanes,
            offsets: self.offsets(home, addresses, warp.index),
        })
    }

    fn home(
        &mut self,
        space: Space,
        addresses: &Addresses,
        lanes: u32,
        bytes: usize,
    ) -> Result<(Home, u32), Box<Fault>> {
        let first = lanes.trailing_zeros() as usize & 31;
        let in_window = |window| {
            let inside = each_bit(|lane| windows::is_in(addresses[lane], window));
            inside & lanes
        };
        match space {
            Space::Shared => return Ok((Home::Shared, lanes)),
            Space::Local => return Ok((Home::Local, lanes)),
            Space::Param => return Ok((Home::Param, lanes)),
            Space::Generic if windows::is_in(addresses[first], windows::SHARED) => {
                return Ok((Home::Shared, in_window(windows::SHARED)));
            }
            Space::Generic if windows::is_in(addresses[first], windows::LOCAL) => {
                return Ok((Home::Local, in_window(windows::LOCAL)));
            }
            Space::Generic | Space::Global => {}
        }
        let nowhere = |kind| {
            let place = self.grid.space.describe(addresses[first]);
            Err(Fault::new(kind, first, format!("{bytes} bytes at {place}")))
        };
        let Some(index) = self.grid.find(addresses[first], self.hint) else {
            return nowhere(FindingKind::OutOfBounds);
        };
        let allocation = &self.grid.allocations[index];
        if allocation.is_freed() {
            return nowhere(FindingKind::UseAfterFree);
        }
        self.hint = index;
        let (base, size) = (allocation.info.base, allocation.info.bytes as u64);
        let inside = each_bit(|lane| addresses[lane].wrapping_sub(base) < size);
        Ok((Home::Global(index), inside & lanes))
    }

    /// Addresses as offsets into their home's block.
    #[inline(always)]
    fn offsets(&self, home: Home, addresses: &Addresses, warp: usize) -> Addresses {
        let base = u64::from(self.grid.options.shared_base);
        match home {
            Home::Shared => {
                each_lane(|lane| (addresses[lane] & (windows::BYTES - 1)).wrapping_sub(base))
            }
            Home::Local => each_lane(|lane| {
                let at = addresses[lane] & (windows::BYTES - 1);
                at.wrapping_add(self.thread_start(home, warp, lane))
            }),
            Home::Param => *addresses,
            Home::Global(index) => {
                let base = self.grid.allocations[index].info.base;
                each_lane(|lane| addresses[lane].wrapping_sub(base))
            }
        }
    }

    /// Where the memory of one thread begins in its home.
    #[inline(always)]
    pub(super) fn thread_start(&self, home: Home, warp: usize, lane: usize) -> u64 {
        match home {
            Home::Local => ((warp * LANES + lane) * self.local_stride) as u64,
            Home::Shared | Home::Param | Home::Global(_) => 0,
        }
    }

    /// How many bytes a thread may access in a home.
    #[inline(always)]
    pub(super) fn size(&self, home: Home) -> usize {
        match home {
            Home::Shared => self.shared.bytes,
            Home::Local => self.grid.kernel.local_bytes as usize,
            Home::Param => self.grid.parameter_bytes,
            Home::Global(index) => self.grid.allocations[index].info.bytes,
        }
    }

    pub(super) fn data(&self, home: Home) -> &Block {
        match home {
            Home::Shared => &self.shared.data,
            Home::Local => &self.local.data,
            Home::Param => &self.grid.parameters,
            Home::Global(index) => &self.grid.allocations[index].data,
        }
    }

    #[inline(always)]
    pub(super) fn region(&self, home: Home) -> Region<'_> {
        let own = Region {
            data: self.data(home),
            initialized: None,
            races: None,
            stamp: 0,
            uninitialized: FindingKind::UninitializedLocal,
            race: FindingKind::SharedRace,
        };
        match home {
            Home::Shared => Region {
                initialized: Some(&self.shared.initialized),
                races: Some(&self.shared_races),
                stamp: self.shared_stamp,
                uninitialized: FindingKind::UninitializedShared,
                ..own
            },
            Home::Local => Region {
                initialized: Some(&self.local.initialized),
                ..own
            },
            Home::Param => own,
            Home::Global(index) => {
                let allocation = &self.grid.allocations[index];
                Region {
                    initialized: Some(allocation.initialized()),
                    races: self.grid.options.sanitize.then(|| allocation.races()),
                    stamp: self.grid.stamp,
                    uninitialized: FindingKind::UninitializedGlobal,
                    race: FindingKind::GlobalRace,
                    ..own
                }
            }
        }
    }

    /// The place of an offset of a thread, in words.
    pub(super) fn place(&self, home: Home, warp: usize, lane: usize, offset: u64) -> String {
        let at = offset.wrapping_sub(self.thread_start(home, warp, lane)) as i64;
        match home {
            Home::Shared => format!("byte {at} of shared memory"),
            Home::Local => format!("byte {at} of the thread's local memory"),
            Home::Param => format!("byte {at} of the parameters"),
            Home::Global(index) => {
                let base = self.grid.allocations[index].info.base;
                let address = base.wrapping_add(offset);
                self.grid.space.describe(address).to_string()
            }
        }
    }
}
