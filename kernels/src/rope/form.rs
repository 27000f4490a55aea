//! Extents and strides of heads, and the choice of a kernel for them.

use super::HeadTile;
use super::loops::LOOP_THREADS;
use crate::assembler::{Arguments, Kernel, Launch, U32};
use crate::dtype::Dtype;

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

/// The extents of heads \[B, T, N, D\], of which 2 H features are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// B T N, at most [`Heads::MAX_ROWS`].
    pub rows: u32,
    /// T.
    pub positions: u32,
    /// N.
    pub heads: u32,
    /// D.
    pub features: u32,
    /// H.
    pub pairs: u32,
}

impl Heads {
    /// Maximum number of rows.
    pub const MAX_ROWS: u32 = 1 << 31;

    pub(crate) fn push(&self, arguments: &mut Arguments) {
        for extent in [self.rows, self.positions, self.heads, self.features] {
            arguments.push_u32(extent);
        }
        arguments.push_u32(self.pairs);
    }
}

/// [`Heads`] in registers.
#[derive(Clone, Copy)]
pub(crate) struct Shape<'k> {
    pub(crate) rows: U32<'k>,
    pub(crate) positions: U32<'k>,
    pub(crate) heads: U32<'k>,
    pub(crate) features: U32<'k>,
    pub(crate) pairs: U32<'k>,
}

impl<'k> Shape<'k> {
    #[track_caller]
    pub(crate) fn parameters(k: &'k Kernel) -> Shape<'k> {
        Shape {
            rows: k.u32_param("rows"),
            positions: k.u32_param("positions"),
            heads: k.u32_param("heads"),
            features: k.u32_param("features"),
            pairs: k.u32_param("pairs"),
        }
    }
}

/// Strides of heads in elements; features are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadStrides {
    /// From one sequence to the next.
    pub batch: i64,
    /// From one position to the next.
    pub position: i64,
    /// From one head to the next.
    pub head: i64,
}

impl HeadStrides {
    pub(crate) fn push(&self, arguments: &mut Arguments) {
        for stride in [self.batch, self.position, self.head] {
            arguments.push_i64(stride);
        }
    }

    /// Whether all heads are 16-byte aligned if the tensor is.
    pub fn keep_alignment(&self, dtype: Dtype) -> bool {
        let per_vector = i64::from(dtype.per_vector());
        let strides = [self.batch, self.position, self.head];
        strides.iter().all(|stride| stride % per_vector == 0)
    }
}

/// Strides of a table \[B, T, H\] in elements, 0 for a broadcast dim; the angles of a position are
/// contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableStrides {
    /// From one sequence to the next.
    pub batch: i64,
    /// From one position to the next.
    pub position: i64,
}

impl TableStrides {
    pub(crate) fn push(&self, arguments: &mut Arguments) {
        arguments.push_i64(self.batch).push_i64(self.position);
    }

    /// Whether all rows are 16-byte aligned if the table is.
    pub fn keep_alignment(&self) -> bool {
        [self.batch, self.position]
            .iter()
            .all(|stride| stride % 4 == 0)
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
