//! A tile of rows: copied to shared memory, loaded into fragments, and stored back.

use super::super::Products;
use super::super::cta_tile::Rows;
use super::THREADS;
use crate::assembler::{
    AddressVariable, Bf16, Bf16x2, F32, GlobalAddress, GroupOperand, Kernel, MatrixRow,
    OPERAND_ALIGNMENT, Pair, Pred, S32, SharedAddress, U32, U64, Variable,
};

/// Bytes of a row that eight threads copy. The eight chunks of 16 bytes touch every bank once.
const GROUP: u32 = 128;

/// Rows that the CTA copies together.
const PASS: u32 = THREADS / 8;

/// The layout of rows of `head_dim` bf16 in shared memory.
///
/// - For products of warps, rows are padded with zeros to whole groups, plus one chunk, so that
///   consecutive rows begin four banks apart.
/// - For products of warpgroups, the groups of all rows follow each other, and the chunks of a
///   group are permuted: chunk c of row r is stored at `c ^ (r % 8)`. Rows consist of whole groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lines {
    /// D.
    pub head_dim: u32,
    /// The instructions of the products.
    pub products: Products,
}

impl Lines {
    fn groups(self) -> u32 {
        (2 * self.head_dim).div_ceil(GROUP)
    }

    /// Bytes from one row to the next.
    pub(super) fn pitch(self) -> u32 {
        match self.products {
            Products::Warps => self.groups() * GROUP + 16,
            Products::Warpgroups => GROUP,
        }
    }

    /// Bytes from one group of a row to the next, in a tile of `rows` rows.
    fn group_bytes(self, rows: u32) -> u32 {
        match self.products {
            Products::Warps => GROUP,
            Products::Warpgroups => rows * GROUP,
        }
    }

    /// Bytes of a tile of `rows` rows.
    pub(super) fn tile_bytes(self, rows: u32) -> u32 {
        match self.products {
            Products::Warps => rows * self.pitch(),
            Products::Warpgroups => rows * self.groups() * GROUP,
        }
    }

    /// The position of a chunk in its group.
    #[track_caller]
    fn chunk<'k>(self, row: U32<'k>, chunk: U32<'k>) -> U32<'k> {
        match self.products {
            Products::Warps => chunk,
            Products::Warpgroups => chunk ^ (row & 7),
        }
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
        let elements = buffers * lines.tile_bytes(rows) / 2;
        let shared = match lines.products {
            Products::Warps => k.shared::<Bf16>(elements),
            Products::Warpgroups => k.shared_aligned::<Bf16>(elements, OPERAND_ALIGNMENT),
        };
        Tile { k, lines, rows, shared }
    }

    /// The size of one buffer.
    pub(super) fn bytes(&self) -> u32 {
        self.lines.tile_bytes(self.rows)
    }

    /// From one group of a row to the next.
    fn group_bytes(&self) -> u32 {
        self.lines.group_bytes(self.rows)
    }

    /// The address of this thread's first chunk of the tile.
    #[track_caller]
    fn own_chunk(&self) -> SharedAddress<'k> {
        let (row, chunk) = (self.k.thread() >> 3, self.k.thread() & 7);
        let offset = row * self.lines.pitch() + self.lines.chunk(row, chunk) * 16;
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

    /// The A fragments of a product over features: 16 rows from `first` on.
    #[track_caller]
    pub(super) fn fragments(&self, first: U32<'k>) -> FragmentRows<'k> {
        let lane = self.k.lane();
        let offset = (first + (lane & 15)) * self.lines.pitch() + (lane >> 4) * 16;
        FragmentRows(self.shared.byte_add(offset).matrix_row())
    }

    /// The A operand of a product over features: 16 rows from `first` on, or all 64 rows.
    #[track_caller]
    pub(super) fn stationary(&self, first: U32<'k>) -> Stationary<'k> {
        match self.lines.products {
            Products::Warps => Stationary::Fragments(self.fragments(first)),
            Products::Warpgroups => Stationary::Shared(self.shared.group_operand(true, self.rows)),
        }
    }

    /// The rows as the B operand of a product over features.
    #[track_caller]
    pub(super) fn columns(&self) -> Streamed<'k> {
        let lane = self.k.lane();
        match self.lines.products {
            Products::Warps => {
                let row = (lane & 7) + (lane >> 4) * 8;
                let offset = row * self.lines.pitch() + ((lane >> 3) & 1) * 16;
                Streamed::Fragments(self.shared.byte_add(offset).matrix_row())
            }
            Products::Warpgroups => Streamed::Shared(self.shared.group_operand(true, self.rows)),
        }
    }

    /// The features from `first` on, a multiple of 8, as the B operand of a product over rows.
    /// Products of warpgroups begin at feature 0.
    #[track_caller]
    pub(super) fn features(&self, first: U32<'k>) -> Streamed<'k> {
        let lane = self.k.lane();
        match self.lines.products {
            Products::Warps => {
                let offset = (lane & 15) * self.lines.pitch() + (lane >> 4) * 16;
                let rows = self.shared.byte_add(offset).matrix_row();
                Streamed::Fragments(rows.byte_add(first * 2))
            }
            Products::Warpgroups => Streamed::Shared(self.shared.group_operand(false, self.rows)),
        }
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
        let (k, pitch, group_bytes) = (self.k, self.lines.pitch(), self.group_bytes());
        let lane = k.lane();
        let row = k.warp() * 16 + (lane >> 2);
        let own = self.shared.byte_add(row * pitch + (lane & 3) * 4);
        for tile in 0..columns / 8 {
            let own = match self.lines.products {
                Products::Warps => own.offset(tile * 16),
                Products::Warpgroups => {
                    let chunk = self.lines.chunk(row, k.constant(tile % 8));
                    own.byte_add(chunk * 16).offset(tile / 8 * group_bytes)
                }
            };
            for half in 0..2 {
                let [low, high] = value(tile as usize, half as usize);
                own.offset(half * 8 * pitch).store(low.pack(high));
            }
        }
        k.barrier();

        let thread = k.thread();
        let row = first_row + (thread >> 3);
        let column = first_column + (thread & 7) * 8;
        let left = (to.count - row).signed();
        let mut to_row = to.start.byte_add(row.wide() * to.stride + (column * 2).wide());
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
                let offset = pass * PASS * pitch + group * group_bytes;
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
                let to = to.offset(
                    pass * PASS * self.tile.lines.pitch() + group * self.tile.group_bytes(),
                );
                let from: GlobalAddress<'k> = from.offset(i64::from(group * GROUP));
                to.copy_async::<16>(from, inside);
            }
            from = from.byte_add(self.pass_bytes);
        }
        self.from.advance(self.pass_bytes * u64::from(self.tile.rows / PASS));
        self.left.add(-(self.tile.rows as i32));
    }
}

/// The A fragment of 16 rows at one step of 16 features.
pub(super) type AFragment<'k> = [Pair<'k>; 4];

/// This lane's `ldmatrix` row in 16 rows of a tile.
pub(super) struct FragmentRows<'k>(MatrixRow<'k>);

impl<'k> FragmentRows<'k> {
    /// The fragment at a step of 16 features.
    #[track_caller]
    pub(super) fn load(&self, step: u32) -> AFragment<'k> {
        self.0.offset(32 * step).load_matrices(false)
    }
}

/// The A operand of a product over features.
pub(super) enum Stationary<'k> {
    /// Loaded into fragments, step by step.
    Fragments(FragmentRows<'k>),
    /// Already in fragments, by step.
    Registers(Vec<AFragment<'k>>),
    Shared(GroupOperand<'k>),
}

/// The B operand of a product, in the first of its buffers.
#[derive(Clone, Copy)]
pub(super) enum Streamed<'k> {
    /// This lane's `ldmatrix` row.
    Fragments(MatrixRow<'k>),
    Shared(GroupOperand<'k>),
}

impl<'k> Streamed<'k> {
    /// The operand in the buffer at byte offset `buffer`.
    #[track_caller]
    pub(super) fn at(self, buffer: U32<'k>) -> Streamed<'k> {
        match self {
            Streamed::Fragments(row) => Streamed::Fragments(row.byte_add(buffer)),
            Streamed::Shared(operand) => Streamed::Shared(operand.byte_add(buffer)),
        }
    }
}
