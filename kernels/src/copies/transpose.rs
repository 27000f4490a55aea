//! Copies that swap two dims. Tiles in shared memory make both reads and writes contiguous.

use super::{Raw, Unit};
use crate::assembler::{
    Arguments, GlobalAddress, Kernel, Launch, Ptx, S64, SharedAddress, Target, U32, U64, Variant,
};
use crate::elementwise::{IterationSpace, THREADS};

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

/// Arguments of [`Transpose`].
#[derive(Clone, Copy, Debug)]
pub struct TransposeArguments {
    /// The address of the first element of x.
    pub x: u64,
    /// The address of the first element of y.
    pub y: u64,
    /// Extents and strides of the two swapped dims and the outer ones.
    pub transposed: TransposeSpace,
}

/// An iteration space divided into the two swapped dims and the outer dims.
#[derive(Clone, Copy, Debug)]
pub struct TransposeSpace {
    rows: u64,
    columns: u64,
    /// From one column to the next in x, and from one row to the next in y, in elements.
    steps: [i64; 2],
    outer: usize,
    extents: [u64; MAX_OUTER],
    /// Strides of x and of y.
    strides: [[i64; 2]; MAX_OUTER],
}

impl TransposeSpace {
    /// The number of tiles along rows and columns; a tile has `edge` by `edge` elements.
    fn tiles(&self, edge: u32) -> [u64; 2] {
        [self.rows, self.columns].map(|extent| extent.div_ceil(u64::from(edge)))
    }
}

impl TransposeArguments {
    /// The bytes of the parameters of `variant`.
    pub fn arguments(&self, variant: &Transpose) -> Arguments {
        let TransposeSpace {
            rows,
            columns,
            steps,
            outer,
            extents,
            strides,
        } = self.transposed;
        let mut arguments = Arguments::new();
        arguments.push_pointer(self.x).push_pointer(self.y);
        arguments.push_u64(rows).push_u64(columns);
        for tiles in self.transposed.tiles(variant.edge()) {
            arguments.push_u64(tiles);
        }
        for step in steps {
            arguments.push_i64(step);
        }
        for (extent, strides) in extents.iter().zip(strides).take(outer) {
            arguments.push_u64(*extent);
            arguments.push_i64(strides[0]).push_i64(strides[1]);
        }
        arguments
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

        let mut transposed = TransposeSpace {
            rows: extents[row],
            columns: extents[column],
            steps: [x[column], y[row]],
            outer: dims - 2,
            extents: [1; MAX_OUTER],
            strides: [[0; 2]; MAX_OUTER],
        };
        for (to, dim) in (0..column).filter(|dim| *dim != row).enumerate() {
            transposed.extents[to] = extents[dim];
            transposed.strides[to] = [x[dim], y[dim]];
        }
        let outer = transposed.outer as u8;
        Some((Transpose { unit, outer }, transposed))
    }

    /// The launch; `None` if there are no elements, or more tiles than a grid can have CTAs.
    pub fn launch(&self, transposed: &TransposeSpace) -> Option<Launch> {
        let [rows, columns] = transposed.tiles(self.edge());
        let outer = transposed.extents.iter().product::<u64>();
        let ctas = outer.checked_mul(rows)?.checked_mul(columns)?;
        let ctas = i32::try_from(ctas).ok()?;
        Launch::new([ctas.unsigned_abs(), 1, 1], THREADS)
    }

    /// Elements along a side of a tile. Rows of small elements are whole sectors.
    fn edge(&self) -> u32 {
        match self.unit {
            Unit::B1 | Unit::B2 => 64,
            _ => 32,
        }
    }

    /// Bytes per element in a tile: at least a word, so that consecutive elements are in different
    /// banks.
    fn slot(&self) -> u32 {
        self.unit.bytes().max(4)
    }
}

impl Variant for Transpose {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let (edge, size) = (self.edge(), self.unit.bytes());
        let (x, y) = (k.pointer("x"), k.pointer("y"));
        let (rows, columns) = (k.u64_param("rows"), k.u64_param("columns"));
        let (row_tiles, column_tiles) = (k.u64_param("row_tiles"), k.u64_param("column_tiles"));
        let (x_step, y_step) = (k.i64_param("x_step"), k.i64_param("y_step"));

        let cta = k.cta().wide();
        let column = cta % column_tiles * u64::from(edge);
        let rest = cta / column_tiles;
        let row = rest % row_tiles * u64::from(edge);
        let [x, y] = self.outer_part(k, rest / row_tiles, [x, y]);

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
        k: &'k Kernel,
        number: U64<'k>,
        starts: [GlobalAddress<'k>; 2],
    ) -> [GlobalAddress<'k>; 2] {
        let dims: Vec<(U64<'k>, [S64<'k>; 2])> = (0..self.outer)
            .map(|dim| {
                let extent = k.u64_param(&format!("extent{dim}"));
                let stride = |tensor: &str| k.i64_param(&format!("{tensor}_stride{dim}"));
                (extent, [stride("x"), stride("y")])
            })
            .collect();
        let (mut rest, mut starts) = (number, starts);
        for (extent, strides) in dims.into_iter().rev() {
            let coordinate = (rest % extent).signed();
            rest = rest / extent;
            for (start, stride) in starts.iter_mut().zip(strides) {
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
    fn arguments_fill_the_parameter_space() {
        let space = space(&[3, 10, 5, 20], &[5000, 1, 300, 10]);
        for unit in [Unit::B1, Unit::B2, Unit::B4, Unit::B8] {
            let (variant, transposed) = Transpose::new(unit, &space).unwrap();
            let (x, y) = (256, 512);
            let bytes = TransposeArguments { x, y, transposed }.arguments(&variant);
            assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
            assert_eq!(variant.launch(&transposed).unwrap().grid, [15, 1, 1]);
        }
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
