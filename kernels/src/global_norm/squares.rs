//! Sums of squares per tensor, and the square root of their total.

use crate::assembler::{
    F64, In, Kernel, Launch, Out, Ptx, Target, Variable, Variant, block_reduce,
};
use crate::dtype::Dtype;
use crate::params;
use crate::row::{Chunked, IN_FLIGHT, PART_THREADS, Part, PartTile, chunk_of_rows};

/// Threads of the CTA that adds partial sums.
const ADDING_THREADS: u32 = 512;

/// The number of partial sums of a tensor with `elements` elements; 0 if it is empty.
pub fn partial_count(elements: u64) -> u64 {
    elements.div_ceil(chunk_of_rows(1, elements))
}

/// partial_p = the sum of x^2 over the elements of chunk p.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumSquares {
    tile: PartTile,
}

impl SumSquares {
    /// The kernel for `elements` elements. `aligned`: whether x begins at a multiple of 16 bytes.
    pub fn new(dtype: Dtype, elements: u64, aligned: bool) -> SumSquares {
        SumSquares { tile: PartTile::new(dtype, 1, elements, aligned) }
    }

    /// The launch; `None` if there are no elements.
    pub fn launch(&self, elements: u64) -> Option<Launch> {
        self.tile.launch(1, partial_count(elements))
    }
}

params! {
    /// Arguments of [`SumSquares`].
    pub struct SumSquaresArguments => Call {
        /// \[N\].
        x: In,
        /// [`partial_count`] f64.
        partials: Out,
        /// N.
        elements: u64,
        /// Elements per chunk, [`chunk_of_rows`].
        chunk: u64,
    }
}

impl SumSquaresArguments {
    /// The arguments for `elements` elements.
    pub fn new(x: In, partials: Out, elements: u64) -> SumSquaresArguments {
        SumSquaresArguments { x, partials, elements, chunk: chunk_of_rows(1, elements) }
    }
}

impl Variant for SumSquares {
    type Arguments = SumSquaresArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, PART_THREADS).reserve_load_registers();
        let Call { x, partials, elements, chunk } = self.parameters(k);
        let of = Chunked { rows: k.constant(1u64), features: elements, chunk };

        let part = Part::new(k, self.tile, x, of);
        let sums: Vec<Variable<'_, f64>> = (0..IN_FLIGHT).map(|_| k.var(0.0_f64)).collect();
        part.for_each(|access, loaded| {
            for value in loaded.values() {
                let value = value.to_f64();
                sums[access].set(value.fma(value, *sums[access]));
            }
        });
        let others = sums[1..].iter();
        let sum: F64<'_> = others.fold(*sums[0], |all, other| all + **other);
        let sum = part.fold(sum, |a, b| a + b);
        let to = partials.element::<f64>(k.cta_y());
        to.store_if(part.leads, sum);
        k.finish()
    }

    fn entry(&self) -> String {
        format!("sum_squares_{}", self.tile.name())
    }
}

/// norm = sqrt(the sum of all partial sums), as an f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GlobalNorm;

impl GlobalNorm {
    /// The launch, which is never `None`. Without elements the norm is 0.
    pub fn launch(&self) -> Option<Launch> {
        Launch::new([1, 1, 1], ADDING_THREADS)
    }
}

params! {
    /// Arguments of [`GlobalNorm`].
    pub struct GlobalNormArguments => GlobalNormCall {
        /// \[P\] of f64.
        partials: In,
        /// One f32.
        norm: Out,
        /// P.
        count: u64,
    }
}

impl Variant for GlobalNorm {
    type Arguments = GlobalNormArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, ADDING_THREADS);
        let GlobalNormCall { partials, norm, count } = self.parameters(k);

        let sum = k.var(0.0_f64);
        let step = u64::from(ADDING_THREADS * IN_FLIGHT);
        k.for_range(k.thread().wide(), count, step, |at| {
            let loads = (0..IN_FLIGHT).map(|i| {
                let at = at + u64::from(i * ADDING_THREADS);
                partials.element_wide::<f64>(at).load_if(at.lt(count))
            });
            for partial in loads.collect::<Vec<F64<'_>>>() {
                sum.add(partial);
            }
        });
        let sum = block_reduce(k, sum.get(), |a, b| a + b);
        norm.store_if(k.thread().equals(0), sum.sqrt().to_f32());
        k.finish()
    }

    fn entry(&self) -> String {
        "global_norm".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_tensors_have_no_partial_sums() {
        assert_eq!((partial_count(0), partial_count(1)), (0, 1));
        assert_eq!(partial_count(1 << 40), 1024);
        assert_eq!(SumSquares::new(Dtype::F32, 0, true).launch(0), None);
    }
}
