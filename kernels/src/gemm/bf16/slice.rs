//! A k-slice of A or B: copies into shared memory, and loads from there into fragments.

use super::{GemmBf16, Ring, Warps};
use crate::assembler::{
    AddressVariable, Bf16, Bf16x2, GlobalAddress, GroupOperand, Kernel, MatrixRow, Pair, Pred, S32,
    SharedAddress, U32, U64,
};
use crate::gemm::{Matrix, Tile};

/// The part of A or B that a tile needs: `length` rows (columns) from `first` on. The matrix has
/// `extent` of them.
#[derive(Clone, Copy)]
pub(super) struct Strip<'k> {
    pub(super) matrix: Matrix<'k>,
    pub(super) first: U32<'k>,
    pub(super) extent: U32<'k>,
    pub(super) length: u32,
    /// Whether the matrix is contiguous along k.
    pub(super) along_k: bool,
}

/// The ring of buffers of an operand, and the 16-byte chunks that a thread copies.
pub(super) struct Slice<'k> {
    k: &'k Kernel,
    lines: Lines,
    aligned: bool,
    shared: SharedAddress<'k>,
    /// The destination of this thread's first chunk.
    to: SharedAddress<'k>,
    /// The source of this thread's first chunk of the next slice.
    from: AddressVariable<'k>,
    /// Chunks that this thread copies per slice.
    count: u32,
    /// From one of this thread's chunks to the next, in bytes of global memory.
    step_bytes: U64<'k>,
    /// From one slice to the next, in bytes of global memory.
    slice_bytes: U64<'k>,
    /// The number of rows (columns) of the matrix from this thread's first element on.
    outer_left: S32<'k>,
    /// The k of this thread's first element in the slice.
    depth: S32<'k>,
}

/// The layout of a slice in shared memory: as in the matrix, but with the chunks of a slice row
/// permuted. A slice row ("line") is contiguous in the matrix.
#[derive(Clone, Copy)]
struct Lines {
    /// Whether a line is consecutive k; otherwise there is a line for each k.
    along_k: bool,
    /// k per slice.
    depth: u32,
    /// Chunks per line.
    chunks: u32,
    /// Lines per panel. A panel is as wide as a line; further rows (columns) are in the next one.
    panel: u32,
    /// Lines from one of a thread's chunks to the next.
    step: u32,
}

/// Elements per chunk of 16 bytes.
const CHUNK: u32 = 8;

impl Lines {
    fn new(along_k: bool, side: u32, tile: Tile) -> Lines {
        let depth = Ring::of(tile).depth;
        let length = match tile {
            _ if along_k => depth,
            Tile::Warpgroups => 64, // the instructions require it
            _ => side,
        };
        let chunks = length / CHUNK;
        Lines {
            along_k,
            depth,
            chunks,
            panel: if along_k { side } else { depth },
            step: Warps::of(tile).threads / chunks,
        }
    }

    fn bytes(self) -> u32 {
        16 * self.chunks
    }

    /// The permuted position of a chunk in its line, which depends on the lowest three bits of
    /// `line`.
    #[track_caller]
    fn swizzled<'k>(self, line: U32<'k>, chunk: U32<'k>) -> U32<'k> {
        match self.chunks {
            4 => chunk ^ ((line >> 1) & 3),
            _ => chunk ^ (line & 7),
        }
    }

    /// The offset of a chunk in a slice.
    #[track_caller]
    fn offset<'k>(self, line: U32<'k>, chunk: U32<'k>) -> U32<'k> {
        line * self.bytes() + self.swizzled(line, chunk) * 16
    }
}

impl<'k> Slice<'k> {
    /// The slices of a strip. The first buffer is at `shared`.
    #[track_caller]
    pub(super) fn new(
        k: &'k Kernel,
        variant: &GemmBf16,
        strip: Strip<'k>,
        shared: SharedAddress<'k>,
    ) -> Slice<'k> {
        let Strip { matrix, first, extent, length, along_k } = strip;
        let lines = Lines::new(along_k, length, variant.tile);
        let line = k.thread() >> lines.chunks.trailing_zeros();
        let chunk = k.thread() & (lines.chunks - 1);

        let (outer, depth) = match along_k {
            true => (first + line, chunk * CHUNK),
            false => (first + chunk * CHUNK, line),
        };
        let (from, slice_bytes) = match along_k {
            true => (matrix.element(outer, depth, 2), k.constant(u64::from(2 * lines.depth))),
            false => (matrix.element(depth, outer, 2), matrix.leading * u64::from(2 * lines.depth)),
        };
        Slice {
            k,
            lines,
            aligned: variant.aligned,
            shared,
            to: shared.byte_add(lines.offset(line, chunk)),
            from: from.to_variable(),
            count: length * lines.depth / CHUNK / Warps::of(variant.tile).threads,
            step_bytes: matrix.leading * u64::from(2 * lines.step),
            slice_bytes,
            outer_left: (extent - outer).signed(),
            depth: depth.signed(),
        }
    }

    /// Copies this thread's chunks of the next slice to the buffer at `stage`, with zeros outside
    /// the matrix. `left` is the extent of k from the start of the slice.
    #[track_caller]
    pub(super) fn copy_next(&self, stage: U32<'k>, left: S32<'k>) {
        let (to, start) = (self.to.byte_add(stage), self.from.get());
        let mut from = start;
        let depth_left = left - self.depth;
        let (in_line, lines_left) = match self.lines.along_k {
            true => (depth_left, self.outer_left),
            false => (self.outer_left, depth_left),
        };
        for i in 0..self.count {
            let line = i * self.lines.step;
            let (panel, in_panel) = (line / self.lines.panel, line % self.lines.panel);
            let exists = lines_left.gt(in_panel as i32);
            let in_line = match panel {
                0 => in_line,
                _ => in_line - (panel * self.lines.chunks * CHUNK) as i32,
            };
            let to = to.offset(line * self.lines.bytes());
            from = match in_panel {
                0 => start.offset((panel * self.lines.bytes()).into()),
                _ => from.byte_add(self.step_bytes),
            };
            match self.aligned {
                true => {
                    let elements = in_line.max(0).min(CHUNK as i32).unsigned();
                    to.copy_async_first::<16>(from, exists.select(elements * 2, 0u32));
                }
                false => self.copy_elements(to, from, exists, in_line),
            }
        }
        self.from.advance(self.slice_bytes);
    }

    /// Copies a chunk through registers, for matrices that are not 16-byte aligned.
    #[track_caller]
    fn copy_elements(
        &self,
        to: SharedAddress<'k>,
        from: GlobalAddress<'k>,
        exists: Pred<'k>,
        in_line: S32<'k>,
    ) {
        let load = |i: i32| {
            let inside = exists & in_line.gt(i);
            from.offset(2 * i64::from(i)).load_if::<Bf16>(inside)
        };
        let elements = [0, 1, 2, 3, 4, 5, 6, 7].map(load);
        let pairs = [0, 2, 4, 6].map(|i| elements[i].pack(elements[i + 1]));
        to.store_vector::<Bf16x2, 4>(pairs);
    }

    /// The slice in the first buffer, as an operand of a product of a warpgroup.
    #[track_caller]
    pub(super) fn operand(&self) -> GroupOperand<'k> {
        self.shared.group_operand(self.lines.along_k, self.lines.depth)
    }

    /// The part of every slice that a warp reads: `count` blocks of 16 rows (columns) from `first`
    /// on.
    ///
    /// `ldmatrix` loads a block of 16 rows and 16 k as four matrices of 8 by 8. Lane 8 i + j passes
    /// the address of line j of matrix i. Matrices 0 and 1 are the upper and lower rows of the
    /// first eight k, matrices 2 and 3 those of the last eight k.
    #[track_caller]
    pub(super) fn blocks(&self, first: U32<'k>, count: u32) -> Blocks<'k> {
        let (lane, lines) = (self.k.lane(), self.lines);
        let (lower, last) = ((lane >> 3) & 1, lane >> 4);
        let in_matrix = lane & 7;

        let offset = |start: u32| match lines.along_k {
            // Blocks are 16 lines apart: one address per step along k.
            true => lines.offset(first + lower * 8 + in_matrix, last + start * 2),
            // Steps along k are 16 lines apart: one address per block.
            false => lines.offset(last * 8 + in_matrix, (first >> 3) + lower + start * 2),
        };
        let starts = if lines.along_k { lines.depth / 16 } else { count };
        Blocks {
            lines,
            starts: (0..starts)
                .map(|start| self.shared.byte_add(offset(start)).matrix_row())
                .collect(),
            count,
        }
    }
}

/// The addresses that a lane passes to `ldmatrix`.
pub(super) struct Blocks<'k> {
    lines: Lines,
    starts: Vec<MatrixRow<'k>>,
    count: u32,
}

impl<'k> Blocks<'k> {
    /// The same blocks in the buffer at `stage`.
    #[track_caller]
    pub(super) fn at(&self, stage: U32<'k>) -> Blocks<'k> {
        let starts = self.starts.iter().map(|start| start.byte_add(stage));
        Blocks { lines: self.lines, starts: starts.collect(), count: self.count }
    }

    /// The blocks at a step of 16 along k.
    #[track_caller]
    pub(super) fn load(&self, step: u32) -> Vec<[Pair<'k>; 4]> {
        let block = |block: u32| {
            let (start, others) = match self.lines.along_k {
                true => (step, block),
                false => (block, step),
            };
            let address = self.starts[start as usize].offset(others * 16 * self.lines.bytes());
            address.load_matrices(!self.lines.along_k)
        };
        (0..self.count).map(block).collect()
    }
}
