//! Launches of rotary position embedding.
//!
//! Heads may be a view, such as the queries of a fused projection, and one table may serve all
//! sequences: both are read without a copy if features and angles are contiguous.

use meshgrad_kernels::rope::{
    Direction, HeadStrides, Heads, PositionFormat, Rope, RopeArguments, RopeTables,
    RopeTablesArguments, Style, TableStrides,
};

use crate::core::arguments::rope::RopeStyle;
use crate::core::arguments::rope::Rotation;
use crate::launch::{Launcher, MAX_EXTENT, Operand, Plan, PlanError, extent, float};
use crate::{DType, Result, Tensor, UninitTensor};

/// The family's name in errors of kernels.
const FAMILY: &str = "rope";

/// cos and sin of position * inv_freq, times `factor`; positions and frequencies are contiguous.
pub(crate) fn tables(
    gpu: &Launcher<'_>,
    [positions, inv_freq]: [&Tensor; 2],
    factor: f64,
    [cos, sin]: [&UninitTensor; 2],
) -> Result<()> {
    let plan = tables_plan(positions.dtype(), positions.elements(), inv_freq.elements());
    let (plan, elements, pairs) = gpu.planned(plan)?;
    let arguments = RopeTablesArguments {
        positions: gpu.ptr(positions)?,
        inv_freq: gpu.ptr(inv_freq)?,
        cos: gpu.uninit_ptr(cos)?,
        sin: gpu.uninit_ptr(sin)?,
        elements,
        pairs,
        factor,
    };
    gpu.run(&plan, &arguments)
}

/// Rotates the pairs of every head of `x` [b, t, n, d] by tables [b, t, h].
pub(crate) fn rope(
    gpu: &Launcher<'_>,
    x: &Tensor,
    [cos, sin]: [&Tensor; 2],
    style: RopeStyle,
    rotation: Rotation,
    y: &UninitTensor,
) -> Result<()> {
    let direction = match rotation {
        Rotation::Forward => Direction::Forward,
        Rotation::Inverse => Direction::Inverse,
    };
    let rotated = RotatedHeads::new(&Operand::of(x), [cos, sin].map(Operand::of));
    let rotated = gpu.planned(rotated)?;
    let dtype = gpu.planned(float(x.dtype()))?;
    let (heads, aligned) = (&rotated.heads, rotated.aligned);
    let variant = Rope::new(dtype, format(style), direction, heads, aligned);
    let arguments = RopeArguments {
        x: gpu.ptr(x)?,
        cos: gpu.ptr(cos)?,
        sin: gpu.ptr(sin)?,
        y: gpu.uninit_ptr(y)?,
        heads: rotated.heads,
        of_x: rotated.of_x,
        of_cos: rotated.of_tables[0],
        of_sin: rotated.of_tables[1],
    };
    let launch = variant.launch(heads);
    gpu.run(&Plan { variant, launch }, &arguments)
}

/// The kernels' format of a style.
pub(super) fn format(style: RopeStyle) -> Style {
    match style {
        RopeStyle::Half => Style::Half,
        RopeStyle::Interleaved => Style::Interleaved,
    }
}

/// Heads and tables as kernel parameters.
#[derive(Debug)]
pub(super) struct RotatedHeads {
    pub(super) heads: Heads,
    pub(super) of_x: HeadStrides,
    pub(super) of_tables: [TableStrides; 2],
    /// Whether all heads and all rows of tables are 16-byte aligned.
    pub(super) aligned: bool,
}

impl RotatedHeads {
    /// `x` [b, t, n, d] and two tables [b, t, h] with contiguous last dims.
    pub(super) fn new(x: &Operand, tables: [Operand; 2]) -> Result<RotatedHeads, PlanError> {
        let shape = x.layout.shape();
        let rows: usize = shape[..3].iter().product();
        let heads = Heads {
            rows: extent(FAMILY, "heads", rows, Heads::MAX_ROWS)?,
            positions: extent(FAMILY, "positions", shape[1], MAX_EXTENT)?,
            heads: extent(FAMILY, "heads of a position", shape[2], MAX_EXTENT)?,
            features: extent(FAMILY, "features", shape[3], MAX_EXTENT)?,
            pairs: extent(FAMILY, "pairs", tables[0].layout.shape()[2], MAX_EXTENT)?,
        };
        let of_x = head_strides(x);
        let of_tables = tables.map(|table| {
            let [batch, position] = [0, 1].map(|dim| stride(&table, dim));
            TableStrides { batch, position }
        });
        let aligned = is_aligned(x)?
            && tables.iter().all(Operand::is_aligned)
            && of_tables.iter().all(TableStrides::keep_alignment);
        Ok(RotatedHeads { heads, of_x, of_tables, aligned })
    }
}

/// The strides of [b, t, n, d].
pub(super) fn head_strides(x: &Operand) -> HeadStrides {
    let [batch, position, head] = [0, 1, 2].map(|dim| stride(x, dim));
    HeadStrides { batch, position, head }
}

/// Whether all heads of [b, t, n, d] are 16-byte aligned.
pub(super) fn is_aligned(x: &Operand) -> Result<bool, PlanError> {
    Ok(x.is_aligned() && head_strides(x).keep_alignment(float(x.dtype)?))
}

/// The stride of a dim; 0 for a dim of extent 1.
fn stride(x: &Operand, dim: usize) -> i64 {
    match x.layout.shape()[dim] {
        0 | 1 => 0,
        _ => x.layout.strides()[dim] as i64,
    }
}

/// The kernel that writes the tables, the number of their elements, and the pairs per position.
fn tables_plan(
    dtype: DType,
    positions: usize,
    pairs: usize,
) -> Result<(Plan<RopeTables>, u32, u32), PlanError> {
    let format = match dtype {
        DType::I64 => PositionFormat::I64,
        DType::I32 => PositionFormat::I32,
        DType::U32 => PositionFormat::U32,
        other => return Err(PlanError::DType(other)),
    };
    let elements = positions.saturating_mul(pairs);
    let elements = extent(FAMILY, "angles", elements, RopeTables::MAX_ELEMENTS)?;
    let pairs = extent(FAMILY, "pairs", pairs, MAX_EXTENT)?;
    let variant = RopeTables::new(format);
    let launch = variant.launch(elements);
    Ok((Plan { variant, launch }, elements, pairs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, Shape};

    fn operand(dtype: DType, shape: &[usize], offset: usize) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), offset);
        Operand { dtype, layout }
    }

    /// Queries of a fused projection, and one table for all sequences.
    #[test]
    fn views_are_read_without_a_copy() {
        let mut x = operand(DType::BF16, &[2, 3, 6, 64], 0);
        x.layout = x.layout.slice(2, 2..4).unwrap();
        let mut table = operand(DType::F32, &[1, 3, 32], 0);
        table.layout = table.layout.broadcast_to(&[2, 3, 32]).unwrap();
        let rotated = RotatedHeads::new(&x, [table, table]).unwrap();
        assert!(rotated.aligned);
        assert_eq!((rotated.heads.rows, rotated.heads.heads), (12, 2));
        assert_eq!(rotated.of_x.position, 6 * 64);
        assert_eq!(rotated.of_tables[0].batch, 0);
        assert_eq!(rotated.of_tables[1].position, 32);

        let unaligned = operand(DType::BF16, &[2, 3, 2, 64], 1);
        let rotated = RotatedHeads::new(&unaligned, [table, table]).unwrap();
        assert!(!rotated.aligned);
    }

    #[test]
    fn too_many_angles_and_float_positions_are_rejected() {
        let refused = tables_plan(DType::I64, 1 << 20, 1 << 13).err();
        assert!(matches!(refused, Some(PlanError::Kernel(_))));
        let refused = tables_plan(DType::F32, 4, 4).err();
        assert_eq!(refused, Some(PlanError::DType(DType::F32)));
        assert_eq!(tables_plan(DType::I32, 0, 4).unwrap().0.launch, None);
    }
}
