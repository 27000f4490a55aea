//! The interface of a micro-kernel: a tile size, two panel layouts and an innermost loop.

use bytemuck::Pod;
use half::bf16;

use super::MatrixRef;
use super::output::Sum;

/// The extents of the tile of C that a micro-kernel keeps in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Tile {
    pub(super) fn len(self) -> usize {
        self.rows * self.cols
    }
}

/// Whether the accumulators of a tile start at zero or continue from the previous slab of k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    Zero,
    Resume,
}

/// The memory order of some rows of A, in units (see [`pack`](super::pack)).
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    /// Row i starts at `i * stride`.
    Rows { stride: usize },
    /// The p-th units of all rows of a tile are consecutive, from `p * tile().rows`.
    Depth,
}

/// Some rows of A, packed or in place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a, P> {
    pub(super) units: &'a [P],
    pub(super) order: Order,
}

impl<P> Rows<'_, P> {
    /// The rows after the first `rows`.
    pub(super) fn after(self, rows: usize) -> Self {
        let start = match self.order {
            Order::Rows { stride } => rows * stride,
            Order::Depth => rows,
        };
        Rows { units: &self.units[start..], ..self }
    }
}

/// A micro-kernel, and the packing of its panels. Panels of A hold `tile().rows` rows, panels of B
/// `tile().cols` columns. Panels are padded with zeros in columns and along k.
pub(super) trait Kernel: Copy + Send + Sync {
    type Input: Element;
    type Packed: Pod;
    type Sum: Sum;

    /// Elements along k in one `Packed`.
    const DEPTH_PER_UNIT: usize;
    /// Panels are padded along k to a multiple of this many elements.
    const DEPTH_STEP: usize;

    fn tile(self) -> Tile;

    /// Runs `f` with the vector instructions of this kernel enabled.
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R;

    /// `rows` of A in place, if the kernel can read them unpacked.
    fn unpacked(rows: MatrixRef<'_, Self::Input>) -> Option<Rows<'_, Self::Packed>>;

    /// Packs [rows, depth] of A into panels that are `stride` units apart, and returns their order.
    fn pack_a(
        self,
        rows: MatrixRef<'_, Self::Input>,
        panels: &mut [Self::Packed],
        stride: usize,
    ) -> Order;

    /// Packs columns of B, given as the rows of B transposed: [at most tile().cols, depth].
    fn pack_b(self, cols: MatrixRef<'_, Self::Input>, panel: &mut [Self::Packed]);

    /// Adds the product of rows of A and a panel of B to `sums`, a row-major tile of accumulators.
    /// `live` are the extents of the tile that are used; `a` has that many rows. The rest of `sums`
    /// is arbitrary.
    fn multiply(
        self,
        a: Rows<'_, Self::Packed>,
        b: &[Self::Packed],
        live: Tile,
        start: Start,
        sums: &mut [Self::Sum],
    );

    /// As [`multiply`](Self::multiply) with a single row over all of k, but reads B in place, given
    /// as for [`pack_b`](Self::pack_b). `None` if the kernel cannot.
    fn multiply_row(
        self,
        row: MatrixRef<'_, Self::Input>,
        cols: MatrixRef<'_, Self::Input>,
        sums: &mut [Self::Sum],
    ) -> Option<()>;
}

/// Code that is generic over the kernel of this machine.
pub(super) trait WithKernel<T: Element> {
    fn run<K: Kernel<Input = T, Sum = T::Sum>>(self, kernel: K);
}

/// An element type of A and B: f32, f64 or bf16.
#[expect(private_bounds, reason = "sealed: each element type has its kernels here")]
pub(crate) trait Element: Dispatch {
    /// The accumulator type.
    type Sum: Sum;
}

pub(super) trait Dispatch: Pod + Send + Sync {
    /// Runs `op` with the fastest kernel of this machine.
    fn with_kernel(op: impl WithKernel<Self>)
    where
        Self: Element;
}

impl Element for f32 {
    type Sum = f32;
}

impl Element for f64 {
    type Sum = f64;
}

impl Element for bf16 {
    type Sum = f32;
}
