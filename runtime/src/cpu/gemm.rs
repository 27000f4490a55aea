//! Matrix products of slices: `C = A B` and `C += A B`, batched and grouped.
//!
//! | A and B | C | accumulated in |
//! |---|---|---|
//! | f32 | f32 | f32 |
//! | f64 | f64 | f64 |
//! | bf16 | bf16 or f32 | f32 over all of k, rounded once at the end |
//!
//! **Bits.** Element (i, j) is a sequence of fused multiply-adds along k, starting at zero, in an
//! order that depends only on k. A row's bits therefore depend neither on the other rows nor on the
//! number of threads, and a grouped or batched product equals a loop of single products. (BLAS-like
//! libraries do not guarantee this: they use other kernels for a single row or a small matrix.)
//! Bits differ between machines with different vector instructions.
//!
//! **Algorithm.** C is divided into blocks, the unit of parallelism. For a block, slabs of A and B
//! (a range of k) are packed into *panels*, in the order in which the innermost loop, the
//! *micro-kernel*, reads them. Packing handles strides, transposes and the tails of all extents, so
//! a micro-kernel always computes a full tile from contiguous memory. Rows of A that are already
//! contiguous along k are read in place. For a single row, so is B if the kernel supports it. (Goto
//! & van de Geijn, "Anatomy of high-performance matrix multiplication", 2008.)
//!
//! **Memory.** Each participating thread keeps about 3.2 MiB of buffers; nothing else is allocated.
//!
//! **Threads.** The caller's device sets the number of threads.

mod block;
mod grouped;
mod kernel;
mod matrix;
mod output;
mod pack;
mod vector;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod dot;
#[cfg(target_arch = "x86_64")]
mod row;

#[cfg(test)]
mod tests;

pub(crate) use grouped::{grouped_gemm, grouped_gemm_weight};
pub(crate) use kernel::Element;
pub(crate) use matrix::{MatrixMut, MatrixRef};
pub(crate) use output::{Output, Update};

use block::{Problem, multiply_all};
use kernel::{Kernel, WithKernel};

/// `C = A B` or `C += A B`, for one matrix or a batch of them.
///
/// # Shapes
/// `a` [.., m, k], `b` [.., k, n], `c` [.., m, n] with equal batch extents and any strides;
/// `a.transposed()` copies nothing. With k = 0 the product is zero.
///
/// # Panics
/// If the extents do not match.
pub(crate) fn gemm<T, C>(
    a: MatrixRef<'_, T>,
    b: MatrixRef<'_, T>,
    mut c: MatrixMut<'_, C>,
    update: Update,
) where
    T: Element,
    C: Output<T::Sum>,
{
    let op = "gemm";
    agree(op, "columns of a and rows of b", &[a.cols()], &[b.rows()]);
    agree(op, "rows of a and of c", &[a.rows()], &[c.rows()]);
    agree(op, "columns of b and of c", &[b.cols()], &[c.cols()]);
    agree(op, "batch extents of a and of c", a.batch(), c.batch());
    agree(op, "batch extents of b and of c", b.batch(), c.batch());

    let count = c.batch().iter().product();
    let c = c.target();
    let problem = |i| Problem { a: a.at(i), b: b.at(i), c: c.at(i) };

    T::with_kernel(Run { count, problem: &problem, update });
}

/// A list of products to run with a kernel.
struct Run<'p, 'a, T: Element> {
    count: usize,
    problem: &'p (dyn Fn(usize) -> Problem<'a, T, T::Sum> + Sync),
    update: Update,
}

impl<T: Element> WithKernel<T> for Run<'_, '_, T> {
    fn run<K: Kernel<Input = T, Sum = T::Sum>>(self, kernel: K) {
        multiply_all(kernel, self.count, self.problem, self.update);
    }
}

fn agree(op: &str, what: &str, left: &[usize], right: &[usize]) {
    assert_eq!(left, right, "{op}: {what} must be equal");
}
