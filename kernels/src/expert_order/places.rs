//! The kernel that gives each rank places for the slots of its experts.

use super::{ABSENT, THREADS};
use crate::assembler::{
    GlobalAddress, In, Kernel, Launch, Out, Pred, Ptx, Target, U32, U64, Variant,
};
use crate::params;

/// Gives each rank `capacity` places, for the slots of its `held` experts in expert order. A slot
/// without a place gets -1, and so does a place without a slot, whose expert is `held`.
///
/// One thread per place, slot and rank. Operands that no sort returns give places and slots without
/// each other, but nothing outside of the operands is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertPlaces;

impl ExpertPlaces {
    /// The launch for `ranks` of `capacity` places. It is never `None`: without ranks there is one
    /// offset. There must be fewer than 2^31 places.
    pub fn launch(&self, [ranks, capacity]: [u32; 2], slots: u32) -> Option<Launch> {
        let threads = (ranks * capacity).max(slots).max(ranks + 1);
        Launch::new([threads.div_ceil(THREADS), 1, 1], THREADS)
    }
}

params! {
    /// Arguments of [`ExpertPlaces`].
    pub struct ExpertPlacesArguments => Call {
        /// \[S\] of i32.
        indices: In,
        /// \[S\] of i32.
        order: In,
        /// \[P held + 1\] of i64.
        offsets: In,
        /// \[S\] of i32.
        row_of_slot: In,
        /// \[P + 1\] of i64: the first place of each rank.
        first: Out,
        /// \[P capacity\] of i32.
        slot_of_place: Out,
        /// \[S\] of i32.
        place_of_slot: Out,
        /// \[P capacity\] of i32: the expert of each place, as one of those of its rank.
        expert_of_place: Out,
        /// P.
        ranks: u32,
        /// Experts per rank, at least 1.
        held: u32,
        /// Places per rank.
        capacity: u32,
        /// S.
        slots: u32,
    }
}

impl Variant for ExpertPlaces {
    type Arguments = ExpertPlacesArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let call = self.parameters(k);
        let at = k.cta() * THREADS + k.thread();

        let of_rank = call.first.element::<u64>(at);
        of_rank.store_if(at.le(call.ranks), at.mul_wide(call.capacity));
        fill_place(&call, at);
        place_slot(&call, at);
        k.finish()
    }

    fn entry(&self) -> String {
        "expert_places".to_owned()
    }
}

/// The first row of a rank's experts; 0 if the predicate is false.
#[track_caller]
fn first_row<'k>(call: &Call<'k>, rank: U32<'k>, exists: Pred<'k>) -> U64<'k> {
    let offset: GlobalAddress<'k> = call.offsets.element::<u64>(rank * call.held);
    offset.load_if(exists)
}

/// Writes the slot of a place, and its expert.
#[track_caller]
fn fill_place<'k>(call: &Call<'k>, place: U32<'k>) {
    let &Call { ranks, held, capacity, slots, .. } = call;
    let exists = place.lt(ranks * capacity);
    // Without capacity the rank is undefined, but then no place exists.
    let rank = place / capacity;
    let inside = place - rank * capacity;
    let [start, end] = [rank, rank + 1].map(|rank| first_row(call, rank, exists));

    let row = start + inside.wide();
    let used = exists & row.lt(end) & row.lt(slots.wide());
    let slot = call.order.element_wide::<u32>(row).load_if::<u32>(used);
    let used = used & slot.lt(slots);
    let index = call.indices.element::<u32>(slot).load_if::<u32>(used);
    let expert = index - rank * held;
    call.slot_of_place.element::<u32>(place).store_if(exists, used.select(slot, ABSENT));
    call.expert_of_place.element::<u32>(place).store_if(exists, used.select(expert, held));
}

/// Writes the place of a slot.
#[track_caller]
fn place_slot<'k>(call: &Call<'k>, slot: U32<'k>) {
    let &Call { ranks, held, capacity, slots, .. } = call;
    let exists = slot.lt(slots);
    let index = call.indices.element::<u32>(slot).load_if::<u32>(exists);
    let row = call.row_of_slot.element::<u32>(slot).load_if::<u32>(exists);

    let rank = index / held;
    let sorted = exists & row.lt(slots) & rank.lt(ranks);
    let inside = row.wide() - first_row(call, rank, sorted);
    let placed = sorted & inside.lt(capacity.wide());
    let place = rank * capacity + inside.low();
    call.place_of_slot.element::<u32>(slot).store_if(exists, placed.select(place, ABSENT));
}
