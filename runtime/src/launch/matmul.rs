//! Launches of matrix products.

mod operands;

pub(crate) use operands::{Lines, Matrices, Part, Product};
pub(super) use operands::{MatrixLayout, Sums};

use meshgrad_kernels::Out;
use meshgrad_kernels::gemm::{
    Chip, GemmArguments, GemmBf16, GemmF32, SplitK, SplitKArguments, SplitKReduce,
    SplitKReduceArguments, Tile,
};

use crate::launch::{Launcher, Plan, PlanError, extent};
use crate::{Call, DType, Result};

/// The family's name in errors of kernels.
const FAMILY: &str = "gemm";

/// Kernels compare extents as signed integers.
pub(super) const MAX_EXTENT: u32 = i32::MAX as u32;

/// c = a b, for each matrix of a batch.
pub(crate) fn product(
    gpu: &Launcher<'_>,
    call: &Call,
    [a, b]: [&Matrices; 2],
    c: &Product,
) -> Result<()> {
    multiply(gpu, call, [a.part(gpu)?, b.part(gpu)?], c)
}

/// As [`product`], for operands whose addresses are known.
pub(crate) fn multiply(
    gpu: &Launcher<'_>,
    call: &Call,
    [a, b]: [Part; 2],
    c: &Product,
) -> Result<()> {
    let plan = gpu.planned(plan([a.layout, b.layout], c.sums, gpu.chip()))?;
    let Some(sum) = &plan.sum else {
        return multiply_into(gpu, &plan, [a, b], c.address, c.sums.leading);
    };
    let elements = plan.extents.elements();
    let parts = plan.split.parts;
    let workspace = call.workspace(parts as usize * elements as usize, DType::F32)?;
    let workspace = gpu.uninit_ptr(&workspace)?;
    multiply_into(gpu, &plan, [a, b], workspace, None)?;
    let arguments =
        SplitKReduceArguments { parts: workspace.written(), c: c.address, elements, count: parts };
    gpu.run(sum, &arguments)
}

/// Launches the product, or its split-k parts, with output address `c`.
fn multiply_into(
    gpu: &Launcher<'_>,
    plan: &Gemms,
    [a, b]: [Part; 2],
    c: Out,
    leading: Option<usize>,
) -> Result<()> {
    let Extents { batch, m, n, k } = plan.extents;
    let product = GemmArguments {
        a: a.address,
        b: b.address,
        c,
        m,
        n,
        k,
        lda: a.layout.leading,
        ldb: b.layout.leading,
        ldc: leading.map_or(n.into(), |leading| leading as u64),
        batch_a: a.layout.batch,
        batch_b: b.layout.batch,
        batch_c: u64::from(m) * u64::from(n),
    };
    let arguments = SplitKArguments { product, products: batch, depth: plan.split.depth };
    match &plan.kernel {
        Gemm::F32(kernel) => gpu.run(kernel, &arguments),
        Gemm::Bf16(kernel) => gpu.run(kernel, &arguments),
    }
}

/// The plan of a matrix product.
#[derive(Debug)]
struct Gemms {
    kernel: Gemm,
    extents: Extents,
    split: SplitK,
    /// The kernel that adds the split-k parts.
    sum: Option<Plan<SplitKReduce>>,
}

/// The kernel, by dtype.
#[derive(Debug, PartialEq, Eq)]
enum Gemm {
    F32(Plan<GemmF32>),
    Bf16(Plan<GemmBf16>),
}

/// The extents of `batch` products \[m, k\] \[k, n\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extents {
    pub(super) batch: u32,
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
}

impl Extents {
    /// The elements of all results.
    fn elements(&self) -> u64 {
        u64::from(self.batch) * u64::from(self.m) * u64::from(self.n)
    }
}

fn plan([a, b]: [MatrixLayout; 2], c: Sums, chip: Chip) -> Result<Gemms, PlanError> {
    let extents = Extents {
        batch: extent(FAMILY, "batch", a.count, MAX_EXTENT)?,
        m: extent(FAMILY, "m", a.rows, MAX_EXTENT)?,
        n: extent(FAMILY, "n", b.columns, MAX_EXTENT)?,
        k: extent(FAMILY, "k", a.columns, MAX_EXTENT)?,
    };
    let Extents { batch, m, n, k } = extents;
    let aligned = vectors_are_aligned(&[a, b], &c, &extents);
    let tile = match (a.dtype, aligned) {
        (DType::BF16, true) => Tile::choose_bf16(m, n, batch, chip),
        _ => Tile::choose(m, n, batch, chip.multiprocessors),
    };
    // The kernel that adds split-k parts writes contiguous rows only.
    let split = match c.leading {
        Some(leading) if leading != n as usize => SplitK::none(k),
        _ => SplitK::choose(tile, [m, n, k], batch, chip.multiprocessors),
    };

    let whole = split.parts == 1;
    let of_parts = if whole { c } else { Sums::OF_PARTS };
    let kernel = kernel([a, b], of_parts, &extents, tile, split.parts)?;
    let sum = (!whole).then(|| {
        let variant = SplitKReduce {
            output: c.output(),
            vectors: c.aligned && extents.elements().is_multiple_of(4),
        };
        let launch = variant.launch(extents.elements());
        Plan { variant, launch }
    });
    Ok(Gemms { kernel, extents, split, sum })
}

fn kernel(
    [a, b]: [MatrixLayout; 2],
    c: Sums,
    extents: &Extents,
    tile: Tile,
    parts: u32,
) -> Result<Gemm, PlanError> {
    let Extents { batch, m, n, .. } = *extents;
    // This does not saturate if parts > 1, because only products with few tiles are split.
    let products = batch.saturating_mul(parts);
    match a.dtype {
        DType::F32 => {
            let variant = GemmF32 { a: a.order, b: b.order, tile, accumulate: c.adds };
            Ok(Gemm::F32(Plan::new(variant.launch(m, n, products), variant)))
        }
        DType::BF16 => {
            let variant = GemmBf16 {
                a: a.order,
                b: b.order,
                tile,
                output: c.output(),
                aligned: vectors_are_aligned(&[a, b], &c, extents),
            };
            Ok(Gemm::Bf16(Plan::new(variant.launch(m, n, products), variant)))
        }
        other => Err(PlanError::DType(other)),
    }
}

/// Whether every row of every bf16 matrix is 16-byte aligned.
pub(super) fn vectors_are_aligned(operands: &[MatrixLayout], c: &Sums, extents: &Extents) -> bool {
    let n = extents.n;
    let ends = c.leading.map_or(u64::from(n), |leading| leading as u64);
    let of_c = c.aligned && ends.is_multiple_of(8);
    let mut layouts = operands.iter();
    of_c && layouts.all(|x| x.aligned && x.leading % 8 == 0 && x.batch % 8 == 0)
}

#[cfg(test)]
mod tests {
    use meshgrad_kernels::gemm::Output;

    use super::*;
    use crate::launch::Operand;
    use crate::{Layout, Shape};

    fn operand(dtype: DType, shape: &[usize], offset: usize) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), offset);
        Operand { dtype, layout }
    }

    fn layout(dtype: DType, shape: &[usize]) -> MatrixLayout {
        MatrixLayout::of(&operand(dtype, shape, 0)).unwrap()
    }

    fn chip(multiprocessors: u32) -> Chip {
        Chip { multiprocessors, warpgroup_products: false }
    }

    const F32_SUMS: Sums = Sums { dtype: DType::F32, adds: false, aligned: true, leading: None };

    #[test]
    fn alignment_depends_on_row_length_and_offset() {
        let aligned = |n, offset| {
            let a = MatrixLayout::of(&operand(DType::BF16, &[16, 32], offset)).unwrap();
            let plan = plan([a, layout(DType::BF16, &[32, n])], F32_SUMS, chip(132)).unwrap();
            match plan.kernel {
                Gemm::Bf16(plan) => plan.variant.aligned,
                Gemm::F32(_) => panic!("bf16 uses the bf16 kernel"),
            }
        };
        assert!(aligned(24, 0) && aligned(24, 8));
        assert!(!aligned(20, 0) && !aligned(24, 4));
    }

    /// A product with few tiles and a long k is split, and the last kernel adds the parts. It is
    /// not split if the rows of the result are padded, or if the tiles occupy all multiprocessors.
    #[test]
    fn few_tiles_with_a_long_k_are_split() {
        let [a, b] = [[64, 8192], [8192, 256]].map(|shape| layout(DType::BF16, &shape));
        let into = Sums { dtype: DType::F32, adds: true, ..F32_SUMS };
        let split = plan([a, b], into, chip(132)).unwrap();
        assert_eq!((split.split.parts, split.split.depth), (32, 256));
        let Gemm::Bf16(kernel) = split.kernel else { panic!("bf16 uses the bf16 kernel") };
        assert_eq!(kernel.variant.output, Output::F32);
        assert_eq!(kernel.launch.unwrap().grid[0], 4 * 32);
        let sum = split.sum.unwrap().variant;
        assert_eq!((sum.output, sum.vectors), (Output::AddF32, true));

        let padded = Sums { leading: Some(264), ..F32_SUMS };
        assert!(plan([a, b], padded, chip(132)).unwrap().sum.is_none());
        assert!(plan([a, b], F32_SUMS, chip(1)).unwrap().sum.is_none());
    }

    /// Kernels compare extents as signed integers, and would compute nothing for larger ones.
    #[test]
    fn extents_beyond_the_kernels_are_refused() {
        let most = i32::MAX as usize;
        let tall = |rows| {
            plan([layout(DType::F32, &[rows, 1]), layout(DType::F32, &[1, 1])], F32_SUMS, chip(1))
        };
        assert!(tall(most).is_ok());
        let refused = tall(most + 1).unwrap_err();
        let PlanError::Kernel(reason) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(reason.to_string(), "gemm: m = 2147483648 is not in 0..=2147483647");
    }
}
