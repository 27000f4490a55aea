//! How a kernel processes rows: in registers if they fit, else in loops.

use super::RowTile;
use crate::assembler::Launch;
use crate::dtype::Dtype;

/// Threads per CTA that loops over one row.
pub(super) const LOOP_THREADS: u32 = 256;

/// How a kernel processes its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Each row stays in registers.
    Tile(RowTile),
    /// Rows of any length and alignment; a CTA loops over its row, once in each pass.
    Loop(LoopTile),
}

/// How a CTA that loops over a row accesses the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoopTile {
    pub(super) dtype: Dtype,
    /// Elements per access: a vector of 16 bytes, or one.
    pub(super) width: u32,
}

impl Form {
    /// The form for rows of `features` elements. `aligned`: whether all matrices and vectors begin
    /// at multiples of 16 bytes.
    pub fn new(dtype: Dtype, features: usize, aligned: bool) -> Form {
        if let Some(tile) = RowTile::new(dtype, features).filter(|_| aligned) {
            return Form::Tile(tile);
        }
        let vectors = aligned && features.is_multiple_of(dtype.per_vector() as usize);
        Form::Loop(LoopTile { dtype, width: if vectors { dtype.per_vector() } else { 1 } })
    }

    /// Threads per CTA.
    pub fn threads(self) -> u32 {
        match self {
            Form::Tile(tile) => tile.threads(),
            Form::Loop(_) => LOOP_THREADS,
        }
    }

    /// The launch over rows; `None` if there are no rows.
    pub fn launch(self, rows: u64) -> Option<Launch> {
        match self {
            Form::Tile(tile) => tile.launch(rows),
            Form::Loop(_) => {
                let ctas = u32::try_from(rows).unwrap_or(u32::MAX);
                Launch::new([ctas, 1, 1], LOOP_THREADS)
            }
        }
    }

    /// The part of a kernel's name for this form: `bf16_d1024_t32`, `bf16_loop`.
    pub fn name(self) -> String {
        match self {
            Form::Tile(tile) => tile.name(),
            Form::Loop(LoopTile { dtype, width: 1 }) => format!("{}_loop", dtype.name()),
            Form::Loop(LoopTile { dtype, width }) => format!("{}_loop{width}", dtype.name()),
        }
    }
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
