//! `fence.proxy.async`: which writes to shared memory asynchronous products can see.
//!
//! Products read through the asynchronous proxy. A thread's write, or its asynchronous copy after
//! the wait for it, reaches that proxy when the thread executes the fence. A barrier must then order
//! the product after the fence.

use super::cta::Cta;
use super::products::ProxyFence;
use super::registers::LANES;
use super::warp::Warp;
use crate::memory::races::{LAST_CLOCK, Mark};

impl Cta<'_> {
    pub(super) fn proxy_fence(&mut self, warp: &mut Warp, mask: u32) {
        if !self.grid.kernel.products || !self.grid.options.sanitize {
            return;
        }
        if self.proxy_fences.len() <= warp.index {
            self.proxy_fences.resize(warp.index + 1, Vec::new());
        }
        let waited = Box::new(*warp.clock.waited_copies());
        self.proxy_fences[warp.index].push(ProxyFence {
            clock: warp.clock.advance(),
            lanes: mask,
            waited,
        });
    }

    /// The lanes of which a product that a warp starts now sees the same write: the writer's, and
    /// others with a write at the same clock. Zero if it does not see the write.
    pub(super) fn lanes_visible_to_products(&self, warp: &Warp, write: Mark) -> u32 {
        let writer = usize::from(write.agent()) % LANES;
        let lane = usize::from(write.lane());
        if write.clock() >= LAST_CLOCK {
            return u32::MAX;
        }
        let Some(fences) = self.proxy_fences.get(writer) else {
            return 0;
        };
        let is_copy = usize::from(write.agent()) >= LANES;
        let first = fences.partition_point(|fence| match is_copy {
            true => fence.waited[lane] < write.clock(),
            false => fence.clock < write.clock(),
        });
        let own = fences[first..].iter().find(|it| it.lanes >> lane & 1 != 0);
        let is_ordered = |fence: &&ProxyFence| {
            writer == warp.index || warp.clock.seen.includes_warp(writer, fence.clock)
        };
        match own.filter(is_ordered) {
            None => 0,
            // The lanes may have waited for their copies at different times.
            Some(_) if is_copy => 1 << lane,
            Some(fence) => fence.lanes,
        }
    }
}
