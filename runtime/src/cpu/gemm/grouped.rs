//! Products over ragged groups of rows, one group per expert of a mixture-of-experts layer.
//!
//! `offsets` has groups + 1 elements: group g owns rows `offsets[g] .. offsets[g + 1]`, possibly
//! none. Rows outside of all groups are neither read nor written.

use super::block::Problem;
use super::kernel::Element;
use super::output::Output;
use super::{MatrixMut, MatrixRef, Run, Update, agree};

/// `y[rows of g] (+)= x[rows of g] w_g` for each group g: the forward pass, and with `w` transposed
/// the gradient of `x`.
///
/// # Shapes
/// `x` [rows, k], `w` a batch \[groups\] of [k, n], `y` [rows, n], `offsets` [groups + 1].
///
/// # Panics
/// If extents do not match, or the offsets decrease or exceed the rows.
pub(crate) fn grouped_gemm<T, C, O>(
    x: MatrixRef<'_, T>,
    w: MatrixRef<'_, T>,
    mut y: MatrixMut<'_, C>,
    offsets: &[O],
    update: Update,
) where
    T: Element,
    C: Output<T::Sum>,
    O: Copy + TryInto<usize> + Sync,
{
    let op = "grouped_gemm";
    agree(op, "columns of x and rows of each w", &[x.cols()], &[w.rows()]);
    agree(op, "columns of each w and of y", &[w.cols()], &[y.cols()]);
    agree(op, "rows of x and of y", &[x.rows()], &[y.rows()]);
    agree(op, "batch extents of x and []", x.batch(), &[]);
    agree(op, "batch extents of y and []", y.batch(), &[]);
    let groups = Groups::new(op, offsets, w.batch(), x.rows());

    let (k, n) = (x.cols(), y.cols());
    let y = y.target();
    let problem = |g| {
        let (start, len) = groups.rows(g);
        Problem { a: x.part([start, 0], [len, k]), b: w.at(g), c: y.part([start, 0], [len, n]) }
    };

    let count = groups.count();
    T::with_kernel(Run { count, problem: &problem, update });
}

/// `dw_g (+)= x[rows of g]^T dy[rows of g]` for each group g: the gradient of `w`.
///
/// The gradient of a group without rows is zero. With [`Update::Replace`] the zeros are written;
/// with [`Update::Add`] `dw_g` is not accessed.
///
/// # Shapes
/// `x` [rows, m], `dy` [rows, n], `dw` a batch \[groups\] of [m, n], `offsets` [groups + 1].
///
/// # Panics
/// As [`grouped_gemm`].
pub(crate) fn grouped_gemm_weight<T, C, O>(
    x: MatrixRef<'_, T>,
    dy: MatrixRef<'_, T>,
    mut dw: MatrixMut<'_, C>,
    offsets: &[O],
    update: Update,
) where
    T: Element,
    C: Output<T::Sum>,
    O: Copy + TryInto<usize> + Sync,
{
    let op = "grouped_gemm_weight";
    agree(op, "columns of x and rows of each dw", &[x.cols()], &[dw.rows()]);
    agree(op, "columns of dy and of each dw", &[dy.cols()], &[dw.cols()]);
    agree(op, "rows of x and of dy", &[x.rows()], &[dy.rows()]);
    agree(op, "batch extents of x and []", x.batch(), &[]);
    agree(op, "batch extents of dy and []", dy.batch(), &[]);
    let groups = Groups::new(op, offsets, dw.batch(), x.rows());

    let (m, n) = (x.cols(), dy.cols());
    let dw = dw.target();
    let problem = |g| {
        let (start, len) = groups.rows(g);
        let x = x.part([start, 0], [len, m]);
        Problem { a: x.transposed(), b: dy.part([start, 0], [len, n]), c: dw.at(g) }
    };

    let count = groups.count();
    T::with_kernel(Run { count, problem: &problem, update });
}

/// Checked offsets.
#[derive(Clone, Copy)]
struct Groups<'a, O> {
    offsets: &'a [O],
}

impl<'a, O: Copy + TryInto<usize>> Groups<'a, O> {
    fn new(op: &str, offsets: &'a [O], batch: &[usize], rows: usize) -> Self {
        let groups = offsets.len().saturating_sub(1);
        agree(op, "groups in the offsets and batch extents", &[groups], batch);

        let mut last = 0;
        for (index, &offset) in offsets.iter().enumerate() {
            match offset.try_into() {
                Ok(offset) if (last..=rows).contains(&offset) => last = offset,
                _ => panic!("{op}: offset {index} decreases or exceeds {rows} rows"),
            }
        }
        Self { offsets }
    }

    fn count(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// First row and number of rows of a group.
    fn rows(&self, group: usize) -> (usize, usize) {
        let offset = |index: usize| self.offsets[index].try_into().unwrap_or(0);
        let start = offset(group);
        (start, offset(group + 1) - start)
    }
}
