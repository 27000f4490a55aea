//! A tile of rows: copied to shared memory, loaded into fragments, and stored back.

use super::super::cta_tile::Rows;
use super::THREADS;
use crate::assembler::{
    AddressVariable, Bf16, Bf16x2, F32, GlobalAddress, Kernel, MatrixRow, Pair, Pred, S32,
    SharedAddress, U32, U64, Variable,
};

/// Bytes of a row that eight threads copy. The eight chunks of 16 bytes touch every bank once.
const GROUP: u32 = 128;

/// Rows that the CTA copies together.
const PASS: u32 = THREADS / 8;

/// The layout of rows of `head_dim` bf16 in shared memory. They are padded with zeros to whole
/// groups, plus one chunk, so that consecutive rows begin four banks apart.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub(super) head_dim: u32,
}

impl Lines {
    fn groups(self) -> u32 {
        (2 * self.head_dim).div_ceil(GROUP)
    }

    /// Bytes from one row to the next.
    pub(super) fn pitch(self) -> u32 {
        self.groups() * GROUP + 16
    }

    /// Steps of 16 features in a product over features.
    pub(super) fn steps(self) -> u32 {
        self.head_dim.div_ceil(16)
    }
}

/// One or two buffers of `rows` rows.
#[derive(Clone, Copy)]
pub(super) struct Tile<'k> {
    k: &'k Kernel,
    pub(super) lines: Lines,
    pub(super) rows: u32,
    shared: SharedAddress<'k>,
}

impl<'k> Tile<'k> {
    #[track_caller]
    pub(super) fn new(k: &'k Kernel, lines: Lines, rows: u32, buffers: u32) -> Tile<'k> {
        let elements = buffers * rows * lines.pitch() / 2;
        Tile {
            k,
            lines,
            rows,
            shared: k.shared::<Bf16>(elements),
        }
    }

    /// The size of one buffer.
    pub(super) fn bytes(&self) -> u32 {
        self.rows * self.lines.pitch()
    }

    /// The address of this thread's first chunk of the tile.
    #[track_caller]
    fn own_chunk(&self) -> SharedAddress<'k> {
        let thread = self.k.thread();
        let offset = (thread >> 3) * self.lines.pitch() + (thread & 7) * 16;
        self.shared.byte_add(offset)
    }

    /// Whether this thread's chunk of a group holds features. `None` if the group is full.
    #[track_caller]
    fn holds(&self, group: u32) -> Option<Pred<'k>> {
        let left = self.lines.head_dim - group * GROUP / 2;
        (left < GROUP / 2).then(|| ((self.k.thread() & 7) * 8).lt(left))
    }

    /// Streams rows `first` to `end` of `rows` into this tile.
    #[track_caller]
    pub(super) fn stream(self, rows: Rows<'k>, [first, end]: [U32<'k>; 2]) -> Stream<'k> {
        let thread = self.k.thread();
        let row = first + (thread >> 3);
        let from = rows.start.byte_add(row.wide() * rows.stride);
        Stream {
            tile: self,
            to: self.own_chunk(),
            from: from.byte_add(((thread & 7) * 16).wide()).to_variable(),
            pass_bytes: rows.stride * u64::from(PASS),
            left: self.k.var((end - row).signed()),
        }
    }

    /// This lane's `ldmatrix` row in the 16 rows from `first` on. Loaded without a transpose, they
    /// are the A operand of a product over features. Loaded transposed, they are the B operand of a
    /// product over rows.
    #[track_caller]
    pub(super) fn rows_of_lane(&self, first: U32<'k>) -> MatrixRow<'k> {
        let lane = self.k.lane();
        let offset = (first + (lane & 15)) * self.lines.pitch() + (lane >> 4) * 16;
        self.shared.byte_add(offset).matrix_row()
    }

    /// This lane's `ldmatrix` row in the first 16 rows, which are the B operand of a product over
    /// features.
    #[track_caller]
    pub(super) fn columns_of_lane(&self) -> MatrixRow<'k> {
        let lane = self.k.lane();
        let row = (lane & 7) + (lane >> 4) * 8;
        let offset = row * self.lines.pitch() + ((lane >> 3) & 1) * 16;
        self.shared.byte_add(offset).matrix_row()
    }

    /// Stores `columns` columns of the CTA's rows, through this tile, which no thread may still be
    /// reading. `value(i, half)` returns this lane's two neighbors in the i-th eight columns, in
    /// the upper (0) or lower (1) eight rows of its warp.
    #[track_caller]
    pub(super) fn store(
        &self,
        to: Rows<'k>,
        first_row: U32<'k>,
        first_column: U32<'k>,
        columns: u32,
        value: impl Fn(usize, usize) -> [F32<'k>; 2],
    ) {
        let (k, pitch) = (self.k, self.lines.pitch());
        let lane = k.lane();
        let own = (k.warp() * 16 + (lane >> 2)) * pitch + (lane & 3) * 4;
        let own = self.shared.byte_add(own);
        for tile in 0..columns / 8 {
            for half in 0..2 {
                let [low, high] = value(tile as usize, half as usize);
                own.offset(half * 8 * pitch + tile * 16)
                    .store(low.pack(high));
            }
        }
        k.barrier();

        let thread = k.thread();
        let row = first_row + (thread >> 3);
        let column = first_column + (thread & 7) * 8;
        let left = (to.count - row).signed();
        let mut to_row = to
            .start
            .byte_add(row.wide() * to.stride + (column * 2).wide());
        let own = self.own_chunk();
        for pass in 0..self.rows / PASS {
            let exists = left.gt((pass * PASS) as i32);
            for group in 0..(2 * columns).div_ceil(GROUP) {
                let in_block = columns - group * GROUP / 2;
                let inside = (column + group * GROUP / 2).lt(self.lines.head_dim);
                let inside = match in_block < GROUP / 2 {
                    true => inside & ((thread & 7) * 8).lt(in_block),
                    false => inside,
                };
                let offset = pass * PASS * pitch + group * GROUP;
                let chunk = own.offset(offset).load_vector::<Bf16x2, 4>();
                let to = to_row.offset(i64::from(group * GROUP));
                to.store_vector_if(exists & inside, chunk);
            }
            to_row = to_row.byte_add(to.stride * u64::from(PASS));
        }
    }
}

/// Copies the rows of a head to shared memory, tile by tile.
pub(super) struct Stream<'k> {
    pub(super) tile: Tile<'k>,
    to: SharedAddress<'k>,
    /// This thread's first chunk of the next tile.
    from: AddressVariable<'k>,
    pass_bytes: U64<'k>,
    /// Rows left, counted from this thread's first row of the next tile.
    left: Variable<'k, i32>,
}

impl<'k> Stream<'k> {
    /// Copies the next tile to the buffer at byte offset `buffer`, with zeros beyond the last row
    /// and feature.
    #[track_caller]
    pub(super) fn copy_next(&self, buffer: U32<'k>) {
        let to = self.to.byte_add(buffer);
        let left: S32<'k> = *self.left;
        let mut from = self.from.get();
        for pass in 0..self.tile.rows / PASS {
            let exists = left.gt((pass * PASS) as i32);
            for group in 0..self.tile.lines.groups() {
                let inside = match self.tile.holds(group) {
                    Some(holds) => exists & holds,
                    None => exists,
                };
                let to = to.offset(pass * PASS * self.tile.lines.pitch() + group * GROUP);
                let from: GlobalAddress<'k> = from.offset(i64::from(group * GROUP));
                to.copy_async::<16>(from, inside);
            }
            from = from.byte_add(self.pass_bytes);
        }
        self.from
            .advance(self.pass_bytes * u64::from(self.tile.rows / PASS));
        self.left.add(-(self.tile.rows as i32));
    }
}

/// The A fragment of 16 rows at one step of 16 features.
pub(super) type AFragment<'k> = [Pair<'k>; 4];
