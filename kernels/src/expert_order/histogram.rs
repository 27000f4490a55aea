//! The number of slots per block and expert.

use super::index::groups;
use super::{Blocks, IndexFormat, Parts, Share, THREADS, TILE};
use crate::assembler::{In, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::params;

/// `counts[g, b]` = number of slots of block b that chose expert g.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertHistogram {
    index: IndexFormat,
    parts: Parts,
}

impl ExpertHistogram {
    /// The kernel for `held` local experts.
    pub fn new(index: IndexFormat, held: u32) -> ExpertHistogram {
        ExpertHistogram { index, parts: Parts::new(held) }
    }

    /// The launch, never `None`.
    pub fn launch(&self, blocks: Blocks, held: u32) -> Option<Launch> {
        blocks.launch(self.parts.count(held))
    }
}

params! {
    /// Arguments of [`ExpertHistogram`].
    pub struct ExpertHistogramArguments => Call {
        /// \[S\].
        indices: In,
        /// \[G, B\] of u32.
        counts: Out,
        /// S.
        slots: u32,
        /// Slots per block, from [`Blocks::each`].
        slots_per_block: u32,
        /// G.
        held: u32,
        /// The first local expert.
        first_expert: u32,
    }
}

impl Variant for ExpertHistogram {
    type Arguments = ExpertHistogramArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { indices, counts, slots, slots_per_block, held, first_expert } =
            self.parameters(k);

        // The last counter is for slots whose expert is not in this part.
        let counters = k.shared::<u32>(self.parts.experts + 1);
        let share = Share::new(k, self.parts, [slots, slots_per_block, held]);
        let none = k.constant(0u32);
        share.for_experts(|expert| counters.element::<u32>(expert).store(none));
        counters.element::<u32>(share.experts).store(none);
        k.barrier();

        let one = k.constant(1u32);
        k.for_range(share.first, share.end, TILE, |tile| {
            let slots = share.slots(tile);
            let loaded = self.index.load(indices, &slots);
            for group in groups(&loaded, first_expert, &slots) {
                let expert = share.of_part(group);
                counters.element::<u32>(expert).atomic_add(one);
            }
        });
        k.barrier();

        share.for_experts(|expert| {
            let count = counters.element::<u32>(expert).load::<u32>();
            counts.element_wide::<u32>(share.cell(expert)).store(count);
        });
        k.finish()
    }

    fn entry(&self) -> String {
        let (index, experts) = (self.index.name(), self.parts.experts);
        format!("expert_histogram_{index}_e{experts}")
    }
}
