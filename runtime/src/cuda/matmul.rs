//! Plans of matrix products, and their launches.

use std::ops::Range;

use meshgrad_kernels::gemm::{
    GemmArguments, GemmBf16, GemmF32, Order, Output, Split, SplitArguments, SumParts,
    SumPartsArguments, Tile,
};

use crate::plan::{Launcher, Operand, Plan, Unplanned, extent};
use crate::{Call, DType, Fresh, Result, Tensor, ops};

/// What kernels call the family in errors.
const FAMILY: &str = "gemm";

/// Kernels compare extents as signed numbers.
pub(super) const MOST: u32 = i32::MAX as u32;

/// An operand: a matrix or a batch of them, \[.., rows, columns\].
pub(crate) struct Matrices {
    pub(super) tensor: Tensor,
    pub(super) lie: Lie,
}

impl Matrices {
    /// `x` \[.., rows, columns\]: as it lies where a kernel can read that, otherwise a copy.
    pub(crate) fn new(x: &Tensor) -> Result<Matrices> {
        if let Some(lie) = Lie::of(&Operand::of(x)) {
            let tensor = x.clone();
            return Ok(Matrices { tensor, lie });
        }
        Matrices::copied(x)
    }

    /// As [`Matrices::new`], but row by row: a copy of what lies column by column.
    pub(crate) fn row_major(x: &Tensor) -> Result<Matrices> {
        let matrices = Matrices::new(x)?;
        match matrices.lie.order {
            Order::RowMajor => Ok(matrices),
            Order::ColumnMajor => Matrices::copied(x),
        }
    }

    fn copied(x: &Tensor) -> Result<Matrices> {
        let tensor = ops::copy(x)?;
        let lie = Lie::of(&Operand::of(&tensor));
        let lie = lie.expect("a kernel can read matrices that lie row by row");
        Ok(Matrices { tensor, lie })
    }

    fn part(&self, gpu: &Launcher<'_>) -> Result<Part> {
        Ok(Part {
            address: gpu.read(&self.tensor)?,
            lie: self.lie,
        })
    }
}

/// A matrix in memory, row by row, of which products take and give parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    pub(crate) address: u64,
    pub(crate) dtype: DType,
    pub(crate) columns: usize,
    /// From a row to the next, in elements.
    pub(crate) leading: usize,
    /// Whether it begins at a multiple of 16 bytes.
    pub(crate) aligned: bool,
}

impl Lines {
    /// A contiguous tensor that is read, as \[rows, its last dim\].
    pub(crate) fn of(gpu: &Launcher<'_>, x: &Tensor) -> Result<Lines> {
        Lines::at(gpu.read(x)?, x)
    }

    /// A contiguous tensor that is changed, as \[rows, its last dim\].
    pub(crate) fn changed(gpu: &Launcher<'_>, into: &Tensor) -> Result<Lines> {
        Lines::at(gpu.change(into)?, into)
    }

    fn at(address: u64, x: &Tensor) -> Result<Lines> {
        let columns = x.extent(-1)?;
        Ok(Lines {
            address,
            dtype: x.dtype(),
            columns,
            leading: columns,
            aligned: Operand::of(x).is_aligned(),
        })
    }

    /// Some of its rows.
    pub(crate) fn part(&self, rows: &Range<usize>) -> Part {
        let (address, aligned) = self.row(rows.start);
        let leading = if rows.len() > 1 { self.leading } else { 0 };
        Part {
            address,
            lie: Lie {
                dtype: self.dtype,
                rows: rows.len(),
                columns: self.columns,
                count: 1,
                order: Order::RowMajor,
                leading: leading as u64,
                batch: 0,
                aligned,
            },
        }
    }

    /// Its first few rows and columns.
    pub(crate) fn corner(&self, rows: usize, columns: usize) -> Part {
        Lines { columns, ..*self }.part(&(0..rows))
    }

    /// Where a row begins, and whether at a multiple of 16 bytes.
    fn row(&self, row: usize) -> (u64, bool) {
        let bytes = self.dtype.bytes(row * self.leading);
        let aligned = self.aligned && bytes.is_multiple_of(16);
        (self.address + bytes as u64, aligned)
    }
}

/// An operand of a product in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    address: u64,
    lie: Lie,
}

impl Part {
    /// Rows as columns: the same memory.
    pub(crate) fn transposed(self) -> Part {
        let lie = self.lie;
        let order = match lie.order {
            Order::RowMajor => Order::ColumnMajor,
            Order::ColumnMajor => Order::RowMajor,
        };
        Part {
            lie: Lie {
                rows: lie.columns,
                columns: lie.rows,
                order,
                ..lie
            },
            ..self
        }
    }
}

/// How the matrices of an operand lie: all that a plan knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lie {
    pub(super) dtype: DType,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// How many matrices.
    pub(super) count: usize,
    /// Row by row or column by column.
    pub(super) order: Order,
    /// From a row to the next (from a column, if column by column).
    pub(super) leading: u64,
    /// From a matrix to the next.
    pub(super) batch: u64,
    aligned: bool,
}

impl Lie {
    /// `None` where no kernel can read it so.
    pub(super) fn of(x: &Operand) -> Option<Lie> {
        let (shape, strides) = (x.layout.shape(), x.layout.strides());
        let ([batch @ .., rows, columns], [batch_strides @ .., row_stride, column_stride]) =
            (&shape[..], strides)
        else {
            return None;
        };
        let (order, leading, lines) = match (*row_stride, *column_stride) {
            (leading, 1) => (Order::RowMajor, leading, *rows),
            (1, leading) => (Order::ColumnMajor, leading, *columns),
            _ => return None,
        };
        // A stride that is never taken need not be aligned.
        let leading = if lines > 1 { leading } else { 0 };
        Some(Lie {
            dtype: x.dtype,
            rows: *rows,
            columns: *columns,
            count: batch.iter().product(),
            order,
            leading: u64::try_from(leading).ok()?,
            batch: u64::try_from(batch_stride(batch, batch_strides)?).ok()?,
            aligned: x.is_aligned(),
        })
    }
}

/// How far the matrices of a batch lie apart, if equally far; 0 for one.
fn batch_stride(extents: &[usize], strides: &[isize]) -> Option<isize> {
    let mut stride = None;
    let mut inner = 1;
    let dims = extents.iter().zip(strides).rev();
    for (&extent, &step) in dims.filter(|(extent, _)| **extent != 1) {
        let first = *stride.get_or_insert(step);
        if step != first * inner {
            return None;
        }
        inner *= extent as isize;
    }
    Some(stride.unwrap_or(0))
}

/// Where a product goes.
pub(crate) struct Product {
    pub(super) address: u64,
    pub(super) sums: Sums,
}

/// What becomes of the sums: all that a plan knows of where a product goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    pub(super) dtype: DType,
    pub(super) adds: bool,
    pub(super) aligned: bool,
    /// From a row to the next, in elements; `None` where rows lie side by side.
    pub(super) leading: Option<usize>,
}

impl Sums {
    /// Parts in a workspace.
    const OF_PARTS: Sums = Sums {
        dtype: DType::F32,
        adds: false,
        aligned: true,
        leading: None,
    };

    fn output(&self) -> Output {
        match (self.dtype, self.adds) {
            (DType::BF16, _) => Output::Bf16,
            (_, false) => Output::F32,
            (_, true) => Output::AddF32,
        }
    }
}

impl Product {
    /// The whole of a tensor in the making.
    pub(crate) fn fresh(gpu: &Launcher<'_>, c: &Fresh) -> Result<Product> {
        Ok(Product {
            address: gpu.make(c)?,
            sums: Sums {
                dtype: c.dtype(),
                adds: false,
                aligned: Operand::fresh(c).is_aligned(),
                leading: None,
            },
        })
    }

    /// Added to `into`, or in the place of what is there where that is `empty`.
    pub(crate) fn into(gpu: &Launcher<'_>, into: &Tensor, empty: bool) -> Result<Product> {
        Ok(Product {
            address: gpu.change(into)?,
            sums: Sums {
                dtype: into.dtype(),
                adds: !empty,
                aligned: Operand::of(into).is_aligned(),
                leading: None,
            },
        })
    }

    /// Row `row` of `into` and those below; added to what is there, if it `adds`.
    pub(crate) fn lines(into: &Lines, row: usize, adds: bool) -> Product {
        let (address, aligned) = into.row(row);
        Product {
            address,
            sums: Sums {
                dtype: into.dtype,
                adds,
                aligned,
                leading: Some(into.leading),
            },
        }
    }
}

/// c = a b, for each matrix of the batch.
pub(crate) fn product(
    gpu: &Launcher<'_>,
    call: &Call,
    [a, b]: [&Matrices; 2],
    c: &Product,
) -> Result<()> {
    multiply(gpu, call, [a.part(gpu)?, b.part(gpu)?], c)
}

/// c = a b, for each matrix of the batch.
pub(crate) fn multiply(
    gpu: &Launcher<'_>,
    call: &Call,
    [a, b]: [Part; 2],
    c: &Product,
) -> Result<()> {
    let plan = gpu.planned(plan([a.lie, b.lie], c.sums, gpu.multiprocessors()))?;
    let Some(sum) = &plan.sum else {
        return multiply_into(gpu, &plan, [a, b], c.address, c.sums.leading);
    };
    let elements = plan.extents.elements();
    let parts = plan.split.parts;
    let workspace = call.workspace(parts as usize * elements as usize, DType::F32)?;
    let workspace = gpu.make(&workspace)?;
    multiply_into(gpu, &plan, [a, b], workspace, None)?;
    let arguments = SumPartsArguments {
        parts: workspace,
        c: c.address,
        elements,
        count: parts,
    };
    gpu.run(sum, &arguments.arguments())
}

/// The product, or the parts of it, to the address `c`.
fn multiply_into(
    gpu: &Launcher<'_>,
    plan: &Gemms,
    [a, b]: [Part; 2],
    c: u64,
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
        lda: a.lie.leading,
        ldb: b.lie.leading,
        ldc: leading.map_or(n.into(), |leading| leading as u64),
        batch_a: a.lie.batch,
        batch_b: b.lie.batch,
        batch_c: u64::from(m) * u64::from(n),
    };
    let arguments = SplitArguments {
        product,
        products: batch,
        depth: plan.split.depth,
    };
    match &plan.kernel {
        Gemm::F32(kernel) => gpu.run(kernel, &arguments.arguments()),
        Gemm::Bf16(kernel) => gpu.run(kernel, &arguments.arguments()),
    }
}

/// What a product asks of a GPU.
#[derive(Debug)]
struct Gemms {
    kernel: Gemm,
    extents: Extents,
    split: Split,
    /// What adds the parts of sums that are split.
    sum: Option<Plan<SumParts>>,
}

/// The kernel of its dtype.
#[derive(Debug, PartialEq, Eq)]
enum Gemm {
    F32(Plan<GemmF32>),
    Bf16(Plan<GemmBf16>),
}

/// Of `batch` products \[m, k\] \[k, n\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extents {
    pub(super) batch: u32,
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
}

impl Extents {
    /// Elements of all products.
    fn elements(&self) -> u64 {
        u64::from(self.batch) * u64::from(self.m) * u64::from(self.n)
    }
}

fn plan([a, b]: [Lie; 2], c: Sums, multiprocessors: u32) -> Result<Gemms, Unplanned> {
    let extents = Extents {
        batch: extent(FAMILY, "batch", a.count, MOST)?,
        m: extent(FAMILY, "m", a.rows, MOST)?,
        n: extent(FAMILY, "n", b.columns, MOST)?,
        k: extent(FAMILY, "k", a.columns, MOST)?,
    };
    let Extents { batch, m, n, k } = extents;
    let aligned = vectors_are_aligned(&[a, b], &c, &extents);
    let tile = match (a.dtype, aligned) {
        (DType::BF16, true) => Tile::choose_bf16(m, n, batch, multiprocessors),
        _ => Tile::choose(m, n, batch, multiprocessors),
    };
    // Parts are added to rows that lie side by side.
    let split = match c.leading {
        Some(leading) if leading != n as usize => Split::none(k),
        _ => Split::choose(tile, [m, n, k], batch, multiprocessors),
    };

    let whole = split.parts == 1;
    let of_parts = if whole { c } else { Sums::OF_PARTS };
    let kernel = kernel([a, b], of_parts, &extents, tile, split.parts)?;
    let sum = (!whole).then(|| {
        let variant = SumParts {
            output: c.output(),
            vectors: c.aligned && extents.elements().is_multiple_of(4),
        };
        let launch = variant.launch(extents.elements());
        Plan { variant, launch }
    });
    Ok(Gemms {
        kernel,
        extents,
        split,
        sum,
    })
}

fn kernel(
    [a, b]: [Lie; 2],
    c: Sums,
    extents: &Extents,
    tile: Tile,
    parts: u32,
) -> Result<Gemm, Unplanned> {
    let Extents { batch, m, n, .. } = *extents;
    // Where sums are split there are but a few tiles.
    let products = batch.saturating_mul(parts);
    match a.dtype {
        DType::F32 => {
            let variant = GemmF32 {
                a: a.order,
                b: b.order,
                tile,
                accumulate: c.adds,
            };
            Ok(Gemm::F32(Plan {
                launch: variant.launch(m, n, products),
                variant,
            }))
        }
        DType::BF16 => {
            let variant = GemmBf16 {
                a: a.order,
                b: b.order,
                tile,
                output: c.output(),
                aligned: vectors_are_aligned(&[a, b], &c, extents),
            };
            Ok(Gemm::Bf16(Plan {
                launch: variant.launch(m, n, products),
                variant,
            }))
        }
        other => Err(Unplanned::DType(other)),
    }
}

/// Whether every line of every bf16 matrix begins at a multiple of 16 bytes.
pub(super) fn vectors_are_aligned(operands: &[Lie], c: &Sums, extents: &Extents) -> bool {
    let n = extents.n;
    let ends = c.leading.map_or(u64::from(n), |leading| leading as u64);
    let of_c = c.aligned && ends.is_multiple_of(8);
    let mut lies = operands.iter();
    of_c && lies.all(|x| x.aligned && x.leading % 8 == 0 && x.batch % 8 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Shape};

    fn operand(dtype: DType, shape: &[usize], offset: usize) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), offset);
        Operand { dtype, layout }
    }

    fn lie(dtype: DType, shape: &[usize]) -> Lie {
        Lie::of(&operand(dtype, shape, 0)).unwrap()
    }

    const F32_SUMS: Sums = Sums {
        dtype: DType::F32,
        adds: false,
        aligned: true,
        leading: None,
    };

    #[test]
    fn matrices_are_read_as_they_lie() {
        let x = operand(DType::F32, &[2, 3, 4, 5], 0);
        let straight = Lie::of(&x).unwrap();
        assert_eq!((straight.order, straight.leading), (Order::RowMajor, 5));
        assert_eq!((straight.count, straight.batch), (6, 20));

        let turned = x.layout.transpose(2, 3).unwrap();
        let turned = Lie::of(&Operand {
            layout: turned,
            ..x
        })
        .unwrap();
        assert_eq!((turned.order, turned.leading), (Order::ColumnMajor, 5));
        assert_eq!((turned.rows, turned.columns), (5, 4));

        // Heads between rows: the matrices of a batch lie unequally far apart.
        let heads = x.layout.transpose(0, 2).unwrap();
        assert_eq!(Lie::of(&Operand { layout: heads, ..x }), None);
    }

    #[test]
    fn lines_of_odd_lengths_are_not_aligned() {
        let aligned = |n, offset| {
            let a = Lie::of(&operand(DType::BF16, &[16, 32], offset)).unwrap();
            let plan = plan([a, lie(DType::BF16, &[32, n])], F32_SUMS, 132).unwrap();
            match plan.kernel {
                Gemm::Bf16(plan) => plan.variant.aligned,
                Gemm::F32(_) => panic!("bf16 takes the kernel for bf16"),
            }
        };
        assert!(aligned(24, 0) && aligned(24, 8));
        assert!(!aligned(20, 0) && !aligned(24, 4));
    }

    /// A few tiles of a long sum are made in parts, of which the last kernel knows what becomes of
    /// them; where rows do not lie side by side, or multiprocessors are busy anyway, in one.
    #[test]
    fn long_sums_of_few_tiles_are_split() {
        let [a, b] = [[64, 8192], [8192, 256]].map(|shape| lie(DType::BF16, &shape));
        let into = Sums {
            dtype: DType::F32,
            adds: true,
            ..F32_SUMS
        };
        let split = plan([a, b], into, 132).unwrap();
        assert_eq!((split.split.parts, split.split.depth), (32, 256));
        let Gemm::Bf16(kernel) = split.kernel else {
            panic!("bf16 takes the kernel for bf16")
        };
        assert_eq!(kernel.variant.output, Output::F32);
        assert_eq!(kernel.launch.unwrap().grid[0], 4 * 32);
        let sum = split.sum.unwrap().variant;
        assert_eq!((sum.output, sum.vectors), (Output::AddF32, true));

        let apart = Sums {
            leading: Some(264),
            ..F32_SUMS
        };
        assert!(plan([a, b], apart, 132).unwrap().sum.is_none());
        assert!(plan([a, b], F32_SUMS, 1).unwrap().sum.is_none());
    }

    /// Where a part begins decides, not where the whole does.
    #[test]
    fn parts_of_matrices() {
        let whole = Lines {
            address: 4096,
            dtype: DType::BF16,
            columns: 20,
            leading: 20,
            aligned: true,
        };
        let [even, odd] = [2..5, 1..5].map(|rows| whole.part(&rows));
        assert_eq!((even.address, odd.address), (4096 + 80, 4096 + 40));
        assert!(even.lie.aligned && !odd.lie.aligned);
        let turned = even.transposed();
        assert_eq!((turned.lie.rows, turned.lie.columns), (20, 3));
        assert_eq!(turned.lie.order, Order::ColumnMajor);
        assert_eq!(whole.corner(1, 4).lie.leading, 0);
    }

    /// Kernels compare extents as signed numbers: beyond that they would compute nothing.
    #[test]
    fn extents_beyond_the_kernels_are_refused() {
        let most = i32::MAX as usize;
        let tall = |rows| {
            plan(
                [lie(DType::F32, &[rows, 1]), lie(DType::F32, &[1, 1])],
                F32_SUMS,
                1,
            )
        };
        assert!(tall(most).is_ok());
        let refused = tall(most + 1).unwrap_err();
        let Unplanned::Refused(reason) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(
            reason.to_string(),
            "gemm: m = 2147483648 is not within 0 to 2147483647"
        );
    }
}
