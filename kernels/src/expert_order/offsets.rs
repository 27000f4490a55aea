//! Prefix sums of counts, and the conversion of offsets to counts.

use super::{Blocks, THREADS};
use crate::assembler::{
    Arguments, Kernel, Launch, Ptx, S64, Target, Variant, block_exclusive_scan,
};

/// `starts[g, b] = sum of counts[g, ..b]`, in place, and `totals[g] = sum of counts[g, ..]`. One
/// CTA per expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertStarts;

impl ExpertStarts {
    /// The launch; `None` if there are no experts.
    pub fn launch(&self, held: u32) -> Option<Launch> {
        Launch::new([held, 1, 1], THREADS)
    }
}

impl Variant for ExpertStarts {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let (counts, totals) = (k.pointer("counts"), k.pointer("totals"));
        let blocks = k.u32_param("blocks");

        let (expert, block) = (k.cta(), k.thread());
        let cell = expert.mul_wide(blocks) + block.wide();
        let (cell, exists) = (counts.element_wide::<u32>(cell), block.lt(blocks));
        let [before, total] = block_exclusive_scan(k, cell.load_if::<u32>(exists));
        cell.store_if(exists, before);
        let of_expert = totals.element::<u32>(expert);
        of_expert.store_if(block.equals(0), total);
        k.finish()
    }

    fn entry(&self) -> String {
        "expert_starts".to_owned()
    }
}

/// Arguments of [`ExpertStarts`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct ExpertStartsArguments {
    /// \[G, B\] of u32: read as counts, written as starts.
    pub counts: u64,
    /// \[G\] of u32, written.
    pub totals: u64,
    /// The division of slots into blocks.
    pub blocks: Blocks,
}

impl ExpertStartsArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        arguments
            .push_pointer(self.counts)
            .push_pointer(self.totals)
            .push_u32(self.blocks.count());
        arguments
    }
}

/// `offsets[g] = sum of totals[..g]` for g = 0 to G. One CTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertOffsets;

impl ExpertOffsets {
    /// The launch. It is never `None`: without experts there is one offset.
    pub fn launch(&self) -> Option<Launch> {
        Launch::new([1, 1, 1], THREADS)
    }
}

impl Variant for ExpertOffsets {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let (totals, offsets) = (k.pointer("totals"), k.pointer("offsets"));
        let held = k.u32_param("held");

        // The sums fit in 32 bits, since there are fewer than 2^31 slots. Offsets are i64, as the
        // ops that use them expect.
        let sum = k.var(0u32);
        let first = offsets.element::<u64>(k.thread());
        first.store_if(k.thread().equals(0), k.constant(0u64));
        k.for_range(0u32, held, THREADS, |base| {
            let expert = base + k.thread();
            let exists = expert.lt(held);
            let total = totals.element::<u32>(expert).load_if::<u32>(exists);
            let [before, of_all] = block_exclusive_scan(k, total);
            let next = offsets.element::<u64>(expert).offset(8);
            next.store_if(exists, (*sum + before + total).wide());
            sum.add(of_all);
            k.barrier();
        });
        k.finish()
    }

    fn entry(&self) -> String {
        "expert_offsets".to_owned()
    }
}

/// Arguments of [`ExpertOffsets`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct ExpertOffsetsArguments {
    /// \[G\] of u32, read.
    pub totals: u64,
    /// \[G + 1\] of i64, written.
    pub offsets: u64,
    /// G.
    pub held: u32,
}

impl ExpertOffsetsArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        arguments
            .push_pointer(self.totals)
            .push_pointer(self.offsets)
            .push_u32(self.held);
        arguments
    }
}

/// `counts[g] = offsets[g + 1] - offsets[g]`, as f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertCounts;

impl ExpertCounts {
    /// The launch; `None` if there are no experts.
    pub fn launch(&self, held: u32) -> Option<Launch> {
        Launch::new([held.div_ceil(THREADS), 1, 1], THREADS)
    }
}

impl Variant for ExpertCounts {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let (offsets, counts) = (k.pointer("offsets"), k.pointer("counts"));
        let held = k.u32_param("held");

        let expert = k.cta() * THREADS + k.thread();
        let (start, exists) = (offsets.element::<i64>(expert), expert.lt(held));
        let (end, start) = (start.offset(8).load_if(exists), start.load_if(exists));
        let count: S64<'_> = end - start;
        let count = count.to_f64().to_f32(); // f64 represents all counts exactly
        counts.element::<f32>(expert).store_if(exists, count);
        k.finish()
    }

    fn entry(&self) -> String {
        "expert_counts".to_owned()
    }
}

/// Arguments of [`ExpertCounts`]; pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct ExpertCountsArguments {
    /// \[G + 1\] of i64, read.
    pub offsets: u64,
    /// \[G\] of f32, written.
    pub counts: u64,
    /// G.
    pub held: u32,
}

impl ExpertCountsArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        arguments
            .push_pointer(self.offsets)
            .push_pointer(self.counts)
            .push_u32(self.held);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_fill_the_parameter_space() {
        let starts = ExpertStartsArguments {
            counts: 1,
            totals: 2,
            blocks: Blocks::new(3),
        };
        let offsets = ExpertOffsetsArguments {
            totals: 1,
            offsets: 2,
            held: 3,
        };
        let counts = ExpertCountsArguments {
            offsets: 1,
            counts: 2,
            held: 3,
        };
        let laid_out = [
            (starts.arguments(), ExpertStarts.ptx()),
            (offsets.arguments(), ExpertOffsets.ptx()),
            (counts.arguments(), ExpertCounts.ptx()),
        ];
        for (arguments, ptx) in laid_out {
            assert_eq!(arguments.bytes().len(), ptx.parameter_bytes());
        }
    }
}
