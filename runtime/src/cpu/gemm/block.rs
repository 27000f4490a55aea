//! The loops around the micro-kernel: blocks of C shared among threads, slabs of k, tiles.

use std::cell::RefCell;
use std::mem::size_of;

use bytemuck::{Pod, Zeroable};

use super::kernel::{Kernel, Output, Rows, Start, Tile};
use super::matrix::Target;
use super::{MatrixRef, Update};
use crate::cpu::for_tasks;

/// One product of a batch or a group.
pub(super) struct Problem<'a, T, C> {
    pub(super) a: MatrixRef<'a, T>,
    pub(super) b: MatrixRef<'a, T>,
    pub(super) c: Target<'a, C>,
}

impl<T: Copy, C: Copy> Problem<'_, T, C> {
    /// Computes the transpose instead where C is column-major, so that tiles leave along rows. The
    /// bits are the same: a product does not care for the order of its factors.
    fn along_rows(self) -> Self {
        if !self.c.is_column_major() {
            return self;
        }

        let (a, b) = (self.b.transposed(), self.a.transposed());
        Self {
            a,
            b,
            c: self.c.transposed(),
        }
    }

    fn multiply_adds(&self) -> usize {
        let rows_by_cols = self.c.rows().saturating_mul(self.c.cols());
        rows_by_cols.saturating_mul(self.a.cols())
    }
}

/// Bytes along k of a slab: with this a panel of B (48 columns), which is read again for each panel
/// of A (8 or 32 rows), stays in the second-level cache and half of a short one in the first.
const SLAB_BYTES: usize = 2048;

/// Most columns of a kernel's tile.
const MAX_TILE_COLS: usize = 64;

/// Most rows and columns of a block; the larger, the less often operands are packed again.
const MAX_EXTENT: usize = 528;

const SLAB_BUFFER_BYTES: usize = MAX_EXTENT * SLAB_BYTES;
const SUM_BUFFER_BYTES: usize = MAX_EXTENT * MAX_EXTENT * size_of::<f32>();

/// Products of fewer multiply-adds in all are not worth waking another thread.
const SERIAL_MULTIPLY_ADDS: usize = 1 << 19;

/// Computes `count` problems, blocks of them in parallel.
pub(super) fn multiply_all<'a, K, C>(
    kernel: K,
    count: usize,
    problem: &(dyn Fn(usize) -> Problem<'a, K::Input, C> + Sync),
    update: Update,
) where
    K: Kernel,
    C: Output<K::Sum> + 'a,
{
    let problem = |index| problem(index).along_rows();
    let work = (0..count)
        .map(|i| problem(i).multiply_adds())
        .fold(0, usize::saturating_add);

    if work < SERIAL_MULTIPLY_ADDS || rayon::current_num_threads() == 1 {
        let grid = Grid::largest(kernel);
        for index in 0..count {
            let problem = problem(index);
            (0..grid.blocks(&problem)).for_each(|i| grid.multiply(kernel, &problem, i, update));
        }
        return;
    }

    let grid = Grid::for_threads(kernel, || (0..count).map(problem));
    let mut ends = Vec::with_capacity(count);
    for index in 0..count {
        let before = ends.last().copied().unwrap_or(0);
        ends.push(before + grid.blocks(&problem(index)));
    }
    for_tasks(ends.last().copied().unwrap_or(0), &|task| {
        let index = ends.partition_point(|end| *end <= task);
        let first = index.checked_sub(1).map_or(0, |before| ends[before]);
        grid.multiply(kernel, &problem(index), task - first, update);
    });
}

/// How C is cut into blocks. It decides who computes an element, never how.
#[derive(Debug, Clone, Copy)]
struct Grid {
    tile: Tile,
    /// Most rows and columns of a block, multiples of the tile's.
    block: Tile,
}

impl Grid {
    fn largest<K: Kernel>(kernel: K) -> Self {
        let tile = kernel.tile();
        let most = MAX_EXTENT * size_of::<f32>() / size_of::<K::Sum>();
        let block = Tile {
            rows: most / tile.rows * tile.rows,
            cols: most / tile.cols * tile.cols,
        };

        Self { tile, block }
    }

    /// The largest blocks that still give each thread one, but none smaller than a few tiles.
    fn for_threads<'a, K, C, P>(kernel: K, problems: impl Fn() -> P) -> Self
    where
        K: Kernel,
        C: Copy + 'a,
        P: Iterator<Item = Problem<'a, K::Input, C>>,
    {
        let wanted = rayon::current_num_threads();
        let mut grid = Self::largest(kernel);

        while problems()
            .map(|problem| grid.blocks(&problem))
            .sum::<usize>()
            < wanted
        {
            let Tile { rows, cols } = grid.block;
            let (larger, step) = match rows >= cols {
                true => (&mut grid.block.rows, grid.tile.rows),
                false => (&mut grid.block.cols, grid.tile.cols),
            };
            if *larger <= 4 * step {
                break;
            }
            *larger = (*larger / 2).next_multiple_of(step);
        }
        grid
    }

    /// Blocks down and across, of about equal size.
    fn counts<T: Copy, C: Copy>(&self, problem: &Problem<'_, T, C>) -> (usize, usize) {
        let down = problem.c.rows().div_ceil(self.block.rows);
        let across = problem.c.cols().div_ceil(self.block.cols);
        (down, across)
    }

    fn blocks<T: Copy, C: Copy>(&self, problem: &Problem<'_, T, C>) -> usize {
        let (down, across) = self.counts(problem);
        down * across
    }

    /// Computes block `index` of a problem on this thread.
    fn multiply<K, C>(
        &self,
        kernel: K,
        problem: &Problem<'_, K::Input, C>,
        index: usize,
        update: Update,
    ) where
        K: Kernel,
        C: Output<K::Sum>,
    {
        let (down, across) = self.counts(problem);
        let (first_row, rows) = share(problem.c.rows(), down, index / across, self.tile.rows);
        let (first_col, cols) = share(problem.c.cols(), across, index % across, self.tile.cols);
        let depth = problem.a.cols();

        let part = Problem {
            a: problem.a.part([first_row, 0], [rows, depth]),
            b: problem.b.part([0, first_col], [depth, cols]),
            c: problem.c.part([first_row, first_col], [rows, cols]),
        };
        multiply_block(kernel, part, update);
    }
}

/// Share `index` of `extent` cut into `count` nearly equal shares, multiples of `step`: its start
/// and its length.
fn share(extent: usize, count: usize, index: usize, step: usize) -> (usize, usize) {
    let length = extent.div_ceil(count).next_multiple_of(step);
    let start = (index * length).min(extent);
    (start, length.min(extent - start))
}

/// 64 bytes, so that buffers begin on a cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

struct Buffers {
    a: Vec<CacheLine>,
    b: Vec<CacheLine>,
    sums: Vec<CacheLine>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers {
        a: buffer(SLAB_BUFFER_BYTES),
        b: buffer(MAX_TILE_COLS * SLAB_BYTES),
        sums: buffer(SUM_BUFFER_BYTES),
    });
}

fn buffer(bytes: usize) -> Vec<CacheLine> {
    vec![CacheLine::zeroed(); bytes.div_ceil(size_of::<CacheLine>())]
}

fn multiply_block<K, C>(kernel: K, block: Problem<'_, K::Input, C>, update: Update)
where
    K: Kernel,
    C: Output<K::Sum>,
{
    if block.a.cols() == 0 {
        return leave_empty_sum(block.c, update);
    }

    BUFFERS.with_borrow_mut(|buffers| {
        let a = bytemuck::cast_slice_mut(&mut buffers.a);
        let b = bytemuck::cast_slice_mut(&mut buffers.b);
        let sums = bytemuck::cast_slice_mut(&mut buffers.sums);

        // Everything below is inlined here: a function that is called instead would be compiled
        // for the baseline of the architecture, and micro-kernels with it.
        kernel.vectorize(
            #[inline(always)]
            || multiply_slabs(kernel, block, update, a, b, sums),
        );
    });
}

/// The product when k = 0.
fn leave_empty_sum<S: Zeroable + Copy, C: Output<S>>(c: Target<'_, C>, update: Update) {
    if update == Update::Add {
        return;
    }

    for row in 0..c.rows() {
        for col in 0..c.cols() {
            let element = c.part([row, col], [1, 1]);
            // SAFETY: the element lies in this block, which is this thread's alone.
            unsafe { element.update_row(0, &[S::zeroed()], |c, sum| *c = C::replace(sum)) };
        }
    }
}

#[inline(always)]
fn multiply_slabs<K, C>(
    kernel: K,
    block: Problem<'_, K::Input, C>,
    update: Update,
    a_panels: &mut [K::Packed],
    b_panel: &mut [K::Packed],
    sums: &mut [K::Sum],
) where
    K: Kernel,
    C: Output<K::Sum>,
{
    let Problem { a, b, c } = block;
    let (tile, depth) = (kernel.tile(), a.cols());
    let b_t = b.transposed();
    let slab_depth = SLAB_BYTES / size_of::<K::Packed>() * K::DEPTH_PER_UNIT;

    for slab in (0..depth).step_by(slab_depth) {
        let live_depth = slab_depth.min(depth - slab);
        let units = live_depth.next_multiple_of(K::DEPTH_STEP) / K::DEPTH_PER_UNIT;
        let start = if slab == 0 {
            Start::Zero
        } else {
            Start::Resume
        };
        let is_last = slab + live_depth == depth;

        let (a_len, b_len) = (tile.rows * units, tile.cols * units);
        let a_slab = a.part([0, slab], [a.rows(), live_depth]);
        let unpacked = K::unpacked(a_slab);
        if unpacked.is_none() {
            kernel.pack_a(a_slab, a_panels);
        }
        // With a single slab one tile of sums serves all, and stays in the first-level cache.
        let sum_stride = if is_last && slab == 0 { 0 } else { tile.len() };
        let mut next_sums = 0;
        for col in (0..c.cols()).step_by(tile.cols) {
            let cols = tile.cols.min(c.cols() - col);
            let b_panel = &mut b_panel[..b_len];
            kernel.pack_b(b_t.part([col, slab], [cols, live_depth]), b_panel);

            for (panel, row) in (0..c.rows()).step_by(tile.rows).enumerate() {
                let a_rows = match unpacked {
                    Some(Rows { units, stride }) => Rows {
                        units: &units[row * stride..],
                        stride,
                    },
                    None => Rows {
                        units: &a_panels[panel * a_len..][..a_len],
                        stride: units,
                    },
                };
                let live = Tile {
                    rows: tile.rows.min(c.rows() - row),
                    cols,
                };
                let sums = &mut sums[next_sums..][..tile.len()];
                next_sums += sum_stride;

                kernel.multiply(a_rows, b_panel, live, start, sums);
                if is_last {
                    let c = c.part([row, col], [live.rows, live.cols]);
                    store(c, sums, tile, update);
                }
            }
        }
    }
}

/// Brings the live part of a finished tile to C.
#[inline(always)]
fn store<S: Copy, C: Output<S>>(c: Target<'_, C>, sums: &[S], tile: Tile, update: Update) {
    for (row, sums) in sums.chunks_exact(tile.cols).take(c.rows()).enumerate() {
        let sums = &sums[..c.cols()];
        // SAFETY: row and columns lie in `c`, a part of the block that is this thread's alone.
        unsafe {
            match update {
                Update::Replace => c.update_row(row, sums, |c, sum| *c = C::replace(sum)),
                Update::Add => c.update_row(row, sums, |c, sum| *c = c.add(sum)),
            }
        }
    }
}
