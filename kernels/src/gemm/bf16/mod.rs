//! bf16 GEMM on tensor cores, with f32 accumulators.
//!
//! A tensor core multiplies small fragments that a warp holds in registers: 16 x 16 by 16 x 8. It
//! does about a thousand multiply-adds per cycle and multiprocessor, so the difficulty is to load
//! its operands fast enough. They move from global memory to shared memory to registers:
//!
//! 1. **`cp.async`** copies 16 bytes from global to shared memory while the warp computes,
//!    bypassing registers. Each main-loop iteration of a CTA consumes one k-slice of 32. Copies run
//!    three slices ahead in a ring of four buffers (stages), which hides the memory latency. One
//!    barrier per slice suffices: after it, the copies of this slice have arrived for all threads,
//!    and no thread still reads the buffer of the previous slice, which is filled next.
//! 2. **`ldmatrix`** loads four 8 x 8 matrices per warp in the fragment layout that the tensor core
//!    expects. A matrix row can be any 16 aligned bytes in shared memory.
//! 3. **`mma.sync`** adds the product to the accumulators, which stay in registers until the
//!    epilogue.
//!
//! **Every storage order.** The tensor core expects A by rows and B by columns, so both contiguous
//! along k. An operand is copied to shared memory in its own order. If it is not contiguous along
//! k, `ldmatrix.trans` transposes each 8 x 8 matrix on the way to registers. Nothing else differs.
//!
//! **No bank conflicts.** `ldmatrix` reads eight 16-byte rows together. They must be in different
//! banks, and banks repeat every 128 bytes. So the 16-byte chunks of a slice row are permuted
//! (swizzled). Chunk c of row r is stored at `c ^ (r % 8)` if rows have 128 bytes or more, and at
//! `c ^ (r / 2 % 4)` if they have 64. Both the copies (eight consecutive chunks) and `ldmatrix`
//! (one chunk of eight consecutive rows) then touch each bank once. The permutation depends only on
//! the lowest three bits of r. The rows that one thread reads are multiples of eight apart, so it
//! is computed once, before the loop.
//!
//! **Edges.** `cp.async` can read fewer bytes than it writes. Elements outside A or B become 0 and
//! do not change the result. M, N and K are less than 2^31.
//!
//! **Warp tiles.** Eight warps share a 128 x 128 tile, 64 x 32 each: 16 `mma` per 4 + 2 `ldmatrix`.
//! In the wide tile each warp has 64 x 64: 32 `mma` per 4 + 4 `ldmatrix`, using all registers of a
//! multiprocessor. The small and the flat tile have four warps of 32 x 32.
//!
//! **Warpgroups.** On compute capability 9.0, two warpgroups share a 128 x 256 tile, 64 rows each.
//! `wgmma` reads both operands from shared memory, in slices of 64 k. Their lines have 128 bytes: 64
//! k of a row (column), or 64 rows (columns) of one k, followed by those of the next 64 rows. The
//! permutation of chunks is that of rows of 128 bytes. The products are asynchronous, so a slice is
//! issued while the previous one is still being multiplied.

mod slice;
mod sums;

use self::slice::{Slice, Strip};
use self::sums::Sums;
use super::split_k::{Part, SplitKArguments};
use super::tiles::CtaTile;
use super::{Call, Matrix, Order, Tile};
use crate::assembler::{
    Bf16, Kernel, Launch, OPERAND_ALIGNMENT, Ptx, Rows64, STATIC_LIMIT, Target, U32, Variable,
    Variant, warpgroup_mma_bf16,
};

/// The ring of buffers for slices.
#[derive(Clone, Copy)]
struct Ring {
    /// Elements of k per slice.
    depth: u32,
    /// Buffers.
    stages: u32,
}

impl Ring {
    fn of(tile: Tile) -> Ring {
        let depth = if tile == Tile::Warpgroups { 64 } else { 32 };
        Ring { depth, stages: 4 }
    }
}

/// C = A B in bf16 or f32, or C += A B in f32, with A and B in bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmBf16 {
    /// Storage order of A.
    pub a: Order,
    /// Storage order of B.
    pub b: Order,
    /// The tile that a CTA computes.
    pub tile: Tile,
    /// How the result is stored.
    pub output: Output,
    /// Whether A, B and C are 16-byte aligned and all leading dimensions and batch strides are
    /// multiples of 8. Otherwise elements are loaded and stored one by one, which is much slower.
    pub aligned: bool,
}

/// How the result is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Rounded to bf16.
    Bf16,
    /// Stored in f32.
    F32,
    /// Added to C, which is f32.
    AddF32,
}

impl Output {
    /// All variants.
    pub const ALL: [Output; 3] = [Output::Bf16, Output::F32, Output::AddF32];

    pub(super) fn name(self) -> &'static str {
        match self {
            Output::Bf16 => "bf16",
            Output::F32 => "f32",
            Output::AddF32 => "add_f32",
        }
    }

    /// Bytes per element of C.
    pub(super) fn size(self) -> u32 {
        match self {
            Output::Bf16 => 2,
            Output::F32 | Output::AddF32 => 4,
        }
    }
}

/// How a tile is divided among the warps of its CTA.
#[derive(Clone, Copy)]
struct Warps {
    threads: u32,
    /// Warps along the rows of the tile.
    down: u32,
    /// Rows per warp's part.
    rows: u32,
    /// Columns per warp's part.
    columns: u32,
}

impl Warps {
    fn of(tile: Tile) -> Warps {
        let (threads, down) = match tile {
            Tile::Large | Tile::Wide => (256, 2),
            Tile::Warpgroups => (256, 8),
            Tile::Small => (128, 2),
            Tile::Flat => (128, 1),
        };
        Warps {
            threads,
            down,
            rows: tile.rows() / down,
            columns: tile.columns() / (threads / 32 / down),
        }
    }
}

impl GemmBf16 {
    /// The launch for `batch` products; `None` if C is empty.
    pub fn launch(&self, m: u32, n: u32, batch: u32) -> Option<Launch> {
        let launch = self.tile.launch(m, n, batch, Warps::of(self.tile).threads)?;
        Some(launch.with_dynamic_shared(self.dynamic_shared()))
    }

    /// An empty kernel with the right CTA size and register limit.
    pub(super) fn kernel(&self, entry: String) -> Kernel {
        let (target, ctas) = match self.tile {
            Tile::Warpgroups => (Target::Sm90a, 1),
            Tile::Wide => (Target::Sm80, 1),
            Tile::Large | Tile::Small | Tile::Flat => (Target::Sm80, 2),
        };
        Kernel::new(entry, target, Warps::of(self.tile).threads).ctas_per_sm(ctas)
    }

    /// Computes the tile at `[row, column]`. All threads call it. `c` is called after the main
    /// loop, so that the address of C does not occupy registers in it.
    pub(super) fn multiply<'k>(
        &self,
        k: &'k Kernel,
        call: &Call<'k>,
        [row, column]: [U32<'k>; 2],
        c: impl FnOnce() -> Matrix<'k>,
    ) {
        let (warps, ring) = (Warps::of(self.tile), Ring::of(self.tile));
        let along_k = [self.a == Order::RowMajor, self.b == Order::ColumnMajor];
        let warp = [
            (k.warp() & (warps.down - 1)) * warps.rows,
            (k.warp() >> warps.down.trailing_zeros()) * warps.columns,
        ];
        let elements = ring.stages * self.stage_elements();
        let shared = match self.tile {
            Tile::Warpgroups => k.shared_aligned::<Bf16>(elements, OPERAND_ALIGNMENT),
            _ => k.shared::<Bf16>(elements),
        };
        let strip_a = Strip {
            matrix: call.a,
            first: row,
            extent: call.m,
            length: self.tile.rows(),
            along_k: along_k[0],
        };
        let strip_b = Strip {
            matrix: call.b,
            first: column,
            extent: call.n,
            length: self.tile.columns(),
            along_k: along_k[1],
        };
        let behind_a = shared.offset(2 * ring.depth * self.tile.rows());
        let slices = [Slice::new(k, self, strip_a, shared), Slice::new(k, self, strip_b, behind_a)];
        let sums = Sums::new(k, warps);
        match self.tile {
            Tile::Warpgroups => self.sum_in_warpgroups(k, call, &slices, &sums),
            _ => self.sum_in_warps(k, call, &slices, warp, &sums),
        }
        k.wait_for_copies(0);

        let (c, origin) = (c(), [row + warp[0], column + warp[1]]);
        sums.store(self, c, origin, [call.m, call.n]);
    }

    /// The main loop with products of warps. The part of a warp begins at row and column `warp` of
    /// the tile.
    fn sum_in_warps<'k>(
        &self,
        k: &'k Kernel,
        call: &Call<'k>,
        slices: &[Slice<'k>; 2],
        warp: [U32<'k>; 2],
        sums: &Sums<'k>,
    ) {
        let (warps, Ring { depth, stages }) = (Warps::of(self.tile), Ring::of(self.tile));
        let [slice_a, slice_b] = slices;
        let blocks_a = slice_a.blocks(warp[0], warps.rows / 16);
        let blocks_b = slice_b.blocks(warp[1], warps.columns / 16);

        let (filling, reading) = (self.stage(k), self.stage(k));
        for stage in 0..stages - 1 {
            filling.fill(k, slices, call.k - stage * depth);
        }
        k.for_range(0u32, call.k, depth, |first| {
            k.wait_for_copies(stages - 2);
            k.barrier();
            filling.fill(k, slices, call.k - first - (stages - 1) * depth);

            let (blocks_a, blocks_b) = (blocks_a.at(*reading.offset), blocks_b.at(*reading.offset));
            for step in 0..depth / 16 {
                sums.add_products(&blocks_a.load(step), &blocks_b.load(step));
            }
            reading.advance();
        });
    }

    /// The main loop with products of warpgroups. Those of a slice are issued while those of the
    /// previous one still run. Once these are complete for all warps, their buffer is filled again.
    fn sum_in_warpgroups<'k>(
        &self,
        k: &'k Kernel,
        call: &Call<'k>,
        slices: &[Slice<'k>; 2],
        sums: &Sums<'k>,
    ) {
        let Ring { depth, stages } = Ring::of(self.tile);
        // Eight repetitions of the permutation are 64 rows.
        let of_warpgroup = (k.warp() >> 2) * OPERAND_ALIGNMENT * 8;
        let a = slices[0].operand().byte_add(of_warpgroup);
        let b = slices[1].operand();

        let (filling, reading) = (self.stage(k), self.stage(k));
        for stage in 0..stages - 1 {
            filling.fill(k, slices, call.k - stage * depth);
        }
        k.for_range(0u32, call.k, depth, |first| {
            k.wait_for_copies(stages - 2);
            k.publish_to_products();
            k.barrier();

            k.begin_products();
            let [a, b] = [a, b].map(|operand| operand.byte_add(*reading.offset));
            for step in 0..depth / 16 {
                let a = Rows64::Shared(a.step(step));
                warpgroup_mma_bf16(k, sums.fragments(), a, b.step(step));
            }
            k.commit_products();
            reading.advance();

            k.wait_for_products(1);
            k.barrier();
            filling.fill(k, slices, call.k - first - (stages - 1) * depth);
        });
        k.wait_for_products(0);
    }

    /// The first stage of the ring.
    fn stage<'k>(&self, k: &'k Kernel) -> Stage<'k> {
        let bytes = 2 * self.stage_elements();
        Stage { offset: k.var(0u32), bytes, end: bytes * Ring::of(self.tile).stages }
    }

    /// Elements per stage: a slice of A and a slice of B.
    fn stage_elements(&self) -> u32 {
        (self.tile.rows() + self.tile.columns()) * Ring::of(self.tile).depth
    }

    /// Equal to [`Ptx::dynamic_shared`].
    fn dynamic_shared(&self) -> u32 {
        let bytes = 2 * Ring::of(self.tile).stages * self.stage_elements();
        if bytes > STATIC_LIMIT { bytes } else { 0 }
    }
}

impl Variant for GemmBf16 {
    type Arguments = SplitKArguments;

    fn ptx(&self) -> Ptx {
        let k = &self.kernel(self.entry());
        let parameters = self.parameters(k);
        let call = Call::new(parameters.product);
        let cta = CtaTile::of_cta(k, &call, self.tile);
        let part = Part::new(&parameters, cta.batch);
        let c = call.c;
        let call = part.of(call, [self.a, self.b], 2);
        let c = || c.of_batch(cta.batch, self.output.size());
        self.multiply(k, &call, [cta.row, cta.column], c);
        k.finish()
    }

    fn entry(&self) -> String {
        let (a, b, tile) = (self.a.letter(), self.b.letter(), self.tile.name());
        let output = self.output.name();
        let aligned = if self.aligned { "" } else { "_unaligned" };
        let depth = Ring::of(self.tile).depth;
        format!("gemm_bf16_{a}{b}_{tile}x{depth}_{output}{aligned}")
    }
}

/// A buffer of the ring: the one to fill or to read next.
struct Stage<'k> {
    /// The offset of the buffer in bytes.
    offset: Variable<'k, u32>,
    /// Bytes per buffer.
    bytes: u32,
    /// Bytes of all buffers.
    end: u32,
}

impl<'k> Stage<'k> {
    /// Starts to copy the next slices into the buffer and advances. `left` is the extent of k from
    /// the start of the slices.
    #[track_caller]
    fn fill(&self, k: &'k Kernel, slices: &[Slice<'k>; 2], left: U32<'k>) {
        for slice in slices {
            slice.copy_next(*self.offset, left.signed());
        }
        k.commit_copies();
        self.advance();
    }

    /// Advances to the next buffer.
    #[track_caller]
    fn advance(&self) {
        self.offset.add(self.bytes);
        let wraps = self.offset.equals(self.end);
        self.offset.set(wraps.select(0u32, *self.offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A launch must request the dynamic shared memory that the kernel declares.
    #[test]
    fn launches_request_the_declared_shared_memory() {
        for tile in Tile::ALL {
            let variant = GemmBf16 {
                a: Order::RowMajor,
                b: Order::ColumnMajor,
                tile,
                output: Output::Bf16,
                aligned: true,
            };
            let (ptx, launch) = (variant.ptx(), variant.launch(100, 100, 1).unwrap());
            assert_eq!(launch.dynamic_shared, ptx.dynamic_shared);
            assert_eq!(launch.block, ptx.block);
        }
    }
}
