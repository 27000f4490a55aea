//! The reduction of split-K parts.

use super::Output;
use crate::assembler::{F32, GlobalAddress, In, Kernel, Launch, Out, Pred, Ptx, Target, Variant};
use crate::params;

/// Threads per CTA.
const THREADS: u32 = 256;

/// Parts whose loads are in flight together.
const PARTS_IN_FLIGHT: u32 = 4;

/// C = sum of the parts, or C += sum of the parts. The sum is computed in f32 from the first part
/// to the last. Each part is read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SplitKReduce {
    /// How the sums are stored.
    pub output: Output,
    /// Whether each thread moves four elements. Requires that their number is a multiple of 4 and
    /// that C and the parts are 16-byte aligned.
    pub vectors: bool,
}

impl SplitKReduce {
    /// The launch for `elements` elements of C; `None` if there are none.
    pub fn launch(&self, elements: u64) -> Option<Launch> {
        let ctas = elements.div_ceil(u64::from(THREADS * self.width()));
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], THREADS)
    }

    /// Elements per thread.
    fn width(&self) -> u32 {
        if self.vectors { 4 } else { 1 }
    }
}

params! {
    /// Arguments of [`SplitKReduce`].
    pub struct SplitKReduceArguments => Call {
        /// \[parts, elements\] of f32.
        parts: In,
        /// \[elements\]; also read if the sum is added to it.
        c: Out,
        /// Elements of C.
        elements: u64,
        /// Number of parts.
        count: u32,
    }
}

impl Variant for SplitKReduce {
    type Arguments = SplitKReduceArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { parts, c, elements, count } = self.parameters(k);

        let first = k.cta().mul_wide(THREADS * self.width());
        let first = first + (k.thread() * self.width()).wide();
        let exists = first.lt(elements);
        let to = c.byte_add(first * u64::from(self.output.size()));
        let before = match self.output {
            Output::AddF32 => Some(load(self.vectors, to, exists)),
            Output::Bf16 | Output::F32 => None,
        };

        let sums: Vec<_> = (0..self.width()).map(|_| k.var(0.0_f32)).collect();
        let part_bytes = elements * 4;
        let from = parts.byte_add(first * 4).to_variable();
        k.for_range(0u32, count, PARTS_IN_FLIGHT, |part| {
            let mut address = from.get();
            let loaded: Vec<Vec<F32<'_>>> = (0..PARTS_IN_FLIGHT)
                .map(|i| {
                    let exists = exists & (part + i).lt(count);
                    let values = load(self.vectors, address, exists);
                    address = address.byte_add(part_bytes);
                    values
                })
                .collect();
            for values in loaded {
                for (sum, value) in sums.iter().zip(values) {
                    sum.add(value);
                }
            }
            from.advance(part_bytes * u64::from(PARTS_IN_FLIGHT));
        });

        let sums = sums.iter().map(|sum| sum.get());
        let totals: Vec<F32<'_>> = match before {
            Some(before) => sums.zip(before).map(|(sum, before)| before + sum).collect(),
            None => sums.collect(),
        };
        self.store(to, exists, &totals);
        k.finish()
    }

    fn entry(&self) -> String {
        let form = if self.vectors { "vectors" } else { "single" };
        format!("gemm_split_k_reduce_{}_{form}", self.output.name())
    }
}

impl SplitKReduce {
    #[track_caller]
    fn store<'k>(&self, to: GlobalAddress<'k>, exists: Pred<'k>, totals: &[F32<'k>]) {
        match (self.output, totals) {
            (Output::Bf16, [a, b, c, d]) => {
                to.store_vector_if(exists, [a.pack(*b), c.pack(*d)]);
            }
            (_, [a, b, c, d]) => to.store_vector_if(exists, [*a, *b, *c, *d]),
            (output, totals) => {
                for total in totals {
                    match output {
                        Output::Bf16 => to.store_if(exists, total.to_bf16()),
                        Output::F32 | Output::AddF32 => to.store_if(exists, *total),
                    }
                }
            }
        }
    }
}

/// Loads four f32, or one.
#[track_caller]
fn load<'k>(vectors: bool, from: GlobalAddress<'k>, exists: Pred<'k>) -> Vec<F32<'k>> {
    match vectors {
        true => from.load_vector_if::<f32, 4>(exists).to_vec(),
        false => vec![from.load_if(exists)],
    }
}
