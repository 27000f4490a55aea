//! The loops around the micro-kernel: blocks of C divided among threads, slabs of k, tiles.

use std::cell::RefCell;
use std::mem::size_of;

use bytemuck::{Pod, Zeroable};

use super::kernel::{Kernel, Rows, Start, Tile};
use super::matrix::Target;
use super::output::Sum;
use super::{MatrixRef, Update};
use crate::cpu::{for_tasks, threads};

/// One product of a batch or a group.
pub(super) struct Problem<'a, T, S> {
    pub(super) a: MatrixRef<'a, T>,
    pub(super) b: MatrixRef<'a, T>,
    pub(super) c: Target<'a, S>,
}

impl<T: Copy, S: Sum> Problem<'_, T, S> {
    /// Returns the transposed problem C^T = B^T A^T if C is column-major, so that tiles are stored
    /// along contiguous rows. The bits are equal, because multiplication is commutative.
    fn along_rows(self) -> Self {
        if !self.c.is_column_major() {
            return self;
        }

        let (a, b) = (self.b.transposed(), self.a.transposed());
        Self { a, b, c: self.c.transposed() }
    }

    fn multiply_adds(&self) -> usize {
        let rows_by_cols = self.c.rows().saturating_mul(self.c.cols());
        rows_by_cols.saturating_mul(self.a.cols())
    }
}

/// Bytes along k of a slab. A panel of B (16 to 64 columns) is read once per panel of A (6 to 32
/// rows). With this depth it stays in the L2 cache.
const SLAB_BYTES: usize = 2048;

/// As [`SLAB_BYTES`], for a single row of C: with this depth a panel stays in the L1 cache.
const ROW_SLAB_BYTES: usize = 256;

/// The most columns of a micro-kernel's tile.
const MAX_TILE_COLS: usize = 64;

/// The most rows and columns of a block. Larger blocks pack operands less often.
const MAX_EXTENT: usize = 528;

/// Padding between panels of A, in bytes. Without it, panels would map to the same cache sets and
/// evict each other while they are written together.
const PANEL_GAP: usize = 64;

const A_BUFFER_BYTES: usize = MAX_EXTENT * (SLAB_BYTES + PANEL_GAP);
const SUM_BUFFER_BYTES: usize = MAX_EXTENT * MAX_EXTENT * size_of::<f32>();

/// The cost of packing one element, in multiply-adds.
const PACKING_COST: usize = 10;

/// Products with fewer multiply-adds run on the calling thread.
const SERIAL_MULTIPLY_ADDS: usize = 1 << 19;

/// Computes `count` products. The blocks of all products run in parallel.
pub(super) fn multiply_all<'a, K: Kernel>(
    kernel: K,
    count: usize,
    problem: &(dyn Fn(usize) -> Problem<'a, K::Input, K::Sum> + Sync),
    update: Update,
) {
    let problem = |index| problem(index).along_rows();
    let work = (0..count).map(|i| problem(i).multiply_adds()).fold(0, usize::saturating_add);

    let threads = match work < SERIAL_MULTIPLY_ADDS {
        true => 1,
        false => threads(),
    };
    if threads == 1 {
        for index in 0..count {
            let problem = problem(index);
            let grid = Grid::new(kernel, &problem, 1);
            (0..grid.blocks()).for_each(|i| grid.multiply(kernel, &problem, i, update));
        }
        return;
    }

    let mut grids = Vec::with_capacity(count);
    let mut ends = Vec::with_capacity(count);
    for index in 0..count {
        let problem = problem(index);
        let part = problem.multiply_adds() as f64 / work as f64;
        let threads = (threads as f64 * part).ceil() as usize;
        let grid = Grid::new(kernel, &problem, threads.max(1));
        let before = ends.last().copied().unwrap_or(0);
        ends.push(before + grid.blocks());
        grids.push(grid);
    }
    for_tasks(ends.last().copied().unwrap_or(0), &|task| {
        let index = ends.partition_point(|end| *end <= task);
        let first = index.checked_sub(1).map_or(0, |before| ends[before]);
        grids[index].multiply(kernel, &problem(index), task - first, update);
    });
}

/// The grid of blocks of C. It does not affect the bits of an element.
#[derive(Debug, Clone, Copy)]
struct Grid {
    down: usize,
    across: usize,
}

impl Grid {
    /// The grid with the shortest estimated time on `threads` threads.
    fn new<K: Kernel>(kernel: K, problem: &Problem<'_, K::Input, K::Sum>, threads: usize) -> Self {
        let tile = kernel.tile();
        let (rows, cols) = (problem.c.rows(), problem.c.cols());
        if rows == 0 || cols == 0 {
            return Self { down: 0, across: 0 };
        }

        let most = MAX_EXTENT * size_of::<f32>() / size_of::<K::Sum>();
        // If rows of A are not packed, a block can have any number of rows, and B is packed less
        // often.
        let buffers_rows =
            problem.a.cols() > slab_depth::<K>(SLAB_BYTES) || K::unpacked(problem.a).is_none();
        let most_rows = if buffers_rows { most } else { rows.max(most) };
        let least_down = rows.div_ceil(most_rows / tile.rows * tile.rows);
        let least_across = cols.div_ceil(most / tile.cols * tile.cols);
        let most_down = (least_down + threads).min(rows.div_ceil(tile.rows));
        let most_across = cols.div_ceil(tile.cols);
        let grids = (least_down..=most_down).map(|down| {
            let across = threads.div_ceil(down).min(most_across);
            let across = across.max(least_across);
            Self { down, across }
        });
        let time = |grid: &Self| {
            let (_, rows) = block_range(rows, grid.down, 0, tile.rows);
            let (_, cols) = block_range(cols, grid.across, 0, tile.cols);
            let block = rows * cols.next_multiple_of(tile.cols) + PACKING_COST * (rows + cols);
            grid.blocks().div_ceil(threads) * block
        };
        grids.min_by_key(time).unwrap_or(Self { down: 1, across: 1 })
    }

    fn blocks(self) -> usize {
        self.down * self.across
    }

    /// Computes block `index` of a problem on this thread.
    fn multiply<K: Kernel>(
        self,
        kernel: K,
        problem: &Problem<'_, K::Input, K::Sum>,
        index: usize,
        update: Update,
    ) {
        let (tile, depth) = (kernel.tile(), problem.a.cols());
        let (down, across) = (index / self.across, index % self.across);
        let (first_row, rows) = block_range(problem.c.rows(), self.down, down, tile.rows);
        let (first_col, cols) = block_range(problem.c.cols(), self.across, across, tile.cols);

        let part = Problem {
            a: problem.a.part([first_row, 0], [rows, depth]),
            b: problem.b.part([0, first_col], [depth, cols]),
            c: problem.c.part([first_row, first_col], [rows, cols]),
        };
        multiply_block(kernel, part, update);
    }
}

/// Start and length of range `index` when `extent` is divided into `count` nearly equal ranges,
/// whose starts are multiples of `step`.
fn block_range(extent: usize, count: usize, index: usize, step: usize) -> (usize, usize) {
    let length = extent.div_ceil(count).next_multiple_of(step);
    let start = (index * length).min(extent);
    (start, length.min(extent - start))
}

/// Elements along k of a slab.
fn slab_depth<K: Kernel>(slab_bytes: usize) -> usize {
    slab_bytes / size_of::<K::Packed>() * K::DEPTH_PER_UNIT
}

/// 64 bytes, to align buffers to cache lines.
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
        a: buffer(A_BUFFER_BYTES),
        b: buffer(MAX_TILE_COLS * SLAB_BYTES),
        sums: buffer(SUM_BUFFER_BYTES),
    });
}

fn buffer(bytes: usize) -> Vec<CacheLine> {
    vec![CacheLine::zeroed(); bytes.div_ceil(size_of::<CacheLine>())]
}

fn multiply_block<K: Kernel>(kernel: K, block: Problem<'_, K::Input, K::Sum>, update: Update) {
    if block.a.cols() == 0 {
        return store_empty_product(block.c, update);
    }

    BUFFERS.with_borrow_mut(|buffers| {
        let mut memory = Memory {
            a: bytemuck::cast_slice_mut(&mut buffers.a),
            b: bytemuck::cast_slice_mut(&mut buffers.b),
            sums: bytemuck::cast_slice_mut(&mut buffers.sums),
        };

        // Everything below, including the micro-kernels, must be inlined. A function that is not
        // inlined would be compiled without the kernel's vector instructions.
        // The two products are functions of their own: in one function, the compiler keeps the
        // accumulators of the general one in memory.
        match block.c.rows() {
            1 => kernel.vectorize(
                #[inline(always)]
                || multiply_one_row(kernel, block, update, &mut memory),
            ),
            _ => kernel.vectorize(
                #[inline(always)]
                || multiply_slabs::<SLAB_BYTES, K>(kernel, block, update, &mut memory),
            ),
        }
    });
}

/// The buffers of a thread, as a kernel uses them.
struct Memory<'a, K: Kernel> {
    /// Panels of A.
    a: &'a mut [K::Packed],
    /// A panel of B.
    b: &'a mut [K::Packed],
    sums: &'a mut [K::Sum],
}

/// The product of a single row. Each element of B is used once, so B is read in place if the kernel
/// can, and else packed in slabs that stay in the L1 cache.
#[inline(always)]
fn multiply_one_row<K: Kernel>(
    kernel: K,
    block: Problem<'_, K::Input, K::Sum>,
    update: Update,
    memory: &mut Memory<'_, K>,
) {
    let Problem { a, b, c } = block;
    let (tile, depth) = (kernel.tile(), a.cols());
    for col in (0..c.cols()).step_by(tile.cols) {
        let cols = tile.cols.min(c.cols() - col);
        let part =
            Problem { a, b: b.part([0, col], [depth, cols]), c: c.part([0, col], [1, cols]) };
        let sums = &mut memory.sums[..tile.len()];
        match kernel.multiply_row(a, part.b.transposed(), &mut sums[..cols]) {
            // SAFETY: a part of the block, which only this thread writes.
            Some(()) => unsafe { part.c.update(sums, tile.cols, update) },
            None => multiply_slabs::<ROW_SLAB_BYTES, K>(kernel, part, update, memory),
        }
    }
}

/// Stores the product for k = 0.
fn store_empty_product<S: Sum>(c: Target<'_, S>, update: Update) {
    if update == Update::Add {
        return;
    }

    for row in 0..c.rows() {
        for col in 0..c.cols() {
            let element = c.part([row, col], [1, 1]);
            // SAFETY: the element is in this block, which only this thread writes.
            unsafe { element.update(&[S::zeroed()], 1, update) };
        }
    }
}

#[inline(always)]
fn multiply_slabs<const SLAB: usize, K: Kernel>(
    kernel: K,
    block: Problem<'_, K::Input, K::Sum>,
    update: Update,
    memory: &mut Memory<'_, K>,
) {
    let Memory { a: a_panels, b: b_panel, sums } = memory;
    let Problem { a, b, c } = block;
    let (tile, depth) = (kernel.tile(), a.cols());
    let b_t = b.transposed();

    for slab in (0..depth).step_by(slab_depth::<K>(SLAB)) {
        let live_depth = slab_depth::<K>(SLAB).min(depth - slab);
        let units = live_depth.next_multiple_of(K::DEPTH_STEP) / K::DEPTH_PER_UNIT;
        let start = if slab == 0 { Start::Zero } else { Start::Resume };
        let is_last = slab + live_depth == depth;

        let (a_len, b_len) = (tile.rows * units, tile.cols * units);
        let a_stride = a_len + PANEL_GAP / size_of::<K::Packed>();
        let a_slab = a.part([0, slab], [a.rows(), live_depth]);
        let unpacked = K::unpacked(a_slab);
        let order = match unpacked {
            Some(rows) => rows.order,
            None => kernel.pack_a(a_slab, a_panels, a_stride),
        };
        // With a single slab, all tiles share one tile of accumulators, which stays in the L1
        // cache.
        let sum_stride = if is_last && slab == 0 { 0 } else { tile.len() };
        let mut next_sums = 0;
        for col in (0..c.cols()).step_by(tile.cols) {
            let cols = tile.cols.min(c.cols() - col);
            let b_panel = &mut b_panel[..b_len];
            kernel.pack_b(b_t.part([col, slab], [cols, live_depth]), b_panel);

            let next_cols = tile.cols.min(c.cols() - col - cols);
            let next_b = b_t.part([col + cols, slab], [next_cols, live_depth]);
            let panels = c.rows().div_ceil(tile.rows);
            for (panel, row) in (0..c.rows()).step_by(tile.rows).enumerate() {
                // With a single panel, a prefetch would come too late.
                if panels > 1 {
                    next_b.prefetch(panel, panels);
                }
                if col == 0 && unpacked.is_some() {
                    let ahead = (row + tile.rows).min(a.rows());
                    let rows = tile.rows.min(a.rows() - ahead);
                    a_slab.part([ahead, 0], [rows, live_depth]).prefetch(0, 1);
                }
                let a_rows = match unpacked {
                    Some(rows) => rows.after(row),
                    None => Rows { units: &a_panels[panel * a_stride..][..a_len], order },
                };
                let live = Tile { rows: tile.rows.min(c.rows() - row), cols };
                let sums = &mut sums[next_sums..][..tile.len()];
                next_sums += sum_stride;

                kernel.multiply(a_rows, b_panel, live, start, sums);
                if is_last {
                    let c = c.part([row, col], [live.rows, live.cols]);
                    // SAFETY: a part of the block, which only this thread writes.
                    unsafe { c.update(sums, tile.cols, update) };
                }
            }
        }
    }
}
