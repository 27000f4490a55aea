//! Sorting tokens by expert.

use crate::cpu::moe as kernels;
use crate::cpu::rows::Flat;
use crate::launch::moe as launch;
use crate::ops::contiguous;
use crate::{DType, Error, Result, Signature, Tensor, for_index};

pub(super) static EXPERT_ORDER: Signature = Signature::new(
    "expert_order",
    "indices: I[n! k!] -> offsets: i64[g], order: i32[c], place: i32[n k]",
    0,
);
pub(super) static EXPERT_COUNTS: Signature =
    Signature::new("expert_counts", "offsets: i64[g!] -> counts: f32[e]", 0);
/// Where each (token, choice) goes when they are sorted by expert. A *slot* is the
/// number token * K + choice.
#[derive(Clone, Debug)]
pub struct ExpertOrder {
    /// [held + 1] i64: held expert g owns the rows `offsets[g]..offsets[g + 1]`.
    pub offsets: Tensor,
    /// \[C\] i32: the slot that lies in each row below the last offset; -1 in the others.
    pub order: Tensor,
    /// [N, K] i32: the row of each slot; -1 where its expert is not held.
    pub place: Tensor,
}

/// Sorts the slots by expert, those of one expert in their own order. Of the `experts` experts,
/// `held` of them from `first_expert` on are held here; slots of others get no row.
///
/// # Shapes
/// `indices` [N, K] of an index dtype, each in 0..`experts`.
///
/// # Errors
/// [`Error::Signature`]; [`Error::IndexOutOfRange`]; [`Error::Argument`] when the held experts are
/// not among the experts, or there are more slots than an i32 counts.
pub fn expert_order(
    indices: &Tensor,
    experts: usize,
    first_expert: usize,
    held: usize,
) -> Result<ExpertOrder> {
    let mut call = EXPERT_ORDER.call(&[indices])?;
    let refuse = |problem| {
        Err(Error::Argument {
            op: EXPERT_ORDER.name(),
            problem,
        })
    };
    if first_expert
        .checked_add(held)
        .is_none_or(|end| end > experts)
    {
        return refuse(format!(
            "{held} experts from {first_expert} on are not among {experts} experts"
        ));
    }
    if indices.elements() > i32::MAX as usize {
        return refuse(format!(
            "{:?} has more elements than an i32 counts",
            indices.shape()
        ));
    }

    call.set_extent("g", held + 1);
    call.set_extent("c", indices.elements());
    let (mut offsets, mut order) = (call.output(0)?, call.output(1)?);
    let mut place = call.output(2)?;
    let indices = contiguous(indices)?;
    match call.device().is_gpu() {
        true => call.launch(|gpu| {
            let slots = indices.elements();
            let plan = launch::Sort::plan(indices.dtype(), slots, first_expert, held);
            let plan = gpu.planned(plan)?;
            let [cells, totals] = plan.workspaces();
            let (counts, totals) = (
                call.workspace(cells, DType::I32)?,
                call.workspace(totals, DType::I32)?,
            );
            let results = [&offsets, &order, &place];
            let workspaces = [&counts, &totals];
            launch::expert_order(gpu, &plan, &indices, experts, workspaces, results)
        }),
        false => call.compute(|| {
            for_index!(indices.dtype(), I => {
                let indices = Flat::<I>::new(&indices)?;
                kernels::check_indices(call.name(), &indices, experts, false)?;
                let (offsets, order) = (offsets.slice()?, order.slice()?);
                kernels::expert_order(&indices, first_expert, offsets, order, place.slice()?);
                Ok(())
            })
        }),
    }?;
    let (offsets, order) = (offsets.finish(), order.finish());
    Ok(ExpertOrder {
        offsets,
        order,
        place: place.finish(),
    })
}

/// How many rows each held expert has: statistics of the load, in the dtype that statistics are
/// kept in.
///
/// # Shapes
/// `offsets` [held + 1] i64; returns \[held\] f32, exact up to 2^24.
///
/// # Errors
/// [`Error::Signature`]; [`Error::Argument`] without any offset.
pub fn expert_counts(offsets: &Tensor) -> Result<Tensor> {
    let mut call = EXPERT_COUNTS.call(&[offsets])?;
    let Some(held) = offsets.elements().checked_sub(1) else {
        let problem = "there is one offset more than there are experts, so at least one".into();
        return Err(Error::Argument {
            op: call.name(),
            problem,
        });
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
