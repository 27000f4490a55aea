//! From a window to the targets: the inner loops of loading.
//!
//! A part of a copy is a run of bytes inside of loops. Long runs are plain copies. Where single
//! elements go apart, the order in which they are visited decides the speed: along the file, a
//! transposed matrix touches another cache line of its target with each element, along the target
//! another one of the window. Tiles of 32 x 32 elements touch each line of either side once.

use crate::plan::{ByteLoop, Conversion, Part};

use super::convert::convert;

/// The memory of a target.
pub(super) trait Place {
    /// These bytes, to be written.
    fn bytes(&mut self, range: std::ops::Range<u64>) -> &mut [u8];
}

impl Place for &mut [u8] {
    fn bytes(&mut self, range: std::ops::Range<u64>) -> &mut [u8] {
        &mut self[range.start as usize..range.end as usize]
    }
}

/// Rows and columns of a tile.
const TILE: usize = 32;

/// Copies the elements of a part, whose `from` counts from the beginning of `window`.
pub(super) fn scatter(window: &[u8], part: Part<'_>, mut place: impl Place) {
    let element = u64::from(part.element);
    let (run, outer) = match part.loops {
        [run, outer @ ..] if (run.from, run.to) == (element, element) => {
            (run.count * element, outer)
        }
        outer => (element, outer),
    };
    let mut scatter = Scatter {
        window,
        place: &mut place,
    };
    match run {
        1 => scatter.elements::<1>(part, outer),
        2 => scatter.elements::<2>(part, outer),
        4 => scatter.elements::<4>(part, outer),
        8 => scatter.elements::<8>(part, outer),
        16 => scatter.elements::<16>(part, outer),
        _ => each(outer, part.from, part.to, &mut |from, to| {
            let bytes = &window[from as usize..][..run as usize];
            scatter.place.bytes(to..to + run).copy_from_slice(bytes);
        }),
    }
}

/// The same with something done to each element: by the run, since arithmetic takes longer than any
/// order of it.
pub(super) fn scatter_converted(
    window: &[u8],
    part: Part<'_>,
    mut place: impl Place,
    how: &Conversion,
) {
    let (element, to_element) = (u64::from(part.element), u64::from(part.to_element));
    let (count, outer) = match part.loops {
        [run, outer @ ..] if (run.from, run.to) == (element, to_element) => (run.count, outer),
        outer => (1, outer),
    };
    each(outer, part.from, part.to, &mut |from, to| {
        let bytes = &window[from as usize..][..(count * element) as usize];
        convert(how, bytes, place.bytes(to..to + count * to_element));
    });
}

/// Writes one element to many places, the first of which begins at `to`.
pub(super) fn fill(loops: &[ByteLoop], to: u64, element: &[u8], place: &mut [u8]) {
    each(loops, 0, to, &mut |_, to| {
        place[to as usize..][..element.len()].copy_from_slice(element);
    });
}

/// Calls for each turn of nested loops, the first one innermost.
fn each(loops: &[ByteLoop], from: u64, to: u64, visit: &mut impl FnMut(u64, u64)) {
    match loops {
        [] => visit(from, to),
        [inner @ .., outer] => {
            for turn in 0..outer.count {
                each(inner, from + turn * outer.from, to + turn * outer.to, visit);
            }
        }
    }
}

struct Scatter<'a, P> {
    window: &'a [u8],
    place: &'a mut P,
}

impl<P: Place> Scatter<'_, P> {
    /// Elements of `N` bytes. The loop that moves least in the window and the one that moves least
    /// in the target are the sides of the tiles; one loop alone is a tile of one row.
    fn elements<const N: usize>(&mut self, part: Part<'_>, loops: &[ByteLoop]) {
        const ONCE: ByteLoop = ByteLoop {
            count: 1,
            from: 0,
            to: 0,
        };
        let along_target = (0..loops.len()).min_by_key(|at| loops[*at].to);
        let along_window = (0..loops.len())
            .filter(|at| Some(*at) != along_target)
            .min();
        let side = |at: Option<usize>| at.map_or(ONCE, |at| loops[at]);
        let (rows, columns) = (side(along_window), side(along_target));

        let is_side = |at: usize| Some(at) == along_window || Some(at) == along_target;
        let outer: Vec<ByteLoop> = (0..loops.len())
            .filter(|at| !is_side(*at))
            .map(|at| loops[at])
            .collect();
        each(&outer, part.from, part.to, &mut |from, to| {
            self.matrix::<N>(from as usize, to, rows, columns);
        });
    }

    /// Elements of two loops, by tiles. `columns` is the loop along the target.
    fn matrix<const N: usize>(&mut self, from: usize, to: u64, rows: ByteLoop, columns: ByteLoop) {
        let mut tile = [[[0; N]; TILE]; TILE];
        for row in (0..rows.count).step_by(TILE) {
            let height = (rows.count - row).min(TILE as u64) as usize;
            for column in (0..columns.count).step_by(TILE) {
                let width = (columns.count - column).min(TILE as u64) as usize;
                let from = from + (row * rows.from + column * columns.from) as usize;
                self.gather(&mut tile, from, (rows.from, height), (columns.from, width));
                let to = to + row * rows.to + column * columns.to;
                self.put(&tile, to, (rows.to, height), (columns.to, width));
            }
        }
    }

    /// Fills a tile from the window: a row of it goes along the target.
    fn gather<const N: usize>(
        &self,
        tile: &mut [[[u8; N]; TILE]; TILE],
        from: usize,
        (row_stride, height): (u64, usize),
        (column_stride, width): (u64, usize),
    ) {
        let (row_stride, column_stride) = (row_stride as usize, column_stride as usize);
        for column in 0..width {
            let start = from + column * column_stride;
            let bytes = &self.window[start..];
            if row_stride == N && height == TILE {
                let (elements, _) = bytes[..TILE * N].as_chunks::<N>();
                for (row, element) in elements.iter().enumerate() {
                    tile[row % TILE][column % TILE] = *element;
                }
                continue;
            }
            for row in 0..height {
                let element = &bytes[row * row_stride..][..N];
                tile[row][column].copy_from_slice(element);
            }
        }
    }

    /// Writes a tile to the target.
    fn put<const N: usize>(
        &mut self,
        tile: &[[[u8; N]; TILE]; TILE],
        to: u64,
        (row_stride, height): (u64, usize),
        (column_stride, width): (u64, usize),
    ) {
        let size = N as u64;
        for (row, elements) in (0..).zip(&tile[..height]) {
            let to = to + row * row_stride;
            let elements = &elements[..width];
            if column_stride == size {
                let bytes = elements.as_flattened();
                self.place
                    .bytes(to..to + bytes.len() as u64)
                    .copy_from_slice(bytes);
                continue;
            }
            for (column, element) in (0..).zip(elements) {
                let to = to + column * column_stride;
                self.place.bytes(to..to + size).copy_from_slice(element);
            }
        }
    }
}
