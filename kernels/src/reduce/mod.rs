//! Sums, maxima and minima over some dims of a tensor.
//!
//! A pass treats its operand as row-major [O, R, I] and reduces the middle extent: by rows if I is
//! 1, otherwise by columns. A reduction over dims that are not adjacent takes several passes. So
//! does a long one: if one CTA per result would leave most of the GPU idle, a first pass reduces
//! chunks of R, and a second pass reduces the results of the first:
//!
//! ```text
//! [O, R, I] -> [O, P, I] -> [O, I]
//! ```
//!
//! Values are merged in f32, intermediate results are f32, and the last pass rounds once. The order
//! of merging depends on the extents alone.

mod columns;
mod rows;

use crate::assembler::{In, Kernel, Launch, Out, Ptx, Target, U64, Variant};
use crate::columns::{ColumnTile, THREADS};
use crate::dtype::Dtype;
use crate::params;
use crate::reduce_op::ReduceOp;
use crate::row::{ENOUGH_CTAS, MAX_CHUNK, PartTile, chunk_of_rows};

/// Minimum rows per chunk of a column pass.
const MIN_COLUMN_CHUNK: u64 = 64;

/// Maximum results of a column pass.
const MAX_RESULTS: u64 = 1 << 31;

/// Maximum threads per row of a column pass.
const MAX_ACROSS: u64 = 64;

/// With at most this many rows, all threads of a CTA can have different columns.
const FEW_ROWS: u64 = 4;

/// The extents of a pass's operand, a row-major tensor \[outer, reduced, inner\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Number of \[reduced, inner\] matrices.
    pub outer: u64,
    /// Elements that are merged into one.
    pub reduced: u64,
    /// Results per matrix, which are contiguous.
    pub inner: u64,
}

impl Extents {
    /// Elements of the reduced extent that one CTA merges; the last chunk may have fewer.
    pub fn chunk(&self) -> u64 {
        if self.inner == 1 {
            return chunk_of_rows(self.outer, self.reduced);
        }
        let results = self.outer.saturating_mul(self.inner).max(1);
        let ctas = results.div_ceil(8 * MAX_ACROSS);
        let most = self.reduced.div_ceil(MIN_COLUMN_CHUNK).max(1);
        let chunks = (ENOUGH_CTAS / ctas).clamp(1, most);
        self.reduced.div_ceil(chunks).max(1)
    }

    /// Partial results per final result; 1 if no second pass is needed.
    pub fn chunks(&self) -> u64 {
        self.reduced.div_ceil(self.chunk()).max(1)
    }

    /// The extent that is too large for a kernel, if there is one: its name, value and limit.
    pub fn too_large(&self) -> Option<(&'static str, u64, u64)> {
        let results = self.outer.saturating_mul(self.inner);
        match self.inner {
            1 => (self.chunk() > MAX_CHUNK).then_some(("reduced", self.reduced, MAX_CHUNK)),
            _ => (results > MAX_RESULTS).then_some(("results", results, MAX_RESULTS)),
        }
    }
}

/// One pass: y = scale * (x merged over each chunk of the reduced extent).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reduce {
    op: ReduceOp,
    from: Dtype,
    to: Dtype,
    form: Form,
}

/// Which elements a thread processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    /// A few lanes, or a whole CTA, share a row.
    Rows(PartTile),
    /// Each thread has one or more adjacent columns.
    Columns(ColumnTile),
}

impl Reduce {
    /// The kernel that merges `from` into `to`. `aligned`: whether x and y begin at multiples of 16
    /// bytes.
    pub fn new(op: ReduceOp, from: Dtype, to: Dtype, extents: Extents, aligned: bool) -> Reduce {
        let vector = u64::from(from.per_vector());
        let form = match extents.inner {
            1 => Form::Rows(PartTile::new(from, extents.outer, extents.reduced, aligned)),
            inner => {
                let whole = aligned && inner.is_multiple_of(vector);
                let width = if whole { vector } else { 1 };
                let most = match extents.reduced {
                    ..=FEW_ROWS => THREADS.into(),
                    _ => MAX_ACROSS,
                };
                let results = extents.outer.saturating_mul(inner / width);
                Form::Columns(ColumnTile {
                    across: results.clamp(1, most).next_power_of_two() as u32,
                    width: width as u32,
                })
            }
        };
        Reduce { op, from, to, form }
    }

    /// The launch; `None` if there are no results.
    pub fn launch(&self, extents: Extents) -> Option<Launch> {
        match self.form {
            Form::Rows(tile) => tile.launch(extents.outer, extents.chunks()),
            Form::Columns(tile) => {
                let results = extents.outer.saturating_mul(extents.inner);
                let ctas = results.div_ceil(tile.columns().into());
                let ctas = u32::try_from(ctas).unwrap_or(u32::MAX);
                Launch::new([ctas, extents.chunks() as u32, 1], THREADS)
            }
        }
    }
}

impl<'k> Call<'k> {
    /// Start of this CTA's chunk of the reduced extent.
    #[track_caller]
    fn first(&self, k: &'k Kernel) -> U64<'k> {
        k.cta_y().wide() * self.chunk
    }
}

params! {
    /// Arguments of [`Reduce`].
    pub struct ReduceArguments => Call {
        /// \[O, R, I\].
        x: In,
        /// \[O, P, I\], with P = [`Extents::chunks`].
        y: Out,
        /// O.
        outer: u64,
        /// R.
        reduced: u64,
        /// I.
        inner: u64,
        /// The part of R that is merged into one result, [`Extents::chunk`].
        chunk: u64,
        /// P.
        chunks: u32,
        /// Factor of the results, applied before rounding.
        scale: f32,
    }
}

impl ReduceArguments {
    /// The arguments for these extents.
    pub fn new(x: In, y: Out, extents: Extents, scale: f32) -> ReduceArguments {
        ReduceArguments {
            x,
            y,
            outer: extents.outer,
            reduced: extents.reduced,
            inner: extents.inner,
            chunk: extents.chunk(),
            chunks: extents.chunks() as u32,
            scale,
        }
    }
}

impl Variant for Reduce {
    type Arguments = ReduceArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS).reserve_load_registers();
        match self.form {
            Form::Rows(tile) => rows::write(k, self, tile, &self.parameters(k)),
            Form::Columns(tile) => columns::write(k, self, tile, &self.parameters(k)),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        let (op, from, to) = (self.op.name(), self.from.name(), self.to.name());
        match self.form {
            Form::Rows(tile) => format!("reduce_{op}_rows_{}_to_{to}", tile.name()),
            Form::Columns(ColumnTile { across, width }) => {
                format!("reduce_{op}_columns_{from}_w{width}_t{across}_to_{to}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(outer: u64, reduced: u64, inner: u64) -> Extents {
        Extents { outer, reduced, inner }
    }

    /// Chunks cover the reduced extent, are whole vectors, and fit in the grid. Every further pass
    /// has fewer chunks.
    #[test]
    fn the_number_of_chunks_is_limited() {
        for reduced in [0, 1, 7, 64, 100, 8191, 8193, 151_936, 1 << 33] {
            for (outer, inner) in [(1, 1), (7, 1), (1, 4096), (100_000, 1), (3, 5), (0, 2)] {
                let extents = extents(outer, reduced, inner);
                let (chunk, chunks) = (extents.chunk(), extents.chunks());
                assert!((1..=ENOUGH_CTAS).contains(&chunks), "{extents:?}");
                assert!(chunk * chunks >= reduced);
                assert!(chunks == 1 || inner > 1 || chunk.is_multiple_of(8));
                let rest = Extents { reduced: chunks, ..extents };
                assert!(rest.chunks() < chunks || chunks == 1, "{extents:?}");
            }
        }
        // Many results keep the GPU busy without chunks.
        assert_eq!(extents(4096, 8192 * 100, 1).chunks(), 1);
        assert_eq!(extents(1, 8192 * 100, 1).chunks(), 100);
    }

    #[test]
    fn form_depends_on_extents_and_alignment() {
        let form = |[outer, reduced, inner]: [u64; 3], aligned| {
            let extents = extents(outer, reduced, inner);
            let entry =
                Reduce::new(ReduceOp::Add, Dtype::Bf16, Dtype::F32, extents, aligned).entry();
            entry.replace("reduce_sum_", "").replace("_to_f32", "")
        };
        assert_eq!(form([10, 8, 1], true), "rows_bf16_w8_t1");
        assert_eq!(form([10, 8, 1], false), "rows_bf16_w1_t8");
        assert_eq!(form([10, 4096, 1], true), "rows_bf16_w8_t256");
        assert_eq!(form([10, 4097, 1], true), "rows_bf16_w1_t256");
        assert_eq!(form([1, 4097, 1], true), "rows_bf16_w8_t256");
        assert_eq!(form([1, 0, 1], true), "rows_bf16_w8_t1");
        assert_eq!(form([1, 9, 4096], true), "columns_bf16_w8_t64");
        assert_eq!(form([1, 2, 4096], true), "columns_bf16_w8_t256");
        assert_eq!(form([2, 100, 3], true), "columns_bf16_w1_t8");
    }
}
