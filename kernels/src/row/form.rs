//! How a kernel processes rows: in registers if they fit, else in loops.

use super::RowTile;
use crate::assembler::{F32, GlobalAddress, Kernel, Launch, U32};
use crate::dtype::Dtype;

/// Threads per CTA that loops over one row.
pub(crate) const LOOP_THREADS: u32 = 256;

/// How a kernel processes its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// Each row stays in registers.
    Tile(RowTile),
    /// Rows of any length and alignment; a CTA loops over its row, more than once.
    Loop(LoopTile),
}

/// How a CTA that loops over a row accesses the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LoopTile {
    dtype: Dtype,
    /// Elements per access: a vector of 16 bytes, or one.
    width: u32,
}

impl Form {
    /// The form for rows of `features` elements. `aligned`: whether all matrices and vectors begin
    /// at multiples of 16 bytes.
    pub(crate) fn new(dtype: Dtype, features: usize, aligned: bool) -> Form {
        if let Some(tile) = RowTile::new(dtype, features).filter(|_| aligned) {
            return Form::Tile(tile);
        }
        let vectors = aligned && features.is_multiple_of(dtype.per_vector() as usize);
        Form::Loop(LoopTile {
            dtype,
            width: if vectors { dtype.per_vector() } else { 1 },
        })
    }

    /// Threads per CTA.
    pub(crate) fn threads(self) -> u32 {
        match self {
            Form::Tile(tile) => tile.threads(),
            Form::Loop(_) => LOOP_THREADS,
        }
    }

    /// The launch over rows; `None` if there are no rows.
    pub(crate) fn launch(self, rows: u64) -> Option<Launch> {
        match self {
            Form::Tile(tile) => tile.launch(rows),
            Form::Loop(_) => {
                let ctas = u32::try_from(rows).unwrap_or(u32::MAX);
                Launch::new([ctas, 1, 1], LOOP_THREADS)
            }
        }
    }

    /// The part of a kernel's name for this form: `bf16_d1024_t32`, `bf16_loop`.
    pub(crate) fn name(self) -> String {
        match self {
            Form::Tile(tile) => tile.name(),
            Form::Loop(LoopTile { dtype, width: 1 }) => format!("{}_loop", dtype.name()),
            Form::Loop(LoopTile { dtype, width }) => format!("{}_loop{width}", dtype.name()),
        }
    }
}

/// The row of a CTA that loops over it.
#[derive(Clone, Copy)]
pub(crate) struct LongRow<'k> {
    k: &'k Kernel,
    tile: LoopTile,
    features: U32<'k>,
}

/// The elements of a row that a thread processes in one iteration of the loop.
#[derive(Clone, Copy)]
pub(crate) struct ThreadElements<'k> {
    tile: LoopTile,
    first: U32<'k>,
}

impl<'k> LongRow<'k> {
    /// The row of this CTA in a kernel of [`LOOP_THREADS`] threads.
    pub(crate) fn new(k: &'k Kernel, tile: LoopTile, features: U32<'k>) -> LongRow<'k> {
        LongRow { k, tile, features }
    }

    /// The address of this row in a matrix.
    #[track_caller]
    pub(crate) fn of_matrix(&self, matrix: GlobalAddress<'k>) -> GlobalAddress<'k> {
        let elements = self.k.cta().mul_wide(self.features);
        matrix.byte_add(elements * u64::from(self.tile.dtype.size()))
    }

    /// Calls `body` for each iteration of this thread.
    #[track_caller]
    pub(crate) fn for_each(&self, body: impl FnOnce(ThreadElements<'k>)) {
        let (k, tile) = (self.k, self.tile);
        let first = match tile.width {
            1 => k.thread(),
            width => k.thread() * width,
        };
        k.for_range(first, self.features, LOOP_THREADS * tile.width, |first| {
            body(ThreadElements { tile, first });
        });
    }
}

impl<'k> ThreadElements<'k> {
    /// Loads the elements from a row or vector at `row`.
    #[track_caller]
    pub(crate) fn load(self, row: GlobalAddress<'k>) -> Vec<F32<'k>> {
        let (dtype, from) = (self.tile.dtype, self.in_row(row));
        match self.tile.width {
            1 => vec![dtype.load(from)],
            _ => dtype.load_vector(from).widen(),
        }
    }

    /// Rounds and stores elements of a row; `value(i)` belongs to element `i` of
    /// [`ThreadElements::load`].
    #[track_caller]
    pub(crate) fn store(self, row: GlobalAddress<'k>, value: impl Fn(usize) -> F32<'k>) {
        let (dtype, to) = (self.tile.dtype, self.in_row(row));
        match self.tile.width {
            1 => dtype.store(to, value(0)),
            _ => dtype.round(value).store(to),
        }
    }

    /// A value as [`ThreadElements::store`] rounds it.
    #[track_caller]
    pub(crate) fn rounded(self, value: F32<'k>) -> F32<'k> {
        self.tile.dtype.rounded(value)
    }

    #[track_caller]
    fn in_row(self, row: GlobalAddress<'k>) -> GlobalAddress<'k> {
        element(self.tile.dtype, row, self.first)
    }
}

/// The address of an element of a row or vector.
#[track_caller]
pub(crate) fn element<'k>(
    dtype: Dtype,
    row: GlobalAddress<'k>,
    index: U32<'k>,
) -> GlobalAddress<'k> {
    row.byte_add(index.mul_wide(dtype.size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If rows are not whole vectors or not aligned, elements are accessed one by one.
    #[test]
    fn form_depends_on_length_and_alignment() {
        let name = |features, aligned| Form::new(Dtype::Bf16, features, aligned).name();
        assert_eq!(name(1024, true), "bf16_d1024_t32");
        assert_eq!(name(1024, false), "bf16_loop");
        assert_eq!(name(1025, true), "bf16_loop");
        assert_eq!(name(1 << 20, true), "bf16_loop8");
        assert_eq!(name((1 << 20) + 1, true), "bf16_loop");
    }
}
