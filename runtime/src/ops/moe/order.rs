//! Sorting tokens by expert.

use meshgrad_error::{bail, ensure};

use crate::cpu::moe::{self as kernels, Sorted};
use crate::cpu::rows::Flat;
use crate::launch::moe as launch;
use crate::ops::contiguous;
use crate::{DType, Result, Signature, Tensor, UninitTensor, for_index};

pub(super) static EXPERT_ORDER: Signature = Signature::new(
    "expert_order",
    "indices: I[n! k!] -> offsets: i64[g], order: i32[c], row_of_slot: i32[n k]",
    0,
);
pub(super) static EXPERT_PLACES: Signature = Signature::new(
    "expert_places",
    "indices: i32[n! k!], offsets: i64[g!], order: i32[s!], row_of_slot: i32[n! k!] -> first: i64[p], \
     places: i32[c], place_of_slot: i32[n k], experts: i32[c]",
    0,
);
pub(super) static EXPERT_COUNTS: Signature =
    Signature::new("expert_counts", "offsets: i64[g!] -> counts: f32[e]", 0);

/// The order of slots sorted by expert. Slot `token * K + k` is the `k`th expert of a token.
#[derive(Clone, Debug)]
pub struct ExpertOrder {
    /// [local + 1] i64: local expert g has the rows `offsets[g]..offsets[g + 1]`.
    pub offsets: Tensor,
    /// \[C\] i32: the slot of each row; -1 for a row without one, such as those after the last offset.
    pub order: Tensor,
    /// [N, K] i32: the row of each slot; -1 if it has none, such as one whose expert is not local.
    pub row_of_slot: Tensor,
}

/// Sorts the slots by expert, stably. The local experts are the `held` experts from `first_expert`
/// on, out of `experts`. Slots of other experts get no row.
///
/// # Shapes
/// `indices` [N, K] of an index dtype, each in 0..`experts`.
///
/// # Errors
/// When an index is out of range; when the local experts are not among the experts, when `indices`
/// is sharded and not all experts are local, or when there are more than 2^31 - 1 slots.
pub fn expert_order(
    indices: &Tensor,
    experts: usize,
    first_expert: usize,
    held: usize,
) -> Result<ExpertOrder> {
    let mut call = EXPERT_ORDER.call(&[indices])?;
    let op = call.name();
    ensure!(
        first_expert.checked_add(held).is_some_and(|end| end <= experts),
        Invalid,
        "{op}: {held} experts from {first_expert} on exceed the {experts} experts"
    );
    ensure!(
        indices.sharding().is_none() || held == experts,
        Invalid,
        "{op}: {held} of {experts} experts have no sharding; pass Tensor::local of the indices"
    );
    ensure!(
        indices.elements() <= i32::MAX as usize,
        Invalid,
        "{op}: {:?} has more than 2^31 - 1 elements",
        indices.shape()
    );

    call.set_extent("g", held + 1);
    call.set_extent("c", indices.elements());
    let (mut offsets, mut order) = (call.output(0)?, call.output(1)?);
    let mut row_of_slot = call.output(2)?;
    let indices = contiguous(indices)?;
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let slots = indices.elements();
            let plan = launch::Sort::plan(indices.dtype(), slots, first_expert, held);
            let plan = gpu.planned(plan)?;
            let [cells, totals] = plan.workspaces();
            let (counts, totals) =
                (call.workspace(cells, DType::I32)?, call.workspace(totals, DType::I32)?);
            let results = [&offsets, &order, &row_of_slot];
            let workspaces = [&counts, &totals];
            launch::expert_order(gpu, &plan, &indices, experts, workspaces, results)
        }),
        false => call.compute(|| {
            for_index!(indices.dtype(), I => {
                let indices = Flat::<I>::new(&indices)?;
                kernels::check_indices(call.name(), &indices, experts, false)?;
                let (offsets, order) = (offsets.slice()?, order.slice()?);
                kernels::expert_order(&indices, first_expert, offsets, order, row_of_slot.slice()?);
                Ok(())
            })
        }),
    }?;
    let (offsets, order) = (offsets.finish(), order.finish());
    Ok(ExpertOrder { offsets, order, row_of_slot: row_of_slot.finish() })
}

/// Slots in places for the ranks that have their experts.
#[derive(Clone, Debug)]
pub struct ExpertPlaces {
    /// Rank g has the rows `offsets[g]..offsets[g + 1]`, of which the last ones may have no slot. The
    /// others are in expert order.
    pub order: ExpertOrder,
    /// \[C\] i32: the expert of each row, as one of those of its rank; `held` for a row without a slot.
    pub experts: Tensor,
}

/// Gives each rank `capacity` rows for the slots of its experts: rank g has the `held` experts from
/// `g held` on. So slots can be sent to ranks in tensors whose extents do not depend on data. Slots
/// beyond the capacity of a rank, the last ones in expert order, get no row.
///
/// # Shapes
/// `indices` [N, K] i32, of E experts; `sorted` is their [`expert_order`] for all experts. Returns C =
/// E / `held` `capacity` rows.
///
/// # Errors
/// When `held` is zero or does not divide the experts; when `indices` is sharded; for more than 2^31 - 1
/// rows. On the CPU also when a slot has no expert or no row. On a GPU such a slot gets no row;
/// [`expert_order`] has reported it.
pub fn expert_places(
    indices: &Tensor,
    sorted: &ExpertOrder,
    held: usize,
    capacity: usize,
) -> Result<ExpertPlaces> {
    let ExpertOrder { offsets, order, row_of_slot } = sorted;
    let mut call = EXPERT_PLACES.call(&[indices, offsets, order, row_of_slot])?;
    let op = call.name();
    let experts = offsets.elements().saturating_sub(1);
    ensure!(
        held > 0 && experts.is_multiple_of(held),
        Invalid,
        "{op}: {experts} experts cannot be divided into ranks of {held}"
    );
    let ranks = experts / held;
    let rows = capacity.saturating_mul(ranks);
    ensure!(rows <= i32::MAX as usize, Invalid, "{op}: {rows} rows are more than 2^31 - 1");

    call.set_extent("p", ranks + 1);
    call.set_extent("c", rows);
    let mut results = [call.output(0)?, call.output(1)?, call.output(2)?, call.output(3)?];
    let operands = [contiguous(indices)?, contiguous(order)?, contiguous(row_of_slot)?];
    let offsets = contiguous(offsets)?;
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let [indices, order, row_of_slot] = &operands;
            let operands = [indices, order, &offsets, row_of_slot];
            launch::expert_places(gpu, operands, [held, capacity], results.each_ref())
        }),
        false => call.compute(|| {
            let [indices, order, row_of_slot] = operands.each_ref().map(Flat::<i32>::new);
            let sorted = Sorted {
                indices: &indices?,
                order: &order?,
                offsets: &Flat::new(&offsets)?,
                row_of_slot: &row_of_slot?,
            };
            sorted.check(op)?;
            let [first, places, place_of_slot, experts] = &mut results;
            for (first, rank) in first.slice()?.iter_mut().zip(0i64..) {
                *first = rank * capacity as i64;
            }
            kernels::expert_places(
                &sorted,
                [held, capacity],
                places.slice()?,
                place_of_slot.slice()?,
                experts.slice()?,
            );
            Ok(())
        }),
    }?;
    let [offsets, order, row_of_slot, experts] = results.map(UninitTensor::finish);
    Ok(ExpertPlaces { order: ExpertOrder { offsets, order, row_of_slot }, experts })
}

/// The number of rows of each local expert, for load statistics.
///
/// # Shapes
/// `offsets` [G + 1] i64; returns \[G\] f32, exact up to 2^24.
///
/// # Errors
/// When `offsets` is empty.
pub fn expert_counts(offsets: &Tensor) -> Result<Tensor> {
    let mut call = EXPERT_COUNTS.call(&[offsets])?;
    let Some(held) = offsets.elements().checked_sub(1) else {
        bail!(
            Invalid,
            "{}: `offsets` is empty; it needs one element more than there are experts",
            call.name()
        );
    };

    call.set_extent("e", held);
    let mut counts = call.output(0)?;
    let offsets = contiguous(offsets)?;
    match call.device().is_gpu() {
        true => call.launch(|gpu| launch::expert_counts(gpu, &offsets, &counts)),
        false => call.compute(|| {
            let offsets = Flat::<i64>::new(&offsets)?;
            for (count, ends) in counts.slice::<f32>()?.iter_mut().zip(offsets.windows(2)) {
                *count = (ends[1] - ends[0]) as f32;
            }
            Ok(())
        }),
    }?;
    Ok(counts.finish())
}
