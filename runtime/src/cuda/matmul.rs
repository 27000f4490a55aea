//! Plans of matrix products, and their launches.

use meshgrad_kernels::gemm::{GemmArguments, GemmBf16, GemmF32, Order, Output, Tile};

use crate::plan::{Launcher, Operand, Plan, Unplanned, extent};
use crate::{DType, Fresh, Result, Tensor, ops};

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

/// Where a product goes: contiguous.
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
            },
        })
    }
}

/// c = a b, for each matrix of the batch.
pub(crate) fn product(gpu: &Launcher<'_>, a: &Matrices, b: &Matrices, c: &Product) -> Result<()> {
    let plan = gpu.planned(plan([a.lie, b.lie], c.sums, gpu.multiprocessors()))?;
    let Extents { m, n, k, .. } = plan.extents;
    let arguments = GemmArguments {
        a: gpu.read(&a.tensor)?,
        b: gpu.read(&b.tensor)?,
        c: c.address,
        m,
        n,
        k,
        lda: a.lie.leading,
        ldb: b.lie.leading,
        ldc: n.into(),
        batch_a: a.lie.batch,
        batch_b: b.lie.batch,
        batch_c: u64::from(m) * u64::from(n),
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

fn plan([a, b]: [Lie; 2], c: Sums, multiprocessors: u32) -> Result<Gemms, Unplanned> {
    let extents = Extents {
        batch: extent(FAMILY, "batch", a.count, MOST)?,
        m: extent(FAMILY, "m", a.rows, MOST)?,
        n: extent(FAMILY, "n", b.columns, MOST)?,
        k: extent(FAMILY, "k", a.columns, MOST)?,
    };
    let Extents { batch, m, n, .. } = extents;
    let tile = Tile::choose(m, n, batch, multiprocessors);
    let kernel = match a.dtype {
        DType::F32 => {
            let variant = GemmF32 {
                a: a.order,
                b: b.order,
                tile,
                accumulate: c.adds,
            };
            Gemm::F32(Plan {
                launch: variant.launch(m, n, batch),
                variant,
            })
        }
        DType::BF16 => {
            let variant = GemmBf16 {
                a: a.order,
                b: b.order,
                tile,
                output: match (c.dtype, c.adds) {
                    (DType::BF16, _) => Output::Bf16,
                    (_, false) => Output::F32,
                    (_, true) => Output::AddF32,
                },
                aligned: vectors_are_aligned(&[a, b], &c, &extents),
            };
            Gemm::Bf16(Plan {
                launch: variant.launch(m, n, batch),
                variant,
            })
        }
        other => return Err(Unplanned::DType(other)),
    };
    Ok(Gemms { kernel, extents })
}

/// Whether every line of every bf16 matrix begins at a multiple of 16 bytes.
pub(super) fn vectors_are_aligned(operands: &[Lie], c: &Sums, extents: &Extents) -> bool {
    let (m, n) = (u64::from(extents.m), u64::from(extents.n));
    let of_c = c.aligned && n % 8 == 0 && (m * n) % 8 == 0;
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
