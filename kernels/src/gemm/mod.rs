//! Matrix products (GEMM): C = A B or C += A B, with A \[M, K\], B \[K, N\] and C \[M, N\].
//!
//! A and B may be row-major or column-major, each with its own leading dimension, so no operand
//! needs a transposed copy. C is row-major. A batch of products is addressed by strides; stride 0
//! shares an operand.
//!
//! The sum over k runs from first to last in f32, in the same order for every tile shape, so the
//! bits of an element depend neither on the tile nor on its neighbors. If there are few tiles and k
//! is long, the sum is split into parts that are computed in parallel and added in order (split-K,
//! [`SplitK`]).

mod bf16;
mod f32;
mod grouped;
mod split_k;
mod split_k_reduce;
mod tiles;

pub use bf16::{GemmBf16, Output};
pub use f32::GemmF32;
pub use grouped::{GroupedArguments, GroupedK, GroupedM};
pub use split_k::{SplitK, SplitKArguments};
pub use split_k_reduce::{SplitKReduce, SplitKReduceArguments};
pub use tiles::{Chip, GROUP, Tile};

use crate::assembler::{GlobalAddress, In, Out, U32, U64};
use crate::params;

/// Storage order of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Row by row: neighbors in a row are neighbors in memory.
    RowMajor,
    /// Column by column: neighbors in a column are neighbors in memory.
    ColumnMajor,
}

impl Order {
    /// Both variants.
    pub const ALL: [Order; 2] = [Order::RowMajor, Order::ColumnMajor];

    /// `n` or `t`, as BLAS calls them.
    fn letter(self) -> char {
        match self {
            Order::RowMajor => 'n',
            Order::ColumnMajor => 't',
        }
    }
}

params! {
    /// Arguments of a GEMM kernel. Pointers are device addresses; leading dimensions and strides are in
    /// elements.
    pub struct GemmArguments => Parameters {
        /// A.
        a: In,
        /// B.
        b: In,
        /// C; also read by a kernel that accumulates.
        c: Out,
        /// Rows of A and C.
        m: u32,
        /// Columns of B and C.
        n: u32,
        /// Columns of A and rows of B.
        k: u32,
        /// From a row of A to the next (from a column to the next if A is column-major).
        lda: u64,
        /// From a row of B to the next (from a column to the next if B is column-major).
        ldb: u64,
        /// From a row of C to the next.
        ldc: u64,
        /// From one A of the batch to the next.
        batch_a: u64,
        /// From one B of the batch to the next.
        batch_b: u64,
        /// From one C of the batch to the next.
        batch_c: u64,
    }
}

/// The location of a matrix, in registers: start address, leading dimension and batch stride.
#[derive(Clone, Copy)]
struct Matrix<'k> {
    start: GlobalAddress<'k>,
    leading: U64<'k>,
    batch: U64<'k>,
}

impl<'k> Matrix<'k> {
    /// The matrix at `index` in the batch.
    #[track_caller]
    fn of_batch(self, index: U32<'k>, size: u32) -> Matrix<'k> {
        let elements = self.batch * index.wide();
        let start = self.start.byte_add(elements * u64::from(size));
        Matrix { start, ..self }
    }

    /// The matrix without its first `line` rows (columns if it is column-major).
    #[track_caller]
    fn lines_from(self, line: U32<'k>, size: u32) -> Matrix<'k> {
        let elements = self.leading * line.wide();
        let start = self.start.byte_add(elements * u64::from(size));
        Matrix { start, ..self }
    }

    /// The address of element `along` of row `line` (of column `line` if it is column-major).
    #[track_caller]
    fn element(self, line: U32<'k>, along: U32<'k>, size: u32) -> GlobalAddress<'k> {
        let elements = self.leading * line.wide() + along.wide();
        self.start.byte_add(elements * u64::from(size))
    }
}

/// The parameters of a product in registers.
struct Call<'k> {
    a: Matrix<'k>,
    b: Matrix<'k>,
    c: Matrix<'k>,
    m: U32<'k>,
    n: U32<'k>,
    k: U32<'k>,
}

impl<'k> Call<'k> {
    fn new(product: Parameters<'k>) -> Call<'k> {
        let matrix = |start, leading, batch| Matrix { start, leading, batch };
        Call {
            a: matrix(product.a, product.lda, product.batch_a),
            b: matrix(product.b, product.ldb, product.batch_b),
            c: matrix(product.c, product.ldc, product.batch_c),
            m: product.m,
            n: product.n,
            k: product.k,
        }
    }
}
