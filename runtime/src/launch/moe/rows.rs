//! Launches that permute rows into expert order and back.

use meshgrad_kernels::In;
use meshgrad_kernels::token_permute::{
    PermuteTokens, PermuteTokensArguments, UnpermuteGradWeights, UnpermuteGradWeightsArguments,
    UnpermuteTokens, UnpermuteTokensArguments,
};

use super::FAMILY;
use crate::launch::{Launcher, Operand, Plan, PlanError, aligned, extent, float};
use crate::{Result, Tensor, UninitTensor};

/// y\[r\] = weights\[s\] x\[s / top_k\] with slot s = order\[r\]; without `weights`, the factor is
/// 1. Rows without a slot, and those from the last offset on, are zero. `offsets` is not empty.
pub(crate) fn permute_tokens(
    gpu: &Launcher<'_>,
    x: &Tensor,
    weights: Option<&Tensor>,
    [order, offsets]: [&Tensor; 2],
    top_k: usize,
    y: &UninitTensor,
) -> Result<()> {
    let last = offsets.elements().saturating_sub(1);
    let segments = u32::try_from(last).unwrap_or(u32::MAX).clamp(1, MAX_SEGMENTS);
    let plan = permute(&Operand::of(x), [y.shape()[0], top_k], segments, weights.is_some());
    let plan = gpu.planned(plan)?;
    let slots = x.shape()[0] * top_k; // the plan checked that they fit
    let arguments = PermuteTokensArguments {
        x: gpu.ptr(x)?,
        weights: weights.map_or(Ok(In(0)), |weights| gpu.ptr(weights))?,
        order: gpu.ptr(order)?,
        end: gpu.ptr(offsets)?.byte_add(8 * last as u64),
        y: gpu.uninit_ptr(y)?,
        rows: plan.rows,
        segments,
        slots: slots as u32,
        top_k: plan.top_k,
        features: plan.features,
        faults: gpu.fault_site(slots),
        // The end may equal the number of rows.
        end_faults: gpu.fault_site(plan.rows as usize + 1),
    };
    gpu.run(&plan.kernel, &arguments)
}

/// out\[n\] = the sum of weights\[s\] y\[row_of_slot\[s\]\] over the slots s of token n; without
/// `weights`, the factor is 1.
pub(crate) fn unpermute_tokens(
    gpu: &Launcher<'_>,
    y: &Tensor,
    weights: Option<&Tensor>,
    row_of_slot: &Tensor,
    out: &UninitTensor,
) -> Result<()> {
    let rows = Operand::of(row_of_slot);
    let plan = gpu.planned(unpermute(&Operand::of(y), &rows, weights.is_some()))?;
    let arguments = UnpermuteTokensArguments {
        y: gpu.ptr(y)?,
        weights: weights.map_or(Ok(In(0)), |weights| gpu.ptr(weights))?,
        row_of_slot: gpu.ptr(row_of_slot)?,
        out: gpu.uninit_ptr(out)?,
        tokens: out.shape()[0] as u64,
        rows: plan.rows,
        top_k: plan.top_k,
        features: plan.features,
        faults: gpu.fault_site(plan.rows as usize),
    };
    gpu.run(&plan.kernel, &arguments)
}

/// dweights\[s\] = the dot product of dout\[s / top_k\] and y\[row_of_slot\[s\]\].
pub(crate) fn unpermute_tokens_grad_weights(
    gpu: &Launcher<'_>,
    [dout, y, row_of_slot]: [&Tensor; 3],
    dweights: &UninitTensor,
) -> Result<()> {
    let operands = [dout, y, row_of_slot].map(Operand::of);
    let plan = gpu.planned(unpermute_grad_weights(&operands))?;
    let arguments = UnpermuteGradWeightsArguments {
        dout: gpu.ptr(dout)?,
        y: gpu.ptr(y)?,
        row_of_slot: gpu.ptr(row_of_slot)?,
        dweights: gpu.uninit_ptr(dweights)?,
        slots: row_of_slot.elements() as u32, // the plan checked that they fit
        rows: plan.rows,
        top_k: plan.top_k,
        features: plan.features,
        faults: gpu.fault_site(plan.rows as usize),
    };
    gpu.run(&plan.kernel, &arguments)
}

/// One kernel launch and the extents of its operands.
#[derive(Debug)]
struct Moved<V> {
    kernel: Plan<V>,
    /// Rows in expert order.
    rows: u32,
    /// Slots per token.
    top_k: u32,
    /// Features per row.
    features: u32,
}

/// The maximum number of slots and rows, which are i32.
const MAX_EXTENT: u32 = i32::MAX as u32;

/// The maximum number of segments of rows in expert order. A segment has at most one incomplete row of
/// CTAs, so few segments keep the number of idle groups small.
const MAX_SEGMENTS: u32 = 1024;

fn permute(
    x: &Operand,
    [rows, top_k]: [usize; 2],
    segments: u32,
    weighted: bool,
) -> Result<Moved<PermuteTokens>, PlanError> {
    let features = features_of(x)?;
    let rows = extent(FAMILY, "rows", rows, MAX_EXTENT)?;
    extent(FAMILY, "slots", x.layout.shape()[0].saturating_mul(top_k), MAX_EXTENT)?;
    let variant = PermuteTokens::new(float(x.dtype)?, features, aligned(&[x]), weighted);
    Ok(Moved {
        kernel: Plan::new(variant.launch(rows, segments), variant),
        rows,
        top_k: extent(FAMILY, "slots of a token", top_k, MAX_EXTENT)?,
        features,
    })
}

fn unpermute(
    y: &Operand,
    row_of_slot: &Operand,
    weighted: bool,
) -> Result<Moved<UnpermuteTokens>, PlanError> {
    let features = features_of(y)?;
    let variant = UnpermuteTokens::new(float(y.dtype)?, features, aligned(&[y]), weighted);
    let [tokens, top_k] = [row_of_slot.layout.shape()[0], row_of_slot.layout.shape()[1]];
    Ok(Moved {
        kernel: Plan::new(variant.launch(tokens as u64), variant),
        rows: extent(FAMILY, "rows", y.layout.shape()[0], MAX_EXTENT)?,
        top_k: extent(FAMILY, "slots of a token", top_k, MAX_EXTENT)?,
        features,
    })
}

fn unpermute_grad_weights(
    [dout, y, row_of_slot]: &[Operand; 3],
) -> Result<Moved<UnpermuteGradWeights>, PlanError> {
    let features = features_of(y)?;
    let slots = extent(FAMILY, "slots", row_of_slot.layout.shape().elements(), MAX_EXTENT)?;
    let variant = UnpermuteGradWeights::new(float(y.dtype)?, features, aligned(&[dout, y]));
    Ok(Moved {
        kernel: Plan::new(variant.launch(slots), variant),
        rows: extent(FAMILY, "rows", y.layout.shape()[0], MAX_EXTENT)?,
        top_k: extent(FAMILY, "slots of a token", row_of_slot.layout.shape()[1], MAX_EXTENT)?,
        features,
    })
}

fn features_of(matrix: &Operand) -> Result<u32, PlanError> {
    extent(FAMILY, "features", matrix.layout.shape()[1], MAX_EXTENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Layout, Shape};

    fn operand(dtype: DType, shape: &[usize], offset: usize) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), offset);
        Operand { dtype, layout }
    }

    #[test]
    fn unaligned_rows_are_copied_element_by_element_and_empty_ones_not_at_all() {
        let variant = |offset| {
            let x = operand(DType::BF16, &[6, 64], offset);
            permute(&x, [12, 2], 3, false).unwrap().kernel.variant
        };
        assert_eq!(variant(0), variant(8));
        assert_ne!(variant(0), variant(1));

        let (none, row_of_slot) =
            (operand(DType::F32, &[0, 8], 0), operand(DType::I32, &[0, 2], 0));
        assert_eq!(unpermute(&none, &row_of_slot, true).unwrap().kernel.launch, None);
        assert_eq!(unpermute_grad_weights(&[none, none, row_of_slot]).unwrap().kernel.launch, None);
        let refused = permute(&operand(DType::F64, &[1, 8], 0), [2, 2], 3, true);
        assert_eq!(refused.err(), Some(PlanError::DType(DType::F64)));
        assert!(permute(&operand(DType::F32, &[2, 8], 0), [2, 1 << 30], 3, true).is_err());
    }
}
