//! f32 GEMM on the FMA units.
//!
//! A CTA of 256 threads computes a tile of C and iterates over k in steps of 8. In each step it
//! copies a slice of A and a slice of B into shared memory, where sixteen threads read each
//! element. Each thread loads its rows and columns into registers and multiplies all pairs: 8 + 8
//! loads for 64 multiply-adds (4 + 4 for 16 in the small tile).
//!
//! - **Slices are stored k-major** (`slice[k][row]`), whatever the order of the matrix, so four
//!   consecutive rows of a thread are one 16-byte load. If the matrix is contiguous along k, eight
//!   consecutive threads copy eight k of one row and write them to eight slice rows. Four words of
//!   padding per slice row put these into different banks.
//! - **A thread's rows are blocks of four, 64 apart** (columns likewise). The 16-byte loads of
//!   consecutive threads are then consecutive, without bank conflicts. The flat tile has 8 x 32
//!   threads instead of 16 x 16, each with one block of rows and one of columns.
//! - **Two buffers**: while one step is computed, `cp.async` fills the other buffer. One barrier
//!   per step suffices: after it, all copies of this step have arrived and no thread still reads
//!   the other buffer.
//! - **128 registers per thread**, so two CTAs fit on a multiprocessor and one computes while the
//!   other waits at its barrier. C is stored word by word. A store instruction writes every fourth
//!   word of a row, so it touches four times as many sectors as it fills. 16-byte stores would tie
//!   four accumulators to consecutive registers throughout the loop, and some would spill. The L2
//!   cache merges the words, and each element of C is written once per 2 K FLOPs.
//! - **Edges**: elements outside A or B are read as 0 and do not change the result. M, N and K are
//!   less than 2^31.

use super::split_k::{Part, SplitKArguments};
use super::tiles::CtaTile;
use super::{Call, Matrix, Order, Tile};
use crate::assembler::{
    AddressVariable, F32, GlobalAddress, Kernel, Launch, Pred, Ptx, S32, SharedAddress, Target,
    U32, U64, Variable, Variant,
};

/// Threads per CTA.
const THREADS: u32 = 256;

/// Elements of k per step.
const DEPTH: u32 = 8;

/// Padding words per slice row.
const PADDING: u32 = 4;

/// C = A B or C += A B in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmF32 {
    /// Storage order of A.
    pub a: Order,
    /// Storage order of B.
    pub b: Order,
    /// The tile that a CTA computes.
    pub tile: Tile,
    /// Whether the product is added to C.
    pub accumulate: bool,
}

impl GemmF32 {
    /// The launch for `batch` products; `None` if C is empty.
    pub fn launch(&self, m: u32, n: u32, batch: u32) -> Option<Launch> {
        self.tile.launch(m, n, batch, THREADS)
    }

    /// An empty kernel with the right CTA size and register limit.
    pub(super) fn kernel(&self, entry: String) -> Kernel {
        Kernel::new(entry, Target::Sm80, THREADS).ctas_per_sm(2)
    }

    /// Computes the tile at `origin`. All threads call it. `c` is called after the main loop, so
    /// that the address of C does not occupy registers in it.
    pub(super) fn multiply<'k>(
        &self,
        k: &'k Kernel,
        call: &Call<'k>,
        origin: [U32<'k>; 2],
        c: impl FnOnce() -> Matrix<'k>,
    ) {
        let [rows, columns] = Side::of(self.tile);
        let along_k = [self.a == Order::RowMajor, self.b == Order::ColumnMajor];
        let buffer_bytes = rows.slice_bytes() + columns.slice_bytes();
        let shared = k.shared::<f32>(2 * buffer_bytes / 4);
        let in_a = Strip { matrix: call.a, first: origin[0], extent: call.m, along_k: along_k[0] };
        let in_b = Strip { matrix: call.b, first: origin[1], extent: call.n, along_k: along_k[1] };
        let slice_a = Slice::new(k, rows, in_a, shared);
        let slice_b = Slice::new(k, columns, in_b, shared.offset(rows.slice_bytes()));
        let sums = Sums::new(k, [rows, columns]);

        let copy = |buffer: U32<'_>, left: U32<'_>| {
            slice_a.copy_next(buffer, left.signed());
            slice_b.copy_next(buffer, left.signed());
            k.commit_copies();
        };
        let buffer = k.var(0u32);
        copy(*buffer, call.k);
        k.for_range(0u32, call.k, DEPTH, |first| {
            k.wait_for_copies(0);
            k.barrier();
            let current = buffer.get();
            buffer.set(current ^ buffer_bytes);
            copy(*buffer, call.k - first - DEPTH);
            sums.add_products(&slice_a, &slice_b, current);
        });
        k.wait_for_copies(0);

        sums.store(c(), call, origin, self.accumulate);
    }
}

impl Variant for GemmF32 {
    type Arguments = SplitKArguments;

    fn ptx(&self) -> Ptx {
        let k = &self.kernel(self.entry());
        let parameters = self.parameters(k);
        let call = Call::new(parameters.product);
        let cta = CtaTile::of_cta(k, &call, self.tile);
        let part = Part::new(&parameters, cta.batch);
        let c = call.c;
        let call = part.of(call, [self.a, self.b], 4);
        let c = || c.of_batch(cta.batch, 4);
        self.multiply(k, &call, [cta.row, cta.column], c);
        k.finish()
    }

    fn entry(&self) -> String {
        let (a, b, tile) = (self.a.letter(), self.b.letter(), self.tile.name());
        let accumulate = if self.accumulate { "_accumulate" } else { "" };
        format!("gemm_f32_{a}{b}_{tile}x{DEPTH}{accumulate}")
    }
}

/// The rows of a tile, or its columns, and their distribution over threads.
#[derive(Clone, Copy)]
struct Side {
    /// The number of rows (columns).
    length: u32,
    /// Threads that share them. Each owns blocks of four, `4 * threads` apart.
    threads: u32,
}

impl Side {
    /// The rows and the columns of a tile. There are 16 by 16 threads, or 8 by 32 in the flat tile.
    fn of(tile: Tile) -> [Side; 2] {
        let down = if tile == Tile::Flat { 8 } else { 16 };
        let side = |length, threads| Side { length, threads };
        [side(tile.rows(), down), side(tile.columns(), THREADS / down)]
    }

    /// Rows (columns) per thread.
    fn count(self) -> u32 {
        self.length / self.threads
    }

    /// The offset of a thread's row (column) `i` from its first.
    fn offset(self, i: u32) -> u32 {
        i / 4 * (4 * self.threads) + i % 4
    }

    /// Words per slice row.
    fn pitch(self) -> u32 {
        self.length + PADDING
    }

    /// Bytes per slice.
    fn slice_bytes(self) -> u32 {
        4 * DEPTH * self.pitch()
    }
}

/// The part of A or B that a tile needs: its rows (columns) begin at `first`. The matrix has
/// `extent` of them.
#[derive(Clone, Copy)]
struct Strip<'k> {
    matrix: Matrix<'k>,
    first: U32<'k>,
    extent: U32<'k>,
    along_k: bool,
}

/// A slice of A or B in shared memory, and the elements that a thread copies.
///
/// A thread's elements are equally spaced in the matrix and in the slice, so an address and two
/// steps describe them all.
struct Slice<'k> {
    side: Side,
    shared: SharedAddress<'k>,
    /// The destination of this thread's first element.
    to: SharedAddress<'k>,
    /// The source of this thread's first element of the next slice.
    from: AddressVariable<'k>,
    /// Elements that a thread copies per slice.
    count: u32,
    /// From one element to the next, in rows (columns) and in k.
    step: [u32; 2],
    /// From one element to the next, in bytes.
    step_bytes: U64<'k>,
    /// From one slice to the next, in bytes.
    slice_bytes: U64<'k>,
    /// The number of rows (columns) of the matrix from this thread's first element on.
    lines: S32<'k>,
    /// The k of this thread's first element in the slice.
    depth: S32<'k>,
}

impl<'k> Slice<'k> {
    /// The slices of a strip. The first of the two buffers is at `shared`.
    #[track_caller]
    fn new(k: &'k Kernel, side: Side, strip: Strip<'k>, shared: SharedAddress<'k>) -> Slice<'k> {
        let Strip { matrix, first, extent, along_k } = strip;
        let (thread, length) = (k.thread(), side.length);

        // Neighboring threads copy neighbors in memory.
        let (line, depth, step) = match along_k {
            true => (thread >> 3, thread & 7, [THREADS / DEPTH, 0]),
            false => {
                let shift = length.trailing_zeros();
                (thread & (length - 1), thread >> shift, [0, THREADS / length])
            }
        };
        let line_in_matrix = first + line;
        let (from, step_bytes, slice_bytes) = match along_k {
            true => (
                matrix.element(line_in_matrix, depth, 4),
                matrix.leading * u64::from(4 * step[0]),
                k.constant(u64::from(4 * DEPTH)),
            ),
            false => (
                matrix.element(depth, line_in_matrix, 4),
                matrix.leading * u64::from(4 * step[1]),
                matrix.leading * u64::from(4 * DEPTH),
            ),
        };
        Slice {
            side,
            shared,
            to: shared.element::<f32>(depth.mad(side.pitch(), line)),
            from: from.to_variable(),
            count: length * DEPTH / THREADS,
            step,
            step_bytes,
            slice_bytes,
            lines: (extent - line_in_matrix).signed(),
            depth: depth.signed(),
        }
    }

    /// Copies this thread's elements of the next slice, with zeros outside the matrix. `left` is
    /// the extent of k from the start of the slice.
    #[track_caller]
    fn copy_next(&self, buffer: U32<'k>, left: S32<'k>) {
        let to = self.to.byte_add(buffer);
        let left = left - self.depth;
        let mut from = self.from.get();
        for i in 0..self.count {
            let [line, depth] = self.step.map(|step| i * step);
            let inside = self.lines.gt(line as i32) & left.gt(depth as i32);
            let to = to.offset(4 * (line + depth * self.side.pitch()));
            to.copy_async::<4>(from, inside);
            from = from.byte_add(self.step_bytes);
        }
        self.from.advance(self.slice_bytes);
    }

    /// A thread's elements at one k. Its first block begins at `start` in the slice.
    #[track_caller]
    fn fragment(&self, start: SharedAddress<'k>, depth: u32) -> Vec<F32<'k>> {
        let line = start.offset(4 * depth * self.side.pitch());
        let block = |i| {
            let first = self.side.offset(4 * i);
            line.offset(4 * first).load_vector::<f32, 4>()
        };
        (0..self.side.count() / 4).flat_map(block).collect()
    }
}

/// The accumulators of a thread: blocks of four by four elements of C.
struct Sums<'k> {
    /// Rows and columns of the tile.
    sides: [Side; 2],
    across: U32<'k>,
    down: U32<'k>,
    sums: Vec<Variable<'k, f32>>,
}

impl<'k> Sums<'k> {
    #[track_caller]
    fn new(k: &'k Kernel, sides: [Side; 2]) -> Sums<'k> {
        let [rows, columns] = sides;
        let count = rows.count() * columns.count();
        Sums {
            sides,
            across: k.thread() & (columns.threads - 1),
            down: k.thread() >> columns.threads.trailing_zeros(),
            sums: (0..count).map(|_| k.var(0.0_f32)).collect(),
        }
    }

    #[track_caller]
    fn add_products(&self, a: &Slice<'k>, b: &Slice<'k>, buffer: U32<'k>) {
        let of_rows = a.shared.element::<f32>(self.down * 4).byte_add(buffer);
        let of_columns = b.shared.element::<f32>(self.across * 4).byte_add(buffer);
        for depth in 0..DEPTH {
            let rows = a.fragment(of_rows, depth);
            let columns = b.fragment(of_columns, depth);
            let pairs = rows.iter().flat_map(|row| columns.iter().map(move |x| (row, x)));
            for (sum, (row, column)) in self.sums.iter().zip(pairs) {
                sum.add_product(*row, *column);
            }
        }
    }

    #[track_caller]
    fn store(&self, c: Matrix<'k>, call: &Call<'k>, origin: [U32<'k>; 2], accumulate: bool) {
        let (row, column) = (origin[0] + self.down * 4, origin[1] + self.across * 4);
        let rows_left = (call.m - row).signed();
        let columns_left = (call.n - column).signed();
        let mut to = c.element(row, column, 4);
        let next_row = c.leading * 4;

        let [rows, columns] = self.sides;
        for (i, sums) in (0..).zip(self.sums.chunks_exact(columns.count() as usize)) {
            let inside = rows_left.gt(rows.offset(i) as i32);
            let targets: Vec<(GlobalAddress<'k>, Pred<'k>)> = (0..columns.count())
                .map(|j| columns.offset(j))
                .map(|column| {
                    let inside = inside & columns_left.gt(column as i32);
                    (to.offset(4 * i64::from(column)), inside)
                })
                .collect();
            store(&targets, sums, accumulate);
            to = to.byte_add(next_row * u64::from(rows.offset(i + 1) - rows.offset(i)));
        }
    }
}

/// Stores the accumulators of a row. All elements of C are loaded before the first store. A load
/// after a store would wait for it, since the addresses may alias.
#[track_caller]
fn store<'k>(
    targets: &[(GlobalAddress<'k>, Pred<'k>)],
    sums: &[Variable<'k, f32>],
    accumulate: bool,
) {
    let totals: Vec<F32<'k>> = match accumulate {
        true => {
            let before = targets.iter().map(|(to, inside)| to.load_if::<f32>(*inside));
            let before: Vec<F32<'k>> = before.collect();
            before.iter().zip(sums).map(|(before, sum)| *before + **sum).collect()
        }
        false => sums.iter().map(|sum| **sum).collect(),
    };
    for ((to, inside), total) in targets.iter().zip(totals) {
        to.store_if(*inside, total);
    }
}
