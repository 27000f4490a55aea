//! Copies that swap two dims. Tiles in shared memory make both reads and writes contiguous.

use super::{Raw, Unit};
use crate::assembler::{
    GlobalAddress, In, Kernel, Launch, List, Out, Ptx, S64, SharedAddress, Target, U32, U64,
    Variant,
};
use crate::elementwise::{IterationSpace, THREADS};
use crate::params;

/// Maximum number of other dims.
const MAX_OUTER: usize = IterationSpace::MAX_DIMS - 2;

/// Minimum extent of both dims. For shorter ones, the copy without tiles is used.
const MIN_EXTENT: u64 = 8;

/// `y[.., r, .., c] = x[.., r, .., c]`, where r is contiguous in x and c is contiguous in y.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transpose {
    unit: Unit,
    outer: u8,
}

/// An iteration space divided into the two swapped dims and the outer dims.
#[derive(Clone, Copy, Debug)]
pub struct TransposeSpace {
    rows: u64,
    columns: u64,
    /// From one column to the next in x, and from one row to the next in y, in elements.
    steps: [i64; 2],
    outer: List<OuterDim, MAX_OUTER>,
}

impl TransposeSpace {
    /// The number of tiles along rows and columns; a tile has `edge` by `edge` elements.
    fn tiles(&self, edge: u32) -> [u64; 2] {
        [self.rows, self.columns].map(|extent| extent.div_ceil(u64::from(edge)))
    }
}

impl Transpose {
    /// The kernel for an iteration space over y and x in elements of `unit`, and its form of the
    /// space. `None` if x and y are not contiguous in different dims, if one of these is too short,
    /// or for units of 16 bytes.
    pub fn new(unit: Unit, space: &IterationSpace) -> Option<(Transpose, TransposeSpace)> {
        let (extents, dims) = (space.extents(), space.extents().len());
        let mut strides = space.strides();
        let (y, x) = (strides.next()?, strides.next()?);
        let column = dims - 1;
        let row = (0..column).find(|dim| x[*dim] == 1)?;
        let long = extents[row] >= MIN_EXTENT && extents[column] >= MIN_EXTENT;
        if !long || y[column] != 1 || x[column] == 1 || unit == Unit::B16 {
            return None;
        }

        let outer = (0..column).filter(|dim| *dim != row);
        let outer =
            outer.map(|dim| OuterDim { extent: extents[dim], x_stride: x[dim], y_stride: y[dim] });
        let transposed = TransposeSpace {
            rows: extents[row],
            columns: extents[column],
            steps: [x[column], y[row]],
            outer: outer.collect(),
        };
        let outer = (dims - 2) as u8;
        Some((Transpose { unit, outer }, transposed))
    }

    /// The arguments for the elements at `x` and `y`.
    pub fn arguments(&self, x: In, y: Out, transposed: &TransposeSpace) -> TransposeArguments {
        // A launch has less than 2^31 tiles.
        let [row_tiles, column_tiles] = transposed.tiles(self.edge()).map(|tiles| tiles as u32);
        let [x_step, y_step] = transposed.steps;
        TransposeArguments {
            x,
            y,
            rows: transposed.rows,
            columns: transposed.columns,
            row_tiles,
            column_tiles,
            x_step,
            y_step,
            outer: transposed.outer,
        }
    }

    /// The launch; `None` if there are no elements, or more tiles than a grid can have CTAs.
    pub fn launch(&self, transposed: &TransposeSpace) -> Option<Launch> {
        let [rows, columns] = transposed.tiles(self.edge());
        let outer = transposed.outer.iter().map(|dim| dim.extent).product::<u64>();
        let ctas = outer.checked_mul(rows)?.checked_mul(columns)?;
        let ctas = i32::try_from(ctas).ok()?;
        Launch::new([ctas.unsigned_abs(), 1, 1], THREADS)
    }

    /// Elements along a side of a tile. Many per thread, because computing the tile's place takes long.
    fn edge(&self) -> u32 {
        match self.unit {
            Unit::B1 | Unit::B2 | Unit::B4 => 64,
            _ => 32,
        }
    }

    /// Bytes per element in a tile: at least a word, so that consecutive elements are in different
    /// banks.
    fn slot(&self) -> u32 {
        self.unit.bytes().max(4)
    }
}

params! {
    /// A dim that is not swapped.
    pub struct OuterDim => OuterCall {
        /// Its extent.
        extent: u64,
        /// Its stride in x, in elements.
        x_stride: i64,
        /// Its stride in y, in elements.
        y_stride: i64,
    }
}

params! {
    /// Arguments of [`Transpose`].
    pub struct TransposeArguments => Call for variant: Transpose {
        /// The address of the first element of x.
        x: In,
        /// The address of the first element of y.
        y: Out,
        /// The extent of the dim that is contiguous in x.
        rows: u64,
        /// The extent of the dim that is contiguous in y.
        columns: u64,
        /// The number of tiles along the rows.
        row_tiles: u32,
        /// The number of tiles along the columns.
        column_tiles: u32,
        /// From one column to the next in x, in elements.
        x_step: i64,
        /// From one row to the next in y, in elements.
        y_step: i64,
        /// The other dims.
        outer: List<OuterDim, MAX_OUTER> = usize::from(variant.outer),
    }
}

impl Variant for Transpose {
    type Arguments = TransposeArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let (edge, size) = (self.edge(), self.unit.bytes());
        let Call { x, y, rows, columns, row_tiles, column_tiles, x_step, y_step, outer } =
            self.parameters(k);

        let rest = k.cta() / column_tiles;
        let column = (k.cta() - rest * column_tiles).mul_wide(edge);
        let number = rest / row_tiles;
        let row = (rest - number * row_tiles).mul_wide(edge);
        let [x, y] = self.outer_part(&outer, number.wide(), [x, y]);

        // One padding element per column puts the elements of a row into different banks too.
        let tile = k.shared::<u32>(edge * (edge + 1) * self.slot() / 4);
        let (along, across) = (k.thread() % edge, k.thread() / edge);
        let places = (0..edge).step_by((THREADS / edge) as usize);
        let loaded: Vec<_> = places
            .clone()
            .map(|i| {
                let (row, column) = (row + along.wide(), column + (across + i).wide());
                let exists = row.lt(rows) & column.lt(columns);
                let offset = column.signed().mad(x_step, row.signed());
                self.unit.load_if(exists, at(x, offset, size))
            })
            .collect();
        for (i, raw) in places.clone().zip(loaded) {
            store(self.place(tile, across + i, along), raw);
        }
        k.barrier();

        for i in places {
            let (row, column) = (row + (across + i).wide(), column + along.wide());
            let exists = row.lt(rows) & column.lt(columns);
            let offset = row.signed().mad(y_step, column.signed());
            let raw = self.load(self.place(tile, along, across + i));
            self.unit.store_if(exists, at(y, offset, size), raw);
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("transpose_b{}_outer{}", self.unit.bytes(), self.outer)
    }
}

impl Transpose {
    /// The start of the matrix with this number, in x and in y.
    #[track_caller]
    fn outer_part<'k>(
        &self,
        dims: &[OuterCall<'k>],
        number: U64<'k>,
        starts: [GlobalAddress<'k>; 2],
    ) -> [GlobalAddress<'k>; 2] {
        let (mut rest, mut starts) = (number, starts);
        for dim in dims.iter().rev() {
            let coordinate = (rest % dim.extent).signed();
            rest = rest / dim.extent;
            for (start, stride) in starts.iter_mut().zip([dim.x_stride, dim.y_stride]) {
                *start = at(*start, coordinate * stride, self.unit.bytes());
            }
        }
        starts
    }

    #[track_caller]
    fn place<'k>(
        &self,
        tile: SharedAddress<'k>,
        column: U32<'k>,
        row: U32<'k>,
    ) -> SharedAddress<'k> {
        let slot = column.mad(self.edge() + 1, row);
        tile.byte_add(slot * self.slot())
    }

    #[track_caller]
    fn load<'k>(&self, from: SharedAddress<'k>) -> Raw<'k> {
        match self.unit {
            Unit::B8 => Raw::Wide(from.load::<u64>()),
            _ => Raw::Word(from.load::<u32>()),
        }
    }
}

#[track_caller]
fn store<'k>(to: SharedAddress<'k>, raw: Raw<'k>) {
    match raw {
        Raw::Word(word) => to.store(word),
        Raw::Wide(wide) => to.store(wide),
        Raw::Vector(words) => to.store_vector(words),
    }
}

#[track_caller]
fn at<'k>(start: GlobalAddress<'k>, offset: S64<'k>, size: u32) -> GlobalAddress<'k> {
    start.byte_add((offset * i64::from(size)).unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(extents: &[usize], x: &[isize]) -> IterationSpace {
        let y: Vec<isize> = (0..extents.len())
            .map(|dim| extents[dim + 1..].iter().product::<usize>() as isize)
            .collect();
        IterationSpace::new(extents, &y, &[x]).unwrap()
    }

    #[test]
    fn only_swapped_dims_use_tiles() {
        let transposed =
            |extents: &[usize], x: &[isize]| Transpose::new(Unit::B4, &space(extents, x)).is_some();
        assert!(transposed(&[16, 16], &[1, 16]));
        assert!(transposed(&[16, 3, 16], &[1, 1000, 16]));
        assert!(!transposed(&[16, 16], &[32, 1]), "padded rows");
        assert!(!transposed(&[16, 4], &[1, 16]), "short");
        assert!(!transposed(&[16, 16], &[2, 32]), "no contiguous dim");
        assert!(!transposed(&[16, 16], &[0, 1]), "repeated");
    }
}
