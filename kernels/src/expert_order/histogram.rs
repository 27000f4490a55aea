//! The number of slots per block and expert.

use super::index::groups;
use super::{Blocks, IndexFormat, Parts, Share, THREADS, TILE};
use crate::assembler::{Arguments, Kernel, Launch, Ptx, Target, Variant};

/// `counts[g, b]` = number of slots of block b that chose expert g.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertHistogram {
    index: IndexFormat,
    parts: Parts,
}

impl ExpertHistogram {
    /// The kernel for `held` local experts.
    pub fn new(index: IndexFormat, held: u32) -> ExpertHistogram {
        ExpertHistogram {
            index,
            parts: Parts::new(held),
        }
    }

    /// The launch, never `None`.
    pub fn launch(&self, blocks: Blocks, held: u32) -> Option<Launch> {
        blocks.launch(self.parts.count(held))
    }
}

impl Variant for ExpertHistogram {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let (indices, counts) = (k.pointer("indices"), k.pointer("counts"));
        let extents = ["slots", "slots_per_block", "held"].map(|name| k.u32_param(name));
        let first = k.u32_param("first_expert");

        // The last counter is for slots whose expert is not in this part.
        let counters = k.shared::<u32>(self.parts.experts + 1);
        let share = Share::new(k, self.parts, extents);
        let none = k.constant(0u32);
        share.for_experts(|expert| counters.element::<u32>(expert).store(none));
        counters.element::<u32>(share.experts).store(none);
        k.barrier();

        let one = k.constant(1u32);
        k.for_range(share.first, share.end, TILE, |tile| {
            let slots = share.slots(tile);
            let loaded = self.index.load(indices, &slots);
            for group in groups(&loaded, first, &slots) {
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

/// Arguments of [`ExpertHistogram`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct ExpertHistogramArguments {
    /// \[S\], read.
    pub indices: u64,
    /// \[G, B\] of u32, written.
    pub counts: u64,
    /// The division of slots into blocks.
    pub blocks: Blocks,
    /// G.
    pub held: u32,
    /// The first local expert.
    pub first_expert: u32,
}

impl ExpertHistogramArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        arguments
            .push_pointer(self.indices)
            .push_pointer(self.counts);
        arguments
            .push_u32(self.blocks.slots())
            .push_u32(self.blocks.each())
            .push_u32(self.held)
            .push_u32(self.first_expert);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_fill_the_parameter_space() {
        let arguments = ExpertHistogramArguments {
            indices: 1,
            counts: 2,
            blocks: Blocks::new(3),
            held: 4,
            first_expert: 5,
        };
        let variant = ExpertHistogram::new(IndexFormat::I64, 8);
        let bytes = arguments.arguments();
        assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
    }
}
