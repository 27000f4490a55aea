//! Prefix sums of counts, and the conversion of offsets to counts.

use super::THREADS;
use crate::assembler::{In, Kernel, Launch, Out, Ptx, S64, Target, Variant, block_exclusive_scan};
use crate::params;

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

params! {
    /// Arguments of [`ExpertStarts`].
    pub struct ExpertStartsArguments => Call {
        /// \[G, B\] of u32: read as counts, written as starts.
        counts: Out,
        /// \[G\] of u32.
        totals: Out,
        /// B, from [`Blocks::count`](super::Blocks::count).
        blocks: u32,
    }
}

impl Variant for ExpertStarts {
    type Arguments = ExpertStartsArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { counts, totals, blocks } = self.parameters(k);

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

/// `offsets[g] = sum of totals[..g]` for g = 0 to G. One CTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertOffsets;

impl ExpertOffsets {
    /// The launch. It is never `None`: without experts there is one offset.
    pub fn launch(&self) -> Option<Launch> {
        Launch::new([1, 1, 1], THREADS)
    }
}

params! {
    /// Arguments of [`ExpertOffsets`].
    pub struct ExpertOffsetsArguments => ExpertOffsetsCall {
        /// \[G\] of u32.
        totals: In,
        /// \[G + 1\] of i64.
        offsets: Out,
        /// G.
        held: u32,
    }
}

impl Variant for ExpertOffsets {
    type Arguments = ExpertOffsetsArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let ExpertOffsetsCall { totals, offsets, held } = self.parameters(k);

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

/// `counts[g] = offsets[g + 1] - offsets[g]`, as f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertCounts;

impl ExpertCounts {
    /// The launch; `None` if there are no experts.
    pub fn launch(&self, held: u32) -> Option<Launch> {
        Launch::new([held.div_ceil(THREADS), 1, 1], THREADS)
    }
}

params! {
    /// Arguments of [`ExpertCounts`].
    pub struct ExpertCountsArguments => ExpertCountsCall {
        /// \[G + 1\] of i64.
        offsets: In,
        /// \[G\] of f32.
        counts: Out,
        /// G.
        held: u32,
    }
}

impl Variant for ExpertCounts {
    type Arguments = ExpertCountsArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let ExpertCountsCall { offsets, counts, held } = self.parameters(k);

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
