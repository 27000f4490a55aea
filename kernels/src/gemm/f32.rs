//! The product in f32, on the ordinary arithmetic units.
//!
//! A CTA of 256 threads computes a tile of C and walks over k in steps of 8. Of each step it copies
//! a slice of A and one of B into shared memory, where every element is read by sixteen threads;
//! from there each thread takes its rows and columns into registers and multiplies them all with
//! each other: 8 + 8 loads for 64 multiply-adds (4 + 4 for 16 with the small tile).
//!
//! - **Slices lie k by k** (`slice[k][row]`), whichever way the matrix lies: a thread's four
//!   neighbouring rows are then one load of 16 bytes. A matrix that lies along k is copied by eight
//!   neighbouring threads a line, which write to lines below each other: padding of four words a
//!   line puts these into different banks.
//! - **A thread's rows are in blocks of four, 64 apart** (columns likewise): the 16 bytes that
//!   neighbours load are then neighbours, and no bank is asked twice. The flat tile has 8 by 32
//!   threads instead of 16 by 16, each with one block of rows and one of columns.
//! - **Two buffers**: while one step is computed the copies of the next are under way to the other
//!   buffer, past the registers. One barrier a step suffices: behind it all copies of this step
//!   have arrived, and nobody reads the other buffer any more.
//! - **128 registers a thread**, so that two CTAs share a multiprocessor and one computes while the
//!   other waits at its barrier. C is written word by word, every fourth word of a row by one
//!   instruction, which touches four times the sectors that it fills: 16 bytes at once would tie
//!   four sums each to neighbouring registers throughout the loop, and some would not fit. The L2
//!   cache joins the words, and an element of C is written once for 2 K FLOPs.
//! - **Edges**: what lies outside of A or B is read as 0; the product does not notice. M, N and K
//!   are below 2^31.

use super::split_k::Part;
use super::tiles::Place;
use super::{Call, Matrix, Order, Tile};
use crate::assembler::{
    AddressVariable, F32, GlobalAddress, Kernel, Launch, Pred, Ptx, S32, SharedAddress, Target,
    U32, U64, Variable, Variant,
};

/// Threads of a CTA: 16 by 16.
const THREADS: u32 = 256;

/// Of k, in one step.
const DEPTH: u32 = 8;

/// Words between the lines of a slice.
const PADDING: u32 = 4;

/// C = A B or C += A B in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmF32 {
    /// How A lies.
    pub a: Order,
    /// How B lies.
    pub b: Order,
    /// What a CTA computes.
    pub tile: Tile,
    /// Whether the product is added to C.
    pub accumulate: bool,
}

impl GemmF32 {
    /// How to launch it for `batch` products; `None` for an empty C.
    pub fn launch(&self, m: u32, n: u32, batch: u32) -> Option<Launch> {
        self.tile.launch(m, n, batch, THREADS)
    }

    /// An empty kernel with the threads of a CTA.
    pub(super) fn kernel(&self, entry: String) -> Kernel {
        Kernel::new(entry, Target::Sm80, THREADS).ctas_per_sm(2)
    }

    /// The tile of one product whose first row and column are `origin`. All threads take part. Where
    /// C begins is asked behind the loop, in which it would take registers.
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
        let in_a = Strip {
            matrix: call.a,
            first: origin[0],
            extent: call.m,
            along_k: along_k[0],
        };
        let in_b = Strip {
            matrix: call.b,
            first: origin[1],
            extent: call.n,
            along_k: along_k[1],
        };
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
    fn ptx(&self) -> Ptx {
        let k = &self.kernel(self.entry());
        let call = Call::parameters(k);
        let place = Place::of_cta(k, &call, self.tile);
        let part = Part::parameters(k, &call, place.batch);
        let c = call.c;
        let call = part.of(call, [self.a, self.b], 4);
        let c = || c.of_batch(place.batch, 4);
        self.multiply(k, &call, [place.row, place.column], c);
        k.finish()
    }

    fn entry(&self) -> String {
        let (a, b, tile) = (self.a.letter(), self.b.letter(), self.tile.name());
        let accumulate = if self.accumulate { "_accumulate" } else { "" };
        format!("gemm_f32_{a}{b}_{tile}x{DEPTH}{accumulate}")
    }
}

/// The rows of a tile, or its columns, and how threads share them.
#[derive(Clone, Copy)]
struct Side {
    /// How many there are.
    length: u32,
    /// Threads beside each other. Each has blocks of four that lie four times as many apart.
    threads: u32,
}

impl Side {
    /// Rows and columns. There are 16 by 16 threads, but 8 by 32 where the tile is flat.
    fn of(tile: Tile) -> [Side; 2] {
        let down = if tile == Tile::Flat { 8 } else { 16 };
        let side = |length, threads| Side { length, threads };
        [
            side(tile.rows(), down),
            side(tile.columns(), THREADS / down),
        ]
    }

    /// Rows (columns) of a thread.
    fn count(self) -> u32 {
        self.length / self.threads
    }

    /// The place of one of a thread's rows (columns), from its first on.
    fn place(self, i: u32) -> u32 {
        i / 4 * (4 * self.threads) + i % 4
    }

    /// Words of a line of a slice.
    fn pitch(self) -> u32 {
        self.length + PADDING
    }

    /// Bytes of a slice.
    fn slice_bytes(self) -> u32 {
        4 * DEPTH * self.pitch()
    }
}

/// What of A or B a tile needs: rows, or columns, from `first` on, of which there are `extent`.
#[derive(Clone, Copy)]
struct Strip<'k> {
    matrix: Matrix<'k>,
    first: U32<'k>,
    extent: U32<'k>,
    along_k: bool,
}

/// A slice of A or B in shared memory, and what a thread copies of it.
///
/// A thread's elements lie at even distances, in the matrix, in the slice, and in either the rows
/// (columns) or in k. So one address and a few distances describe them all.
struct Slice<'k> {
    side: Side,
    shared: SharedAddress<'k>,
    /// Where this thread's first element goes.
    to: SharedAddress<'k>,
    /// Where its first element of the next slice is.
    from: AddressVariable<'k>,
    /// Elements of a thread.
    count: u32,
    /// From one element to the next, in rows (columns) and in k.
    step: [u32; 2],
    /// From one element to the next, in bytes.
    step_bytes: U64<'k>,
    /// From one slice to the next, in bytes.
    slice_bytes: U64<'k>,
    /// How many rows (columns) there are from its first element on.
    lines: S32<'k>,
    /// The k of its first element in the slice.
    depth: S32<'k>,
}

impl<'k> Slice<'k> {
    /// Of a strip; the first of its two buffers is at `shared`.
    #[track_caller]
    fn new(k: &'k Kernel, side: Side, strip: Strip<'k>, shared: SharedAddress<'k>) -> Slice<'k> {
        let Strip {
            matrix,
            first,
            extent,
            along_k,
        } = strip;
        let (thread, length) = (k.thread(), side.length);

        // Neighbouring threads copy neighbours in memory.
        let (line, depth, step) = match along_k {
            true => (thread >> 3, thread & 7, [THREADS / DEPTH, 0]),
            false => {
                let shift = length.trailing_zeros();
                (
                    thread & (length - 1),
                    thread >> shift,
                    [0, THREADS / length],
                )
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

    /// Copies this thread's elements of the next slice, zeros outside of the matrix; `left` is how
    /// many k there are from its first on.
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

    /// At one k, the elements of a thread whose first block begins at `place` of the slice.
    #[track_caller]
    fn fragment(&self, place: SharedAddress<'k>, depth: u32) -> Vec<F32<'k>> {
        let line = place.offset(4 * depth * self.side.pitch());
        let block = |i| {
            let first = self.side.place(4 * i);
            line.offset(4 * first).load_vector::<f32, 4>()
        };
        (0..self.side.count() / 4).flat_map(block).collect()
    }
}

/// A thread's part of C: blocks of four by four.
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
            let pairs = rows
                .iter()
                .flat_map(|row| columns.iter().map(move |x| (row, x)));
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
            let inside = rows_left.gt(rows.place(i) as i32);
            let places: Vec<(GlobalAddress<'k>, Pred<'k>)> = (0..columns.count())
                .map(|j| columns.place(j))
                .map(|column| {
                    let inside = inside & columns_left.gt(column as i32);
                    (to.offset(4 * i64::from(column)), inside)
                })
                .collect();
            store(&places, sums, accumulate);
            to = to.byte_add(next_row * u64::from(rows.place(i + 1) - rows.place(i)));
        }
    }
}

/// Stores the sums of a row. What is added to is loaded before the first store: a load behind a
/// store would wait for it, as they might be of one address.
#[track_caller]
fn store<'k>(
    places: &[(GlobalAddress<'k>, Pred<'k>)],
    sums: &[Variable<'k, f32>],
    accumulate: bool,
) {
    let totals: Vec<F32<'k>> = match accumulate {
        true => {
            let before = places.iter().map(|(to, inside)| to.load_if::<f32>(*inside));
            let before: Vec<F32<'k>> = before.collect();
            before
                .iter()
                .zip(sums)
                .map(|(before, sum)| *before + **sum)
                .collect()
        }
        false => sums.iter().map(|sum| **sum).collect(),
    };
    for ((to, inside), total) in places.iter().zip(totals) {
        to.store_if(*inside, total);
    }
}
