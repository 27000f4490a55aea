//! Copies of single elements, in tiles.
//!
//! ```text
//!     window                         tile, in the L1 cache     target
//!     64 to 512 bytes of each row    rows of 512 bytes         512 bytes of each row
//!
//!     a b c d ..                     a e i ..                  a e i ..
//!     e f g h ..    -- transpose --> b f j ..  -- copy rows -> b f j ..
//!     i j k l ..                     c g k ..                  c g k ..
//! ```
//!
//! Rows of the window and of the target are often a power of two apart. They then map to so few
//! cache sets that the cache cannot hold a line of each row. So a tile reads at least a cache line
//! from each row of the window and writes whole cache lines to each row of the target. The tile's
//! own rows are padded so that they are not a power of two apart.

use super::place::{Destination, each};
use super::registers::{self, LINE};
use super::sides::{Offset, Side, Sides};
use crate::exec::convert::convert;
use crate::plan::{Conversion, Part};

/// The most rows of a tile.
const ROWS: usize = 64;

/// Bytes of a row of a tile.
const ROW: usize = 512;

/// Distance between rows: an odd number of cache lines.
const PITCH: usize = ROW + CACHE_LINE;

/// Target rows of at most this many bytes are written together if they adjoin.
const NARROW: usize = 64;

/// Bytes per cache line on the processors that this was tuned on.
const CACHE_LINE: usize = 64;

/// Copies that span at least this many bytes of the target bypass the caches, which could not hold
/// that much.
pub(super) const FAR: u64 = 1 << 20;

type Tile = [[u8; PITCH]; ROWS];

/// How elements are written to the target.
#[derive(Clone, Copy)]
pub(super) enum ElementWriter<'w> {
    /// Unchanged.
    Copy,
    /// Unchanged, with non-temporal stores.
    Stream,
    /// Converted.
    Convert(&'w Conversion),
}

impl ElementWriter<'_> {
    /// The writer for unchanged elements.
    pub(super) fn of(part: &Part<'_>) -> ElementWriter<'static> {
        let steps = part.loops.iter().map(|it| it.count.saturating_sub(1) * it.to);
        match steps.sum::<u64>() < FAR {
            true => ElementWriter::Copy,
            false => ElementWriter::Stream,
        }
    }

    fn write(&self, elements: &[u8], to: &mut [u8]) {
        match self {
            ElementWriter::Copy | ElementWriter::Stream => to.copy_from_slice(elements),
            ElementWriter::Convert(conversion) => convert(conversion, elements, to),
        }
    }
}

/// Whether elements of this many bytes can be tiled.
pub(super) fn supports(element: u64) -> bool {
    matches!(element, 1 | 2 | 4 | 8 | 16)
}

/// Writes the elements of a part. Its `from` is relative to the start of `window`.
pub(super) fn write(
    window: &[u8],
    part: Part<'_>,
    place: &mut dyn Destination,
    writer: ElementWriter<'_>,
) {
    let sides = Sides::new(part.loops, ROWS as u64, ROW as u64 / u64::from(part.element));
    let mut tiles = Tiles {
        window,
        place,
        writer,
        to_element: u64::from(part.to_element),
        along: (sides.rows(), sides.columns()),
        rows: [Offset::default(); ROWS],
        columns: [Offset::default(); ROW],
        tile: [[0; PITCH]; ROWS],
        joined: [0; ROWS * NARROW],
    };
    each(sides.outer(), part.from, part.to, &mut |from, to| {
        let start = Offset { from, to };
        match part.element {
            1 => tiles.matrix::<1, 16, 64>(start),
            2 => tiles.matrix::<2, 8, 128>(start),
            4 => tiles.matrix::<4, 4, 256>(start),
            8 => tiles.matrix::<8, 2, 512>(start),
            _ => tiles.matrix::<16, 1, 512>(start),
        }
    });
}

struct Tiles<'a> {
    window: &'a [u8],
    place: &'a mut dyn Destination,
    writer: ElementWriter<'a>,
    to_element: u64,
    /// The loops over all rows, and over all columns.
    along: (Side<'a>, Side<'a>),
    /// The rows of the tile.
    rows: [Offset; ROWS],
    columns: [Offset; ROW],
    tile: Tile,
    /// The tile's rows without padding, if they are narrow.
    joined: [u8; ROWS * NARROW],
}

impl Tiles<'_> {
    /// Copies all iterations of both sides. Elements have `N` bytes, `B` elements have 16 bytes,
    /// and a full column of a tile has `C` bytes.
    fn matrix<const N: usize, const B: usize, const C: usize>(&mut self, start: Offset) {
        let high = C / N;
        let (rows, columns) = self.along;
        let mut width = self.first_width(start.to, ROW / N);
        let mut column = 0;
        while column < columns.count() {
            width = width.min((columns.count() - column) as usize);
            fill(&mut self.columns[..width], columns.offsets(column));
            for row in (0..rows.count()).step_by(high) {
                let height = (rows.count() - row).min(high as u64) as usize;
                fill(&mut self.rows[..height], rows.offsets(row));
                let from = (start.from + self.rows[0].from) as usize;
                let columns = &self.columns[..width];
                if rows.stride().from != N as u64 {
                    self.gather::<N>(start.from, height, width);
                } else if height == high {
                    transpose_full::<N, B, C>(&mut self.tile, self.window, columns, from);
                } else {
                    transpose::<N, B, C>(&mut self.tile, self.window, columns, from, height);
                }
                self.put::<N>(start.to, height, width);
            }
            column += width as u64;
            width = ROW / N;
        }
    }

    /// The width of the first tiles, chosen so that the rows of later tiles start at a cache line
    /// of the target.
    fn first_width(&mut self, to: u64, widest: usize) -> usize {
        let first = self.place.bytes(to..to + self.to_element);
        let off = first.as_ptr() as usize % CACHE_LINE;
        widest - off / self.to_element as usize
    }

    /// Fills the tile element by element, from a window with any strides.
    fn gather<const N: usize>(&mut self, from: u64, height: usize, width: usize) {
        for (column, at) in self.columns[..width].iter().zip(0..) {
            for (row, line) in self.rows[..height].iter().zip(&mut self.tile) {
                let from = (from + row.from + column.from) as usize;
                line.as_chunks_mut::<N>().0[at] = self.window[from..][..N].as_chunks().0[0];
            }
        }
    }

    /// Writes the tile to the target.
    fn put<const N: usize>(&mut self, to: u64, height: usize, width: usize) {
        let (rows, columns) = (&self.rows[..height], &self.columns[..width]);
        let is_run = width == 1 || self.along.1.stride().to == self.to_element;
        let lines = rows.iter().zip(&self.tile);
        if !is_run {
            for (row, line) in lines {
                for (column, element) in columns.iter().zip(line.as_chunks::<N>().0) {
                    let to = to + row.to + column.to;
                    let place = self.place.bytes(to..to + self.to_element);
                    self.writer.write(element, place);
                }
            }
            return;
        }

        let run = width as u64 * self.to_element;
        let place = |row: &Offset| to + row.to + columns[0].to;
        let adjoin = |pair: &[Offset]| pair[0].to + run == pair[1].to;
        if width * N <= NARROW && rows.windows(2).all(adjoin) {
            join(&self.tile[..height], width * N, &mut self.joined);
            let to = place(&rows[0]);
            let place = self.place.bytes(to..to + height as u64 * run);
            return self.writer.write(&self.joined[..height * width * N], place);
        }
        let lines = lines.map(|(row, line)| (place(row)..place(row) + run, &line[..width * N]));
        match self.writer {
            ElementWriter::Stream => registers::stream(self.place, lines),
            writer => lines.for_each(|(to, line)| writer.write(line, self.place.bytes(to))),
        }
    }
}

/// Packs rows of at most [`NARROW`] bytes.
fn join(rows: &[[u8; PITCH]], bytes: usize, joined: &mut [u8; ROWS * NARROW]) {
    for (row, line) in rows.iter().enumerate() {
        // A fixed size is fast; the next row overwrites the excess.
        joined[row * bytes..][..NARROW].copy_from_slice(&line[..NARROW]);
    }
}

fn fill(offsets: &mut [Offset], found: impl Iterator<Item = Offset>) {
    for (offset, found) in offsets.iter_mut().zip(found) {
        *offset = found;
    }
}

/// Fills a tile of full height. The constant height makes [`transpose`] faster.
#[inline(never)]
fn transpose_full<const N: usize, const B: usize, const C: usize>(
    tile: &mut Tile,
    window: &[u8],
    columns: &[Offset],
    from: usize,
) {
    transpose::<N, B, C>(tile, window, columns, from, C / N);
}

/// Fills a tile from a window in which the elements of a column are adjacent.
#[inline(always)]
fn transpose<const N: usize, const B: usize, const C: usize>(
    tile: &mut Tile,
    window: &[u8],
    columns: &[Offset],
    from: usize,
    height: usize,
) {
    for (columns, at) in columns.chunks(B).zip(0..ROW / LINE) {
        let padded: [[u8; C]; B];
        let lines = match lines::<B, C>(window, columns, from) {
            Some(lines) => lines,
            None => {
                padded = padded_lines::<B, C>(window, columns, from, height * N);
                padded.each_ref()
            }
        };
        let squares = tile.as_chunks_mut::<B>().0.iter_mut();
        for (rows, number) in squares.zip(0..height.div_ceil(B)) {
            let transposed = registers::transpose_square::<N, B, C>(&lines, number);
            for (row, line) in rows.iter_mut().zip(transposed) {
                row.as_chunks_mut::<LINE>().0[at] = line;
            }
        }
    }
}

/// The first `C` bytes of each of `B` columns; `None` if there are fewer columns or bytes.
#[inline(always)]
fn lines<'w, const B: usize, const C: usize>(
    window: &'w [u8],
    columns: &[Offset],
    from: usize,
) -> Option<[&'w [u8; C]; B]> {
    let columns: &[Offset; B] = columns.first_chunk()?;
    let mut lines = [&[0; C]; B];
    for (line, column) in lines.iter_mut().zip(columns) {
        *line = window.get(from + column.from as usize..)?.first_chunk()?;
    }
    Some(lines)
}

/// Like [`lines`], but pads with zeros if there are fewer columns or bytes.
#[cold]
fn padded_lines<const B: usize, const C: usize>(
    window: &[u8],
    columns: &[Offset],
    from: usize,
    bytes: usize,
) -> [[u8; C]; B] {
    let mut lines = [[0; C]; B];
    for (line, column) in lines.iter_mut().zip(columns) {
        let bytes = &window[from + column.from as usize..][..bytes];
        line[..bytes.len()].copy_from_slice(bytes);
    }
    lines
}
