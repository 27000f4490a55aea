//! Products of small contiguous blocks, accumulated in registers.
//!
//! Every element of the result is computed in one lane as c + a_0 b_0 + a_1 b_1 + ..., in the order
//! of k. Each step is a fused multiply-add, or a multiply and an add without FMA. The tile shape
//! affects speed but not bits, so a query's result does not depend on the other queries.

use pulp::{Simd, WithSimd};

use super::real::Real;

/// How A is stored: element (i, p) of an M x K matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// At i * stride + p.
    Rows,
    /// At p * stride + i.
    Columns,
}

/// C = A B or C = C + A B: A is [M, K] in either order, B [K, N] and C [M, N] are row-major; N is a
/// multiple of the vector length.
pub(super) struct Product<'a, R> {
    pub(super) order: Order,
    pub(super) a: &'a [R],
    pub(super) a_stride: usize,
    pub(super) b: &'a [R],
    pub(super) b_stride: usize,
    pub(super) c: &'a mut [R],
    pub(super) c_stride: usize,
    /// M, N, K.
    pub(super) extents: [usize; 3],
    /// Whether to add to C.
    pub(super) accumulate: bool,
}

impl<R: Real> WithSimd for Product<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let lanes = lanes::<S, R>();
        let [_, n, _] = self.extents;

        let mut column = 0;
        while column + 2 * lanes <= n {
            self.panel::<S, 2>(simd, column);
            column += 2 * lanes;
        }
        while column < n {
            self.panel::<S, 1>(simd, column);
            column += lanes;
        }
    }
}

/// Elements per vector.
#[inline(always)]
pub(super) fn lanes<S: Simd, R: Real>() -> usize {
    size_of::<R::Vector<S>>() / size_of::<R>()
}

impl<R: Real> Product<'_, R> {
    /// Computes all rows of `N` vectors of columns. There are 12 x 2 accumulators on machines with
    /// 32 vector registers, and 4 x 2 with 16.
    #[inline(always)]
    fn panel<S: Simd, const N: usize>(&mut self, simd: S, column: usize) {
        let [m, ..] = self.extents;

        let mut row = 0;
        while S::REGISTER_COUNT >= 32 && row + 12 <= m {
            self.tile::<S, 12, N>(simd, row, column);
            row += 12;
        }
        while S::REGISTER_COUNT >= 32 && row + 8 <= m {
            self.tile::<S, 8, N>(simd, row, column);
            row += 8;
        }
        while row + 4 <= m {
            self.tile::<S, 4, N>(simd, row, column);
            row += 4;
        }
        while row < m {
            self.tile::<S, 1, N>(simd, row, column);
            row += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const M: usize, const N: usize>(
        &mut self,
        simd: S,
        row: usize,
        column: usize,
    ) {
        let mut sums = [[R::splat(simd, R::ZERO); N]; M];
        if self.accumulate {
            for (i, sums) in sums.iter_mut().enumerate() {
                let c = &self.c[(row + i) * self.c_stride + column..];
                sums.copy_from_slice(&R::vectors::<S>(c)[..N]);
            }
        }

        match self.order {
            Order::Rows => self.add_rows(simd, &mut sums, row, column),
            Order::Columns => self.add_columns(simd, &mut sums, row, column),
        }

        for (i, sums) in sums.iter().enumerate() {
            let c = &mut self.c[(row + i) * self.c_stride + column..];
            R::vectors_mut::<S>(c)[..N].copy_from_slice(sums);
        }
    }

    #[inline(always)]
    fn add_rows<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        sums: &mut [[R::Vector<S>; N]; M],
        row: usize,
        column: usize,
    ) {
        let [.., k] = self.extents;
        let rows: [&[R]; M] = std::array::from_fn(|i| &self.a[(row + i) * self.a_stride..][..k]);

        for (p, b) in self.b[column..].chunks(self.b_stride).take(k).enumerate() {
            let b = &R::vectors::<S>(b)[..N];
            for i in 0..M {
                add_scaled(simd, &mut sums[i], rows[i][p], b);
            }
        }
    }

    #[inline(always)]
    fn add_columns<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        sums: &mut [[R::Vector<S>; N]; M],
        row: usize,
        column: usize,
    ) {
        let [.., k] = self.extents;
        let a = self.a[row..].chunks(self.a_stride);
        let b = self.b[column..].chunks(self.b_stride);

        for (a, b) in a.zip(b).take(k) {
            let (a, b) = (&a[..M], &R::vectors::<S>(b)[..N]);
            for i in 0..M {
                add_scaled(simd, &mut sums[i], a[i], b);
            }
        }
    }
}

/// sums += a b.
#[inline(always)]
fn add_scaled<S: Simd, R: Real, const N: usize>(
    simd: S,
    sums: &mut [R::Vector<S>; N],
    a: R,
    b: &[R::Vector<S>],
) {
    let a = R::splat(simd, a);
    for (sum, b) in sums.iter_mut().zip(b) {
        *sum = R::mul_add_lanes(simd, a, *b, *sum);
    }
}
