//! Launches of grouped matrix products.

use meshgrad_kernels::gemm::{Chip, GemmArguments, GroupedArguments, GroupedK, GroupedM, Tile};

use super::matmul::{
    Extents, MAX_EXTENT, Matrices, MatrixLayout, Product, Sums, vectors_are_aligned,
};
use crate::launch::{Launcher, Plan, PlanError, extent, float};
use crate::{DType, Result, Tensor};

/// The family's name in errors of kernels.
const FAMILY: &str = "grouped_gemm";

/// The maximum number of groups. Each group adds at most one partial tile of 128 rows, so the rows
/// of all tiles fit in 32 bits.
const MOST_GROUPS: u32 = MAX_EXTENT / 128;

/// c_rows = a_rows b_g for the rows of each group g, with row-major `a` \[R, K\] and `b` \[G, K,
/// N\]; zeros in rows without a group.
pub(crate) fn rows_by_group(
    gpu: &Launcher<'_>,
    [a, b]: [&Matrices; 2],
    offsets: &Tensor,
    c: &Product,
) -> Result<()> {
    let plan = by_rows([a.layout, b.layout], c.sums, gpu.chip());
    let Grouped { kernel, extents } = gpu.planned(plan)?;
    let product = GemmArguments {
        batch_b: b.layout.batch,
        batch_c: 0,
        ..arguments(gpu, [a, b], c, extents)?
    };
    let arguments = grouped(gpu, product, offsets, extents.batch, extents.m)?;
    gpu.run(&kernel, &arguments)
}

/// c_g += a_rows^T b_rows (or =, if c is empty) over the rows of each group g, with row-major `a`
/// \[R, M\] and `b` \[R, N\]: one c per group.
pub(crate) fn sum_by_group(
    gpu: &Launcher<'_>,
    [a, b]: [&Matrices; 2],
    offsets: &Tensor,
    groups: usize,
    c: &Product,
) -> Result<()> {
    let plan = by_sums([a.layout, b.layout], groups, c.sums, gpu.chip());
    let Grouped { kernel, extents } = gpu.planned(plan)?;
    let product = GemmArguments {
        batch_b: 0,
        batch_c: u64::from(extents.m) * u64::from(extents.n),
        ..arguments(gpu, [a, b], c, extents)?
    };
    let arguments = grouped(gpu, product, offsets, extents.batch, extents.k)?;
    gpu.run(&kernel, &arguments)
}

/// The arguments of both kernels, except for the batch strides.
fn arguments(
    gpu: &Launcher<'_>,
    [a, b]: [&Matrices; 2],
    c: &Product,
    Extents { m, n, k, .. }: Extents,
) -> Result<GemmArguments> {
    Ok(GemmArguments {
        a: gpu.ptr(&a.tensor)?,
        b: gpu.ptr(&b.tensor)?,
        c: c.address,
        m,
        n,
        k,
        lda: a.layout.leading,
        ldb: b.layout.leading,
        ldc: n.into(),
        batch_a: 0,
        batch_b: 0,
        batch_c: 0,
    })
}

/// The arguments of a grouped product: those of the product, and the group offsets.
fn grouped(
    gpu: &Launcher<'_>,
    product: GemmArguments,
    offsets: &Tensor,
    groups: u32,
    rows: u32,
) -> Result<GroupedArguments> {
    Ok(GroupedArguments {
        product,
        offsets: gpu.ptr(offsets)?,
        offsets_stride: offsets.layout().strides()[0] as i64,
        groups,
        // An offset may equal the number of rows.
        faults: gpu.fault_site(rows as usize + 1),
    })
}

/// The plan of a grouped product. `extents.batch` is the number of groups.
#[derive(Debug)]
struct Grouped<V> {
    kernel: Plan<V>,
    extents: Extents,
}

fn by_rows([a, b]: [MatrixLayout; 2], c: Sums, chip: Chip) -> Result<Grouped<GroupedM>, PlanError> {
    let extents = Extents {
        batch: extent(FAMILY, "groups", b.count, MOST_GROUPS)?,
        m: extent(FAMILY, "rows", a.rows, MAX_EXTENT)?,
        n: extent(FAMILY, "n", b.columns, MAX_EXTENT)?,
        k: extent(FAMILY, "k", a.columns, MAX_EXTENT)?,
    };
    let Extents { batch, m, n, .. } = extents;
    let aligned = vectors_are_aligned(&[a, b], &c, &extents);
    let aligned_bf16 = aligned && a.dtype == DType::BF16;
    let tile = GroupedM::tile(m, n, batch, aligned_bf16, chip);
    let variant = GroupedM::new(float(a.dtype)?, b.order, tile, aligned);
    let launch = variant.launch(m, n, batch);
    let kernel = Plan { variant, launch };
    Ok(Grouped { kernel, extents })
}

fn by_sums(
    [a, b]: [MatrixLayout; 2],
    groups: usize,
    c: Sums,
    chip: Chip,
) -> Result<Grouped<GroupedK>, PlanError> {
    let extents = Extents {
        batch: extent(FAMILY, "groups", groups, MOST_GROUPS)?,
        m: extent(FAMILY, "m", a.columns, MAX_EXTENT)?,
        n: extent(FAMILY, "n", b.columns, MAX_EXTENT)?,
        k: extent(FAMILY, "rows", a.rows, MAX_EXTENT)?,
    };
    let Extents { batch, m, n, .. } = extents;
    let aligned = vectors_are_aligned(&[a, b], &c, &extents);
    let aligned_bf16 = aligned && a.dtype == DType::BF16;
    let tile = Tile::choose_grouped(m, n, batch, aligned_bf16, chip);
    let variant = GroupedK::new(float(a.dtype)?, tile, c.adds, aligned);
    let launch = variant.launch(m, n, batch);
    let kernel = Plan { variant, launch };
    Ok(Grouped { kernel, extents })
}

#[cfg(test)]
mod tests {
    use meshgrad_kernels::Dtype;
    use meshgrad_kernels::gemm::Order;

    use super::*;
    use crate::launch::Operand;
    use crate::{Layout, Shape};

    fn layout(shape: &[usize]) -> MatrixLayout {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), 0);
        let dtype = DType::BF16;
        MatrixLayout::of(&Operand { dtype, layout }).unwrap()
    }

    const CHIP: Chip = Chip { multiprocessors: 132, warpgroup_products: false };

    const SUMS: Sums = Sums { dtype: DType::BF16, adds: false, aligned: true, leading: None };

    /// The average group size selects the tile: the large one from 128 rows on.
    #[test]
    fn plans_follow_from_extents() {
        let planned = |rows, groups, n| {
            let plan =
                by_rows([layout(&[rows, 64]), layout(&[groups, 64, n])], SUMS, CHIP).unwrap();
            plan.kernel
        };
        let variant = |tile, aligned| GroupedM::new(Dtype::Bf16, Order::RowMajor, tile, aligned);
        assert_eq!(planned(4096, 32, 2048).variant, variant(Tile::Large, true));
        assert_eq!(planned(4096, 33, 2048).variant, variant(Tile::Small, true));
        assert_eq!(planned(4096, 33, 2049).variant, variant(Tile::Small, false));
        let ctas = planned(4096, 33, 2048).launch.unwrap().grid[0];
        assert_eq!(ctas, (4096 / 64 + 33) * (2048 / 64));
    }

    #[test]
    fn too_many_groups_are_refused() {
        let most = MOST_GROUPS as usize;
        let planned = |groups| by_rows([layout(&[1, 1]), layout(&[groups, 1, 1])], SUMS, CHIP);
        assert!(planned(most).is_ok());
        assert!(matches!(planned(most + 1), Err(PlanError::Kernel(_))));
    }
}
