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
pub use tiles::{GROUP, Tile};

use crate::assembler::{Arguments, GlobalAddress, Kernel, U32, U64};

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

/// Arguments of a GEMM kernel. Pointers are device addresses; leading dimensions and strides are in
/// elements.
#[derive(Clone, Copy, Debug)]
pub struct GemmArguments {
    /// A, read.
    pub a: u64,
    /// B, read.
    pub b: u64,
    /// C, written; also read by a kernel that accumulates.
    pub c: u64,
    /// Rows of A and C.
    pub m: u32,
    /// Columns of B and C.
    pub n: u32,
    /// Columns of A and rows of B.
    pub k: u32,
    /// From a row of A to the next (from a column to the next if A is column-major).
    pub lda: u64,
    /// From a row of B to the next (from a column to the next if B is column-major).
    pub ldb: u64,
    /// From a row of C to the next.
    pub ldc: u64,
    /// From one A of the batch to the next.
    pub batch_a: u64,
    /// From one B of the batch to the next.
    pub batch_b: u64,
    /// From one C of the batch to the next.
    pub batch_c: u64,
}

impl GemmArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for matrix in [self.a, self.b, self.c] {
            arguments.push_pointer(matrix);
        }
        for extent in [self.m, self.n, self.k] {
            arguments.push_u32(extent);
        }
        for leading in [self.lda, self.ldb, self.ldc] {
            arguments.push_u64(leading);
        }
        for stride in [self.batch_a, self.batch_b, self.batch_c] {
            arguments.push_u64(stride);
        }
        arguments
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
    #[track_caller]
    fn parameters(kernel: &'k Kernel) -> Call<'k> {
        let starts = ["a", "b", "c"].map(|name| kernel.pointer(name));
        let [m, n, k] = ["m", "n", "k"].map(|name| kernel.u32_param(name));
        let leading = ["lda", "ldb", "ldc"].map(|name| kernel.u64_param(name));
        let batch = ["batch_a", "batch_b", "batch_c"].map(|name| kernel.u64_param(name));
        let [a, b, c] = [0, 1, 2].map(|i| Matrix {
            start: starts[i],
            leading: leading[i],
            batch: batch[i],
        });
        Call { a, b, c, m, n, k }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Variant;

    #[test]
    fn arguments_fill_the_parameter_space() {
        let arguments = GemmArguments {
            a: 1,
            b: 2,
            c: 3,
            m: 4,
            n: 5,
            k: 6,
            lda: 7,
            ldb: 8,
            ldc: 9,
            batch_a: 10,
            batch_b: 11,
            batch_c: 12,
        };
        let variant = GemmF32 {
            a: Order::RowMajor,
            b: Order::RowMajor,
            tile: Tile::Small,
            accumulate: false,
        };
        let arguments = SplitKArguments {
            product: arguments,
            products: 13,
            depth: 14,
        };
        let bytes = arguments.arguments();
        assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
    }
}
