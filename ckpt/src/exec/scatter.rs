//! From a window to the targets: the inner loops of loading.
//!
//! A part of a copy is a run of bytes inside of loops. Long runs are plain copies. Where single
//! elements go apart, the order in which they are visited decides the speed: along the window, a
//! transposed matrix touches another cache line of its target with each element, along the target
//! another one of the window. So it is cut into tiles that fit the innermost cache, 32 elements
//! along the window and 512 bytes along the target, and each line of either side is touched once.
//!
//! Elements that change on their way are converted by the run ([`scatter_converted`]).

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

/// Rows of a tile: elements side by side in the window.
const ROWS: usize = 32;

/// Bytes of a row of a tile, which lie side by side in the target: a few cache lines.
const ROW_BYTES: usize = 512;

type Tile = [[u8; ROW_BYTES]; ROWS];

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
        let mut tile = [[0; ROW_BYTES]; ROWS];
        each(&outer, part.from, part.to, &mut |from, to| {
            self.matrix::<N>(&mut tile, (from as usize, to), rows, columns);
        });
    }

    /// Elements of two loops, by tiles. `rows` is the loop along the window, `columns` the one along
    /// the target.
    fn matrix<const N: usize>(
        &mut self,
        tile: &mut Tile,
        (from, to): (usize, u64),
        rows: ByteLoop,
        columns: ByteLoop,
    ) {
        for column in (0..columns.count).step_by(ROW_BYTES / N) {
            let width = (columns.count - column).min((ROW_BYTES / N) as u64) as usize;
            for row in (0..rows.count).step_by(ROWS) {
                let height = (rows.count - row).min(ROWS as u64) as usize;
                let from = from + (row * rows.from + column * columns.from) as usize;
                let strides = (rows.from as usize, columns.from as usize);
                self.gather::<N>(tile, from, strides, (height, width));
                let to = to + row * rows.to + column * columns.to;
                self.put::<N>(tile, to, (rows.to, columns.to), (height, width));
            }
        }
    }

    /// Fills a tile from the window.
    fn gather<const N: usize>(
        &self,
        tile: &mut Tile,
        from: usize,
        (row_stride, column_stride): (usize, usize),
        (height, width): (usize, usize),
    ) {
        let mut done = 0;
        if row_stride == N && height == ROWS {
            for start in (0..width - width % ROWS).step_by(ROWS) {
                let from = from + start * column_stride;
                square::<N>(tile, start * N, &self.window[from..], column_stride);
                done = start + ROWS;
            }
        }
        for column in done..width {
            for (row, line) in tile[..height].iter_mut().enumerate() {
                let from = from + row * row_stride + column * column_stride;
                line[column * N..][..N].copy_from_slice(&self.window[from..][..N]);
            }
        }
    }

    /// Writes a tile to the target.
    fn put<const N: usize>(
        &mut self,
        tile: &Tile,
        to: u64,
        (row_stride, column_stride): (u64, u64),
        (height, width): (usize, usize),
    ) {
        for (row, line) in (0..).zip(&tile[..height]) {
            let (to, line) = (to + row * row_stride, &line[..width * N]);
            if column_stride == N as u64 {
                let place = self.place.bytes(to..to + line.len() as u64);
                place.copy_from_slice(line);
                continue;
            }
            for (column, element) in (0..).zip(line.chunks_exact(N)) {
                let to = to + column * column_stride;
                self.place.bytes(to..to + N as u64).copy_from_slice(element);
            }
        }
    }
}

/// Transposes as many columns as rows: lines of the window, `stride` apart, become columns of the
/// tile from byte `at` on. All lines are read at the same time, which hides the way to memory.
fn square<const N: usize>(tile: &mut Tile, at: usize, window: &[u8], stride: usize) {
    let lines: [&[[u8; N]]; ROWS] = std::array::from_fn(|column| {
        let line = &window[column * stride..][..ROWS * N];
        &line.as_chunks().0[..ROWS]
    });
    for (row, line) in tile.iter_mut().enumerate() {
        let (elements, _) = line[at..][..ROWS * N].as_chunks_mut::<N>();
        for (element, line) in elements.iter_mut().zip(&lines) {
            *element = line[row];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one element after the other gives.
    fn plainly(window: &[u8], part: Part<'_>, target: &mut [u8]) {
        each(part.loops, part.from, part.to, &mut |from, to| {
            let size = part.element as usize;
            let element = &window[from as usize..][..size];
            target[to as usize..][..size].copy_from_slice(element);
        });
    }

    /// The loops that copy a tensor of this shape, with `pad` elements behind each row of the
    /// window, to one whose dims are `order` of it, the one that moves least in the window first.
    fn permuted(shape: &[u64], order: &[usize], element: u64, pad: u64) -> Vec<ByteLoop> {
        let mut to = vec![0; shape.len()];
        let mut stride = element;
        for dim in order.iter().rev() {
            to[*dim] = stride;
            stride *= shape[*dim];
        }
        let mut from = element;
        let mut loops = Vec::new();
        for dim in (0..shape.len()).rev() {
            let (count, to) = (shape[dim], to[dim]);
            loops.push(ByteLoop { count, from, to });
            from *= count + if loops.len() == 1 { pad } else { 0 };
        }
        loops
    }

    /// Matrices and stacks of them, smaller and larger than tiles, for every size of elements.
    #[test]
    fn tiles_are_the_elements_one_by_one() {
        let cases: [(&[u64], &[usize]); 8] = [
            (&[300, 67], &[1, 0]),
            (&[33, 600], &[1, 0]),
            (&[5, 1000], &[0, 1]),
            (&[1, 40], &[1, 0]),
            (&[7, 64, 40], &[0, 2, 1]),
            (&[40, 7, 64], &[2, 1, 0]),
            (&[64, 40, 3], &[1, 0, 2]),
            (&[3, 33, 2, 65], &[3, 1, 0, 2]),
        ];
        for (shape, order) in cases {
            for (element, pad) in [1, 2, 3, 4, 8, 16]
                .into_iter()
                .flat_map(|it| [(it, 0), (it, 5)])
            {
                let loops = permuted(shape, order, element, pad);
                let (from, to) = (3, 0);
                let element = element as u32;
                let part = Part {
                    from,
                    to,
                    element,
                    to_element: element,
                    loops: &loops,
                };
                let reach = loops.iter().map(|it| (it.count - 1) * it.from);
                let bytes = from + reach.sum::<u64>() + u64::from(element);
                let window: Vec<u8> = (0..bytes).map(|at| (at * 37 + at / 251) as u8).collect();
                let mut expected = vec![0; part.filled_bytes() as usize];
                plainly(&window, part, &mut expected);
                let mut found = vec![0; expected.len()];
                scatter(&window, part, &mut found[..]);
                assert!(found == expected, "{shape:?} {order:?} {element} {pad}");
            }
        }
    }
}
