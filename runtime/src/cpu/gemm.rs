//! Matrix products on plain memory: `C = A B` and `C += A B`, batched and grouped.
//!
//! | A and B | C | sums in |
//! |---|---|---|
//! | f32 | f32 | f32 |
//! | f64 | f64 | f64 |
//! | bf16 | bf16 or f32 | f32, over the whole of k; rounded once, at the end |
//!
//! **Bits.** Element (i, j) is one chain of fused multiply-adds along k, started at zero, in an
//! order that depends on k and on nothing else. So a row's bits depend neither on the other rows
//! nor on the number of threads, and a grouped or batched product equals a loop of plain ones.
//! (BLAS-like libraries do not promise this: they switch to other kernels for a single row or a
//! small matrix.) Bits do differ between machines whose vector instructions differ.
//!
//! **Shape of the algorithm.** C is cut into blocks, the unit of parallelism. A block copies slabs
//! of A and B, `k_slab` deep, into *panels*: the order in which the innermost loop, the
//! *micro-kernel*, reads them. Strides, transposes and the tails of all extents end there, so a
//! micro-kernel always computes a full tile from contiguous memory; rows of A that already are
//! contiguous along k it reads where they lie. (Goto & van de Geijn,
//! "Anatomy of high-performance matrix multiplication", 2008.)
//!
//! **Memory.** A thread that takes part keeps about 3.2 MiB of buffers; nothing else is
//! allocated. **Threads** are as many as the caller's device has.

mod block;
mod grouped;
mod kernel;
mod matrix;
mod pack;
mod vector;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod dot;

#[cfg(test)]
mod tests;

pub(crate) use grouped::{grouped_gemm, grouped_gemm_weight};
pub(crate) use kernel::{Element, Output};
pub(crate) use matrix::{MatrixMut, MatrixRef};

use block::{Problem, multiply_all};
use kernel::{Kernel, WithKernel};

/// What happens to the old value of C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Update {
    /// `C = A B`; the old value is not read.
    Replace,
    /// `C += A B`, added in the type of the sums and rounded once.
    Add,
}

/// Why a product could not be computed. Sizes and strides are in elements.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GemmError {
    /// A view reaches beyond its slice.
    #[error(
        "a view of extents {extents:?} and strides {strides:?} at offset {offset} leaves its slice \
         of {len} elements; the slice must hold every element of the view"
    )]
    OutOfBounds {
        /// Batch extents, rows and columns.
        extents: Vec<usize>,
        /// The stride of each extent.
        strides: Vec<isize>,
        /// Where element (0, 0) of the first matrix lies.
        offset: usize,
        /// Elements in the slice.
        len: usize,
    },

    /// A writable view would name an element twice.
    #[error(
        "a writable view of extents {extents:?} and strides {strides:?} may name an element \
         twice; each stride must be at least the span of the dims with smaller strides"
    )]
    Overlap {
        /// Batch extents, rows and columns.
        extents: Vec<usize>,
        /// The stride of each extent.
        strides: Vec<isize>,
    },

    /// The batch has another number of extents than of strides.
    #[error("a batch of {extents} extents has {strides} strides; give one stride an extent")]
    BatchRank {
        /// Number of batch extents.
        extents: usize,
        /// Number of batch strides.
        strides: usize,
    },

    /// The operands do not fit each other.
    #[error("{op}: {what} must agree, but are {left:?} and {right:?}")]
    Mismatch {
        /// The function called.
        op: &'static str,
        /// What was compared.
        what: &'static str,
        /// The value on the left of `what`.
        left: Vec<usize>,
        /// The value on the right of `what`.
        right: Vec<usize>,
    },

    /// Group offsets do not describe row ranges.
    #[error(
        "{op}: group offsets must start at 0 or above, never fall and end at or before the {rows} \
         rows, but offset {index} breaks this"
    )]
    Offsets {
        /// The function called.
        op: &'static str,
        /// The first offset that breaks the rule.
        index: usize,
        /// Rows of the operand that the offsets divide.
        rows: usize,
    },
}

/// `C = A B` or `C += A B`, for one matrix or a batch of them.
///
/// # Shapes
/// `a` [.., m, k], `b` [.., k, n], `c` [.., m, n] with equal batch extents; any strides, so
/// `a.transposed()` costs nothing. With k = 0 the product is zero.
///
/// # Errors
/// [`GemmError::Mismatch`] when the extents do not fit.
pub(crate) fn gemm<T, C>(
    a: MatrixRef<'_, T>,
    b: MatrixRef<'_, T>,
    mut c: MatrixMut<'_, C>,
    update: Update,
) -> Result<(), GemmError>
where
    T: Element,
    C: Output<T::Sum>,
{
    let op = "gemm";
    agree(op, "columns of a and rows of b", &[a.cols()], &[b.rows()])?;
    agree(op, "rows of a and of c", &[a.rows()], &[c.rows()])?;
    agree(op, "columns of b and of c", &[b.cols()], &[c.cols()])?;
    agree(op, "batch extents of a and of c", a.batch(), c.batch())?;
    agree(op, "batch extents of b and of c", b.batch(), c.batch())?;

    let count = c.batch().iter().product();
    let c = c.target();
    let problem = |i| Problem {
        a: a.at(i),
        b: b.at(i),
        c: c.at(i),
    };

    T::with_kernel(Run {
        count,
        problem: &problem,
        update,
    });
    Ok(())
}

/// A list of products waiting for a kernel.
struct Run<'p, 'a, T, C> {
    count: usize,
    problem: &'p (dyn Fn(usize) -> Problem<'a, T, C> + Sync),
    update: Update,
}

impl<'a, T, C> WithKernel<T> for Run<'_, 'a, T, C>
where
    T: Element,
    C: Output<T::Sum> + 'a,
{
    fn run<K: Kernel<Input = T, Sum = T::Sum>>(self, kernel: K) {
        multiply_all(kernel, self.count, self.problem, self.update);
    }
}

fn agree(
    op: &'static str,
    what: &'static str,
    left: &[usize],
    right: &[usize],
) -> Result<(), GemmError> {
    if left == right {
        return Ok(());
    }

    Err(GemmError::Mismatch {
        op,
        what,
        left: left.to_vec(),
        right: right.to_vec(),
    })
}
