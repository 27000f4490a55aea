//! Extents and strides of heads, and the choice of a kernel for them.

use super::HeadTile;
use super::head::LOOP_THREADS;
use crate::assembler::Launch;
use crate::dtype::Dtype;
use crate::params;

/// Which features of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Style {
    /// i and i + H.
    Half,
    /// 2 i and 2 i + 1.
    Interleaved,
}

impl Style {
    /// Both variants.
    pub const ALL: [Style; 2] = [Style::Half, Style::Interleaved];

    /// Its name in kernel names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Style::Half => "half",
            Style::Interleaved => "interleaved",
        }
    }
}

params! {
    /// The extents of heads \[B, T, N, D\], of which 2 H features are rotated.
    #[derive(PartialEq, Eq)]
    pub struct Heads => Shape {
        /// B T N, at most [`Heads::MAX_ROWS`].
        rows: u32,
        /// T.
        positions: u32,
        /// N.
        heads: u32,
        /// D.
        features: u32,
        /// H.
        pairs: u32,
    }
}

impl Heads {
    /// Maximum number of rows.
    pub const MAX_ROWS: u32 = 1 << 31;
}

params! {
    /// Strides of heads in elements; features are contiguous.
    #[derive(PartialEq, Eq)]
    pub struct HeadStrides => Strides {
        /// From one sequence to the next.
        batch: i64,
        /// From one position to the next.
        position: i64,
        /// From one head to the next.
        head: i64,
    }
}

impl HeadStrides {
    /// Whether all heads are 16-byte aligned if the tensor is.
    pub fn keep_alignment(&self, dtype: Dtype) -> bool {
        let per_vector = i64::from(dtype.per_vector());
        let strides = [self.batch, self.position, self.head];
        strides.iter().all(|stride| stride % per_vector == 0)
    }
}

params! {
    /// Strides of a table \[B, T, H\] in elements, 0 for a broadcast dim; the angles of a position
    /// are contiguous.
    #[derive(PartialEq, Eq)]
    pub struct TableStrides => StridesOfTable {
        /// From one sequence to the next.
        batch: i64,
        /// From one position to the next.
        position: i64,
    }
}

impl TableStrides {
    /// Whether all rows are 16-byte aligned if the table is.
    pub fn keep_alignment(&self) -> bool {
        [self.batch, self.position].iter().all(|stride| stride % 4 == 0)
    }
}

/// How a kernel processes heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// A head stays in the registers of a few lanes.
    Tile(HeadTile),
    /// Heads of any extents and alignment; a warp loops over each head.
    Loop(Dtype, Style),
}

impl Form {
    /// The form for `heads`. `aligned`: whether all heads, rows of tables and weights begin at
    /// multiples of 16 bytes.
    pub fn new(dtype: Dtype, style: Style, heads: &Heads, aligned: bool) -> Form {
        let tile = HeadTile::new(dtype, style, heads).filter(|_| aligned);
        tile.map_or(Form::Loop(dtype, style), Form::Tile)
    }

    pub(crate) fn threads(self) -> u32 {
        match self {
            Form::Tile(_) => HeadTile::THREADS,
            Form::Loop(..) => LOOP_THREADS,
        }
    }

    pub(crate) fn launch(self, heads: &Heads) -> Option<Launch> {
        let rows = match self {
            Form::Tile(tile) => tile.rows(),
            Form::Loop(..) => LOOP_THREADS / 32,
        };
        Launch::new([heads.rows.div_ceil(rows), 1, 1], self.threads())
    }

    pub(crate) fn name(self) -> String {
        match self {
            Form::Tile(tile) => tile.name(),
            Form::Loop(dtype, style) => format!("{}_{}_loop", dtype.name(), style.name()),
        }
    }
}
