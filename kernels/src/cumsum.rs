//! Cumulative sums along rows.
//!
//! One CTA processes a row in blocks of `TILE` elements, and carries the sum from block to block.
//! Sums are f32 in an order that depends only on the row's length, and each result is rounded once.

use crate::assembler::{F32, In, Kernel, Launch, Out, Ptx, Target, Variant, block_prefix_sum};
use crate::dtype::Dtype;
use crate::params;
use crate::row::element;

const THREADS: u32 = 256;

/// Consecutive elements per thread and block.
const PER_THREAD: u32 = 4;

const TILE: u32 = THREADS * PER_THREAD;

/// y_rd = sum over e <= d of x_re, or over e >= d in reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cumsum {
    dtype: Dtype,
    reverse: bool,
}

impl Cumsum {
    /// The kernel; `reverse` sums from the end of the row.
    pub fn new(dtype: Dtype, reverse: bool) -> Cumsum {
        Cumsum { dtype, reverse }
    }

    /// The launch over rows; `None` if there are no rows.
    pub fn launch(&self, rows: u64) -> Option<Launch> {
        let ctas = u32::try_from(rows).unwrap_or(u32::MAX);
        Launch::new([ctas, 1, 1], THREADS)
    }
}

params! {
    /// Arguments of [`Cumsum`].
    pub struct CumsumArguments => Call {
        /// \[R, D\].
        x: In,
        /// \[R, D\].
        y: Out,
        /// D.
        features: u32,
    }
}

impl Variant for Cumsum {
    type Arguments = CumsumArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { x, y, features } = self.parameters(k);
        let row = k.cta().mul_wide(features) * u64::from(self.dtype.size());
        let (x, y) = (x.byte_add(row), y.byte_add(row));

        let carried = k.var(0.0_f32);
        k.for_range(0u32, features, TILE, |block| {
            let first = block + k.thread() * PER_THREAD;
            let places: Vec<_> = (0..PER_THREAD)
                .map(|i| {
                    let at = first + i;
                    let index = if self.reverse { features - 1 - at } else { at };
                    (at.lt(features), index)
                })
                .collect();
            let load = |(exists, index)| self.dtype.load_if(exists, element(self.dtype, x, index));
            let values: Vec<F32<'_>> = places.iter().copied().map(load).collect();

            let mut own = vec![values[0]];
            for value in &values[1..] {
                own.push(own[own.len() - 1] + *value);
            }
            let [before, total] = block_prefix_sum(k, own[own.len() - 1]);
            let before = before + carried.get();
            for ((exists, index), sum) in places.into_iter().zip(own) {
                let to = element(self.dtype, y, index);
                self.dtype.store_if(exists, to, before + sum);
            }
            carried.set(carried.get() + total);
            k.barrier();
        });
        k.finish()
    }

    fn entry(&self) -> String {
        let reverse = if self.reverse { "_reverse" } else { "" };
        format!("cumsum_{}{reverse}", self.dtype.name())
    }
}
