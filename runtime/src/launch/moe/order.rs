//! Launches that sort tokens by expert.

use meshgrad_kernels::expert_order::{
    Blocks, ExpertCounts, ExpertCountsArguments, ExpertHistogram, ExpertHistogramArguments,
    ExpertOffsets, ExpertOffsetsArguments, ExpertPlaces, ExpertPlacesArguments, ExpertScatter,
    ExpertScatterArguments, ExpertStarts, ExpertStartsArguments, IndexFormat,
};

use super::FAMILY;
use crate::launch::{Launcher, Plan, PlanError, extent};
use crate::{DType, Result, Tensor, UninitTensor};

/// The plan of sorting slots by expert.
#[derive(Debug)]
pub(crate) struct Sort {
    histogram: Plan<ExpertHistogram>,
    starts: Plan<ExpertStarts>,
    offsets: Plan<ExpertOffsets>,
    scatter: Plan<ExpertScatter>,
    blocks: Blocks,
    first_expert: u32,
    held: u32,
}

impl Sort {
    /// Sorts `slots` expert indices of `dtype`. The `held` experts from `first_expert` on are
    /// local.
    pub(crate) fn plan(
        dtype: DType,
        slots: usize,
        first_expert: usize,
        held: usize,
    ) -> Result<Sort, PlanError> {
        let index = match dtype {
            DType::I32 => IndexFormat::I32,
            DType::U32 => IndexFormat::U32,
            DType::I64 => IndexFormat::I64,
            other => return Err(PlanError::DType(other)),
        };
        let most = i32::MAX as u32;
        let blocks = Blocks::new(extent(FAMILY, "slots", slots, most)?);
        extent(FAMILY, "experts", first_expert.saturating_add(held), most)?;
        let (first_expert, held) = (first_expert as u32, held as u32);

        let (histogram, scatter) =
            (ExpertHistogram::new(index, held), ExpertScatter::new(index, held));
        Ok(Sort {
            histogram: Plan::new(histogram.launch(blocks, held), histogram),
            starts: Plan::new(ExpertStarts.launch(held), ExpertStarts),
            offsets: Plan::new(ExpertOffsets.launch(), ExpertOffsets),
            scatter: Plan::new(scatter.launch(blocks, held), scatter),
            blocks,
            first_expert,
            held,
        })
    }

    /// The elements of its two workspaces: counts per block and expert, and totals per expert.
    pub(crate) fn workspaces(&self) -> [usize; 2] {
        let held = self.held as usize;
        [held * self.blocks.count() as usize, held]
    }
}

/// Writes the offsets, the order, and the row of each slot. `counts` and `totals` are the plan's
/// workspaces.
pub(crate) fn expert_order(
    gpu: &Launcher<'_>,
    plan: &Sort,
    indices: &Tensor,
    experts: usize,
    [counts, totals]: [&UninitTensor; 2],
    [offsets, order, row_of_slot]: [&UninitTensor; 3],
) -> Result<()> {
    let &Sort { blocks, first_expert, held, .. } = plan;
    let (indices, counts, totals) =
        (gpu.ptr(indices)?, gpu.uninit_ptr(counts)?, gpu.uninit_ptr(totals)?);
    let offsets = gpu.uninit_ptr(offsets)?;

    let arguments = ExpertHistogramArguments {
        indices,
        counts,
        slots: blocks.slots(),
        slots_per_block: blocks.each(),
        held,
        first_expert,
    };
    gpu.run(&plan.histogram, &arguments)?;
    let arguments = ExpertStartsArguments { counts, totals, blocks: blocks.count() };
    gpu.run(&plan.starts, &arguments)?;
    let arguments = ExpertOffsetsArguments { totals: totals.written(), offsets, held };
    gpu.run(&plan.offsets, &arguments)?;
    let arguments = ExpertScatterArguments {
        indices,
        starts: counts.written(),
        offsets: offsets.written(),
        order: gpu.uninit_ptr(order)?,
        row_of_slot: gpu.uninit_ptr(row_of_slot)?,
        slots: blocks.slots(),
        slots_per_block: blocks.each(),
        held,
        first_expert,
        experts: experts as u64,
        faults: gpu.fault_site(experts),
    };
    gpu.run(&plan.scatter, &arguments)
}

/// The plan of giving ranks places.
#[derive(Debug)]
struct Places {
    kernel: Plan<ExpertPlaces>,
    ranks: u32,
    held: u32,
    capacity: u32,
    slots: u32,
}

impl Places {
    /// Gives each of `ranks` `capacity` places, for the slots of its `held` experts.
    fn plan(slots: usize, ranks: usize, [held, capacity]: [usize; 2]) -> Result<Places, PlanError> {
        let fits = |what, value| extent(FAMILY, what, value, i32::MAX as u32);
        fits("experts", ranks.saturating_mul(held))?;
        fits("places", ranks.saturating_mul(capacity))?;
        let (slots, ranks) = (fits("slots", slots)?, fits("ranks", ranks)?);
        let (held, capacity) = (fits("experts of a rank", held)?, fits("capacity", capacity)?);
        let launch = ExpertPlaces.launch([ranks, capacity], slots);
        Ok(Places { kernel: Plan::new(launch, ExpertPlaces), ranks, held, capacity, slots })
    }
}

/// The first place of each rank, the slot of each place, the place of each slot, and the expert of each
/// place.
pub(crate) fn expert_places(
    gpu: &Launcher<'_>,
    [indices, order, offsets, row_of_slot]: [&Tensor; 4],
    [held, capacity]: [usize; 2],
    [first, places, place_of_slot, experts]: [&UninitTensor; 4],
) -> Result<()> {
    let ranks = first.shape().elements() - 1;
    let plan = gpu.planned(Places::plan(indices.elements(), ranks, [held, capacity]))?;
    let arguments = ExpertPlacesArguments {
        indices: gpu.ptr(indices)?,
        order: gpu.ptr(order)?,
        offsets: gpu.ptr(offsets)?,
        row_of_slot: gpu.ptr(row_of_slot)?,
        first: gpu.uninit_ptr(first)?,
        slot_of_place: gpu.uninit_ptr(places)?,
        place_of_slot: gpu.uninit_ptr(place_of_slot)?,
        expert_of_place: gpu.uninit_ptr(experts)?,
        ranks: plan.ranks,
        held: plan.held,
        capacity: plan.capacity,
        slots: plan.slots,
    };
    gpu.run(&plan.kernel, &arguments)
}

/// The number of rows per expert.
pub(crate) fn expert_counts(
    gpu: &Launcher<'_>,
    offsets: &Tensor,
    counts: &UninitTensor,
) -> Result<()> {
    let held = extent(FAMILY, "experts", counts.shape().elements(), i32::MAX as u32);
    let held = gpu.planned(held)?;
    let plan = Plan::new(ExpertCounts.launch(held), ExpertCounts);
    let arguments =
        ExpertCountsArguments { offsets: gpu.ptr(offsets)?, counts: gpu.uninit_ptr(counts)?, held };
    gpu.run(&plan, &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grids and workspaces depend on the extents only. Without slots and experts, the kernels that
    /// write the first offset and the rows without a slot are launched anyway.
    #[test]
    fn plans_depend_on_extents_only() {
        let plan = Sort::plan(DType::I64, 1 << 20, 0, 128).unwrap();
        assert_eq!(plan.workspaces(), [128 * 256, 128]);
        assert_eq!(plan.scatter.launch.unwrap().grid, [256, 1, 1]);

        let none = Sort::plan(DType::U32, 0, 0, 0).unwrap();
        assert_eq!((none.workspaces(), none.starts.launch), ([0, 0], None));
        assert!(none.offsets.launch.is_some() && none.scatter.launch.is_some());

        let refused = Sort::plan(DType::F32, 4, 0, 2).err();
        assert_eq!(refused, Some(PlanError::DType(DType::F32)));
        assert!(Sort::plan(DType::I32, 4, 1 << 40, 2).is_err());
    }

    /// There is a thread for each place, slot and offset, also without places.
    #[test]
    fn places_fit_in_32_bits() {
        let ctas = |slots, ranks, held_and_capacity| {
            let plan = Places::plan(slots, ranks, held_and_capacity).unwrap();
            plan.kernel.launch.unwrap().grid[0]
        };
        assert_eq!(ctas(0, 0, [1, 0]), 1);
        assert_eq!(ctas(1000, 8, [4, 100]), 4);
        assert_eq!(ctas(1000, 8, [4, 1000]), 32);
        assert_eq!(ctas(1, 512, [1, 0]), 3);
        assert!(Places::plan(1, 1 << 16, [1 << 16, 1]).is_err());
        assert!(Places::plan(1, 1 << 16, [1, 1 << 16]).is_err());
    }
}
