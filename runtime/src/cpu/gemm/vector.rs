//! The micro-kernel on vector registers, for any instruction set with a vector multiply-add.
//!
//! For each unit along k, the kernel loads a row of vectors of B's panel. For each row of A it
//! broadcasts one unit and multiplies. The accumulators are 8 x 3 vectors on machines with 32
//! registers, 6 x 2 with 16: with 4 x 3, some accumulators would be stored in every iteration.
//! Rows of A that are contiguous along k are read in place, without packing.

use std::marker::PhantomData;

use half::bf16;
use pulp::{Arch, Simd, WithSimd};

use super::MatrixRef;
use super::kernel::{Dispatch, Element, Kernel, Order, Rows, Start, Tile, WithKernel};
use super::output::Sum;
use super::pack::{Unit, pack_by_depth, pack_panels_by_depth, pack_rows};
#[cfg(target_arch = "x86_64")]
use super::row;

/// A vector multiply-add and its types.
pub(super) trait Arithmetic: Copy + Send + Sync {
    type Input: Element;
    type Packed: Unit<Self::Input>;
    type Sum: Sum;
    /// A vector of packed units.
    type Units: Copy;
    /// A vector of accumulators, one per unit.
    type Sums: Copy;

    /// Accumulators per vector.
    const LANES: usize;
    /// Vector registers of the machine.
    const REGISTERS: usize;

    /// Runs `f` with the instruction set enabled.
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R;

    /// Reinterprets elements as units, if their layouts are equal.
    fn unpacked(elements: &[Self::Input]) -> Option<&[Self::Packed]>;

    fn units(self, panel: &[Self::Packed]) -> &[Self::Units];
    fn sums(self, tile: &mut [Self::Sum]) -> &mut [Self::Sums];
    fn zero(self) -> Self::Sums;
    fn broadcast(self, unit: Self::Packed) -> Self::Units;
    /// `sum + a * b` in each lane.
    fn multiply_add(self, a: Self::Units, b: Self::Units, sum: Self::Sums) -> Self::Sums;

    /// See [`Kernel::multiply_row`].
    #[inline(always)]
    fn multiply_row(
        _row: MatrixRef<'_, Self::Input>,
        _cols: MatrixRef<'_, Self::Input>,
        _sums: &mut [Self::Sum],
    ) -> Option<()> {
        None
    }
}

/// The micro-kernel with the arithmetic `A`.
#[derive(Debug, Clone, Copy)]
pub(super) struct VectorKernel<A>(pub(super) A);

impl<A: Arithmetic> VectorKernel<A> {
    const HAS_32_REGISTERS: bool = A::REGISTERS >= 32;
    const ROWS: usize = if Self::HAS_32_REGISTERS { 8 } else { 6 };
    const COLS: usize = A::LANES * if Self::HAS_32_REGISTERS { 3 } else { 2 };
}

impl<A: Arithmetic> Kernel for VectorKernel<A> {
    type Input = A::Input;
    type Packed = A::Packed;
    type Sum = A::Sum;

    const DEPTH_PER_UNIT: usize = A::Packed::DEPTH;
    const DEPTH_STEP: usize = A::Packed::DEPTH;

    fn tile(self) -> Tile {
        Tile { rows: Self::ROWS, cols: Self::COLS }
    }

    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        self.0.vectorize(f)
    }

    #[inline(always)]
    fn unpacked(rows: MatrixRef<'_, A::Input>) -> Option<Rows<'_, A::Packed>> {
        let (elements, stride) = rows.contiguous_rows()?;
        let whole = stride % A::Packed::DEPTH == 0 && rows.cols() % A::Packed::DEPTH == 0;
        let units = A::unpacked(elements).filter(|_| whole)?;
        Some(Rows { units, order: Order::Rows { stride: stride / A::Packed::DEPTH } })
    }

    #[inline(always)]
    fn pack_a(
        self,
        rows: MatrixRef<'_, A::Input>,
        panels: &mut [A::Packed],
        stride: usize,
    ) -> Order {
        if rows.transposed().rows_are_contiguous() {
            pack_panels_by_depth(rows, Self::ROWS, panels, stride);
            return Order::Depth;
        }

        let firsts = (0..rows.rows()).step_by(Self::ROWS);
        for (first, panel) in firsts.zip(panels.chunks_mut(stride)) {
            let live = Self::ROWS.min(rows.rows() - first);
            pack_rows(rows.part([first, 0], [live, rows.cols()]), panel);
        }
        Order::Rows { stride: rows.cols().div_ceil(A::Packed::DEPTH) }
    }

    #[inline(always)]
    fn pack_b(self, cols: MatrixRef<'_, A::Input>, panel: &mut [A::Packed]) {
        pack_by_depth(cols, Self::COLS, panel);
    }

    #[inline(always)]
    fn multiply(
        self,
        a: Rows<'_, A::Packed>,
        b: &[A::Packed],
        live: Tile,
        start: Start,
        sums: &mut [A::Sum],
    ) {
        // Skips unused rows (of a short group, or a single token) down to half a tile or one row,
        // and unused columns in whole vectors.
        if Self::HAS_32_REGISTERS {
            match live.rows {
                5.. => multiply_rows::<A, 8, 8, 3>(self.0, a, b, live, start, sums),
                2.. => multiply_rows::<A, 4, 8, 3>(self.0, a, b, live, start, sums),
                _ => multiply_rows::<A, 1, 8, 3>(self.0, a, b, live, start, sums),
            }
        } else {
            match live.rows {
                4.. => multiply_rows::<A, 6, 6, 2>(self.0, a, b, live, start, sums),
                2.. => multiply_rows::<A, 3, 6, 2>(self.0, a, b, live, start, sums),
                _ => multiply_rows::<A, 1, 6, 2>(self.0, a, b, live, start, sums),
            }
        }
    }

    #[inline(always)]
    fn multiply_row(
        self,
        row: MatrixRef<'_, A::Input>,
        cols: MatrixRef<'_, A::Input>,
        sums: &mut [A::Sum],
    ) -> Option<()> {
        A::multiply_row(row, cols, sums)
    }
}

/// Computes the first `ROWS` of the `TILE_ROWS` rows of a tile, which are `VECTORS` vectors wide. In
/// place of missing rows it reads the last row of A, or zeros of the panel.
#[inline(always)]
fn multiply_rows<A: Arithmetic, const ROWS: usize, const TILE_ROWS: usize, const VECTORS: usize>(
    math: A,
    a: Rows<'_, A::Packed>,
    b: &[A::Packed],
    live: Tile,
    start: Start,
    tile: &mut [A::Sum],
) {
    let (b, _) = math.units(b).as_chunks::<VECTORS>();
    let (tile, _) = math.sums(tile).as_chunks_mut::<VECTORS>();
    match a.order {
        Order::Rows { stride } => {
            let rows: [&[A::Packed]; ROWS] = std::array::from_fn(
                #[inline(always)]
                |i| &a.units[i.min(live.rows - 1) * stride..][..b.len()],
            );
            let pairs = rows.map(
                #[inline(always)]
                |row| &row.as_chunks::<2>().0[..b.len() / 2],
            );
            multiply_columns::<A, ROWS, VECTORS>(
                math,
                #[inline(always)]
                |i, pair, step| pairs[i][pair][step],
                #[inline(always)]
                |i| rows[i][b.len() - 1],
                b,
                live,
                start,
                tile,
            );
        }
        Order::Depth => {
            let depths = &a.units.as_chunks::<TILE_ROWS>().0[..b.len()];
            let pairs = &depths.as_chunks::<2>().0[..b.len() / 2];
            multiply_columns::<A, ROWS, VECTORS>(
                math,
                #[inline(always)]
                |i, pair, step| pairs[pair][step][i],
                #[inline(always)]
                |i| depths[b.len() - 1][i],
                b,
                live,
                start,
                tile,
            );
        }
    }
}

#[inline(always)]
fn multiply_columns<A: Arithmetic, const ROWS: usize, const VECTORS: usize>(
    math: A,
    unit: impl Fn(usize, usize, usize) -> A::Packed,
    last: impl Fn(usize) -> A::Packed,
    b: &[[A::Units; VECTORS]],
    live: Tile,
    start: Start,
    tile: &mut [[A::Sums; VECTORS]],
) {
    match live.cols.div_ceil(A::LANES) {
        1 => multiply_vectors::<A, ROWS, 1, VECTORS>(math, unit, last, b, start, tile),
        2 => multiply_vectors::<A, ROWS, 2, VECTORS>(math, unit, last, b, start, tile),
        _ => multiply_vectors::<A, ROWS, VECTORS, VECTORS>(math, unit, last, b, start, tile),
    }
}

/// Computes `ROWS` rows by `COLS` vectors at the upper left of a tile. `unit(i, p, s)` is unit
/// 2p + s of row i of A, and `last(i)` is its last unit.
///
/// An iteration multiplies two units, which halves the instructions that count iterations and check
/// bounds: products are a tenth faster with AVX2. Units are read one by one: the compiler would read
/// two of bf16 as one number and split it, and keep accumulators in memory, at half the speed.
#[inline(always)]
fn multiply_vectors<A: Arithmetic, const ROWS: usize, const COLS: usize, const VECTORS: usize>(
    math: A,
    unit: impl Fn(usize, usize, usize) -> A::Packed,
    last: impl Fn(usize) -> A::Packed,
    b: &[[A::Units; VECTORS]],
    start: Start,
    tile: &mut [[A::Sums; VECTORS]],
) {
    let tile = &mut tile[..ROWS];
    let mut sums = [[math.zero(); COLS]; ROWS];
    if start == Start::Resume {
        for (sum, old) in sums.iter_mut().zip(&*tile) {
            sum.copy_from_slice(&old[..COLS]);
        }
    }

    let (b_pairs, b_last) = b.as_chunks::<2>();
    for (at, b_pair) in b_pairs.iter().enumerate() {
        for (step, cols) in b_pair.iter().enumerate() {
            multiply_unit::<A, ROWS, COLS, VECTORS>(
                math,
                #[inline(always)]
                |i| unit(i, at, step),
                cols,
                &mut sums,
            );
        }
    }
    if let [cols] = b_last {
        multiply_unit::<A, ROWS, COLS, VECTORS>(math, last, cols, &mut sums);
    }

    for (new, sum) in tile.iter_mut().zip(&sums) {
        new[..COLS].copy_from_slice(sum);
    }
}

/// Adds the products of one unit of each row of A with the same unit of B's columns.
#[inline(always)]
fn multiply_unit<A: Arithmetic, const ROWS: usize, const COLS: usize, const VECTORS: usize>(
    math: A,
    unit: impl Fn(usize) -> A::Packed,
    cols: &[A::Units; VECTORS],
    sums: &mut [[A::Sums; COLS]; ROWS],
) {
    for (i, sums) in sums.iter_mut().enumerate() {
        let row = math.broadcast(unit(i));
        for (sum, &col) in sums.iter_mut().zip(cols) {
            *sum = math.multiply_add(row, col, *sum);
        }
    }
}

/// f32 fused multiply-add; the input is f32, or bf16 widened while it is packed.
#[derive(Debug)]
pub(super) struct F32<S, Input>(S, PhantomData<fn() -> Input>);

impl<S: Copy, Input> Clone for F32<S, Input> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Copy, Input> Copy for F32<S, Input> {}

impl<S, Input> F32<S, Input> {
    pub(super) fn new(simd: S) -> Self {
        Self(simd, PhantomData)
    }
}

impl<S: Simd, Input: Element> Arithmetic for F32<S, Input>
where
    f32: Unit<Input>,
{
    type Input = Input;
    type Packed = f32;
    type Sum = f32;
    type Units = S::f32s;
    type Sums = S::f32s;

    const LANES: usize = S::F32_LANES;
    const REGISTERS: usize = S::REGISTER_COUNT;

    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        self.0.vectorize(Closure(f))
    }

    #[inline(always)]
    fn unpacked(elements: &[Input]) -> Option<&[f32]> {
        f32::of_elements(elements)
    }

    #[inline(always)]
    fn units(self, panel: &[f32]) -> &[S::f32s] {
        S::as_simd_f32s(panel).0
    }

    #[inline(always)]
    fn sums(self, tile: &mut [f32]) -> &mut [S::f32s] {
        S::as_mut_simd_f32s(tile).0
    }

    #[inline(always)]
    fn zero(self) -> S::f32s {
        self.0.splat_f32s(0.0)
    }

    #[inline(always)]
    fn broadcast(self, unit: f32) -> S::f32s {
        self.0.splat_f32s(unit)
    }

    #[inline(always)]
    fn multiply_add(self, a: S::f32s, b: S::f32s, sum: S::f32s) -> S::f32s {
        self.0.mul_add_f32s(a, b, sum)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn multiply_row(
        row: MatrixRef<'_, Input>,
        cols: MatrixRef<'_, Input>,
        sums: &mut [f32],
    ) -> Option<()> {
        if S::F32_LANES != row::LANES || !std::arch::is_x86_feature_detected!("avx512f") {
            return None;
        }
        let (elements, _) = row.contiguous_rows()?;
        let units = &f32::of_elements(elements)?[..row.cols()];
        let (elements, stride) = cols.contiguous_rows()?;
        let columns = f32::of_elements(elements)?;
        // SAFETY: the feature was detected.
        unsafe { row::multiply_row(units, columns, stride, sums) };
        Some(())
    }
}

/// f64 fused multiply-add.
#[derive(Debug, Clone, Copy)]
pub(super) struct F64<S>(pub(super) S);

impl<S: Simd> Arithmetic for F64<S> {
    type Input = f64;
    type Packed = f64;
    type Sum = f64;
    type Units = S::f64s;
    type Sums = S::f64s;

    const LANES: usize = S::F64_LANES;
    const REGISTERS: usize = S::REGISTER_COUNT;

    #[inline(always)]
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        self.0.vectorize(Closure(f))
    }

    #[inline(always)]
    fn unpacked(elements: &[f64]) -> Option<&[f64]> {
        f64::of_elements(elements)
    }

    #[inline(always)]
    fn units(self, panel: &[f64]) -> &[S::f64s] {
        S::as_simd_f64s(panel).0
    }

    #[inline(always)]
    fn sums(self, tile: &mut [f64]) -> &mut [S::f64s] {
        S::as_mut_simd_f64s(tile).0
    }

    #[inline(always)]
    fn zero(self) -> S::f64s {
        self.0.splat_f64s(0.0)
    }

    #[inline(always)]
    fn broadcast(self, unit: f64) -> S::f64s {
        self.0.splat_f64s(unit)
    }

    #[inline(always)]
    fn multiply_add(self, a: S::f64s, b: S::f64s, sum: S::f64s) -> S::f64s {
        self.0.mul_add_f64s(a, b, sum)
    }
}

/// A closure that `pulp` inlines into the function that enables the instruction set.
pub(super) struct Closure<F>(pub(super) F);

impl<R, F: FnOnce() -> R> WithSimd for Closure<F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> R {
        (self.0)()
    }
}

/// Selects the instruction set for f32, f64, and bf16 widened to f32.
struct Detected<Op, Input>(Op, PhantomData<Input>);

impl<Op: WithKernel<f32>> WithSimd for Detected<Op, f32> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        self.0.run(VectorKernel(F32::<S, f32>::new(simd)));
    }
}

impl<Op: WithKernel<f64>> WithSimd for Detected<Op, f64> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        self.0.run(VectorKernel(F64(simd)));
    }
}

impl<Op: WithKernel<bf16>> WithSimd for Detected<Op, bf16> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        self.0.run(VectorKernel(F32::<S, bf16>::new(simd)));
    }
}

impl Dispatch for f32 {
    fn with_kernel(op: impl WithKernel<f32>) {
        Arch::new().dispatch(Detected(op, PhantomData::<f32>));
    }
}

impl Dispatch for f64 {
    fn with_kernel(op: impl WithKernel<f64>) {
        Arch::new().dispatch(Detected(op, PhantomData::<f64>));
    }
}

impl Dispatch for bf16 {
    fn with_kernel(op: impl WithKernel<bf16>) {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(tiles) = super::amx::AmxKernel::detect() {
                return op.run(tiles);
            }
            if let Some(dot) = super::dot::Dot::detect_fast() {
                return op.run(VectorKernel(dot));
            }
        }

        Arch::new().dispatch(Detected(op, PhantomData::<bf16>));
    }
}
