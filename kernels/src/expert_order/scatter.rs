//! The kernel that assigns a row to each slot.

use super::index::groups;
use super::{ABSENT, Blocks, IndexFormat, Parts, SLOTS_IN_FLIGHT, Share, THREADS, TILE, WARPS};
use crate::assembler::{
    GlobalAddress, In, Kernel, Launch, Out, Ptx, SharedAddress, Target, U32, Variant,
};
use crate::faults::FaultSite;
use crate::params;

/// `row_of_slot[slot]`, and the inverse `order[row]`. Slots of one expert get consecutive rows, in
/// slot order. `row_of_slot` is -1 for slots without a local expert, and `order` is -1 for rows
/// without a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertScatter {
    index: IndexFormat,
    parts: Parts,
}

impl ExpertScatter {
    /// The kernel for `held` local experts.
    pub fn new(index: IndexFormat, held: u32) -> ExpertScatter {
        ExpertScatter { index, parts: Parts::new(held) }
    }

    /// The launch, never `None`.
    pub fn launch(&self, blocks: Blocks, held: u32) -> Option<Launch> {
        blocks.launch(self.parts.count(held))
    }
}

params! {
    /// Arguments of [`ExpertScatter`].
    pub struct ExpertScatterArguments => Call {
        /// \[S\].
        indices: In,
        /// \[G, B\] of u32.
        starts: In,
        /// \[G + 1\] of i64.
        offsets: In,
        /// \[S\] of i32.
        order: Out,
        /// \[S\] of i32.
        row_of_slot: Out,
        /// S.
        slots: u32,
        /// Slots per block, from [`Blocks::each`].
        slots_per_block: u32,
        /// G.
        held: u32,
        /// The first local expert.
        first_expert: u32,
        /// The number of all experts.
        experts: u64,
        /// The fault site for indices outside of all experts.
        faults: FaultSite,
    }
}

impl Variant for ExpertScatter {
    type Arguments = ExpertScatterArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let call = self.parameters(k);

        let share = Share::new(k, self.parts, [call.slots, call.slots_per_block, call.held]);
        let rows = Rows::new(k, self.parts, &share);
        rows.begin(call.starts, call.offsets);

        let (held, order, row_of_slot) = (call.held, call.order, call.row_of_slot);
        let used = call.offsets.element::<u64>(held).load::<u64>().low();
        let (first_part, absent) = (k.cta_y().equals(0), k.constant(ABSENT));
        k.for_range(share.first, share.end, TILE, |tile| {
            let slots = share.slots(tile);
            let loaded = self.index.load(call.indices, &slots);
            let groups = groups(&loaded, call.first_expert, &slots);
            let experts: Vec<_> = groups.iter().map(|it| share.of_part(*it)).collect();
            let dealt = rows.deal(&experts);

            for (i, (slot, exists)) in slots.into_iter().enumerate() {
                let of_slot = row_of_slot.element::<u32>(slot);
                let here = experts[i].lt(share.experts);
                of_slot.store_if(here, dealt[i]);
                order.element::<u32>(dealt[i]).store_if(here, slot);

                let said_here = first_part & exists;
                let wild = loaded[i].unsigned().ge(call.experts);
                call.faults.report(said_here & wild, loaded[i]);
                of_slot.store_if(said_here & groups[i].ge(held), absent);
                let unused = said_here & slot.ge(used);
                order.element::<u32>(slot).store_if(unused, absent);
            }
            k.warp_barrier();
        });
        k.finish()
    }

    fn entry(&self) -> String {
        let (index, experts) = (self.index.name(), self.parts.experts);
        format!("expert_scatter_{index}_e{experts}")
    }
}

/// The rows assigned to the slots of a block.
struct Rows<'a, 'k> {
    k: &'k Kernel,
    share: &'a Share<'k>,
    /// The next row of each expert of the part.
    next: SharedAddress<'k>,
    /// Counters, `line` words per warp. The last word counts slots whose expert is not in the part.
    counters: SharedAddress<'k>,
    line: u32,
}

impl<'a, 'k> Rows<'a, 'k> {
    #[track_caller]
    fn new(k: &'k Kernel, parts: Parts, share: &'a Share<'k>) -> Rows<'a, 'k> {
        let line = parts.experts + 1;
        Rows {
            k,
            share,
            next: k.shared::<u32>(parts.experts),
            counters: k.shared::<u32>(line * WARPS),
            line,
        }
    }

    /// Initializes `next` with the first row of each expert in this block. No barrier is needed,
    /// because only the thread that writes an element reads it.
    #[track_caller]
    fn begin(&self, starts: GlobalAddress<'k>, offsets: GlobalAddress<'k>) {
        self.share.for_experts(|expert| {
            let of_all = self.share.first_expert + expert;
            let offset = offsets.element::<u64>(of_all).load::<u64>().low();
            let cell = starts.element_wide::<u32>(self.share.cell(expert));
            let next = self.next.element::<u32>(expert);
            next.store(offset + cell.load::<u32>());
        });
    }

    /// The row of each slot of this thread, given their `experts`. Undefined for slots whose expert
    /// is not in the part. All threads of the CTA must call it.
    #[track_caller]
    fn deal(&self, experts: &[U32<'k>]) -> Vec<U32<'k>> {
        let own = self.k.warp() * (4 * self.line);
        let own = self.counters.byte_add(own);
        let ranks = self.ranks_in_warp(own, experts);
        self.k.barrier();
        self.share.for_experts(|expert| self.sum_over_warps(expert));
        self.k.barrier();

        let dealt = experts.iter().zip(ranks);
        let row = |(expert, rank): (&U32<'k>, U32<'k>)| own.element::<u32>(*expert).load() + rank;
        dealt.map(row).collect()
    }

    /// For each slot, the number of earlier slots of the warp with the same expert. Afterwards the
    /// warp's counters hold the number of its slots per expert.
    #[track_caller]
    fn ranks_in_warp(&self, own: SharedAddress<'k>, experts: &[U32<'k>]) -> Vec<U32<'k>> {
        debug_assert_eq!(experts.len(), SLOTS_IN_FLIGHT as usize);
        let (k, none) = (self.k, self.k.constant(0u32));
        k.for_range(k.lane(), self.share.experts + 1, 32, |expert| {
            own.element::<u32>(expert).store(none);
        });
        k.warp_barrier();

        let lanes_before = (k.constant(1u32) << k.lane()) - 1;
        let rank = |expert: &U32<'k>| {
            let alike = expert.match_any();
            let before = (alike & lanes_before).count_ones();
            let counter = own.element::<u32>(*expert);
            let rounds_before = counter.load::<u32>();
            k.warp_barrier();
            k.if_(before.equals(0), || {
                counter.store(rounds_before + alike.count_ones());
            });
            k.warp_barrier();
            rounds_before + before
        };
        experts.iter().map(rank).collect()
    }

    /// Replaces an expert's counts by the first row of each warp, and advances the expert's next
    /// row.
    #[track_caller]
    fn sum_over_warps(&self, expert: U32<'k>) {
        let (next, first) =
            (self.next.element::<u32>(expert), self.counters.element::<u32>(expert));
        let of_warp = |warp| first.offset(4 * self.line * warp);
        let counts: Vec<U32<'k>> = (0..WARPS).map(|warp| of_warp(warp).load()).collect();

        let after = counts.into_iter().zip(0..);
        let after = after.fold(next.load::<u32>(), |row, (count, warp)| {
            of_warp(warp).store(row);
            row + count
        });
        next.store(after);
    }
}
