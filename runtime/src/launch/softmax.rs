//! Launches of softmax and log-softmax. Operands are contiguous.

pub(crate) use meshgrad_kernels::softmax::Function;
use meshgrad_kernels::softmax::{Softmax, SoftmaxArguments};

use crate::launch::{Launcher, MAX_EXTENT, Operand, Plan, PlanError, Rows, aligned, extent, float};
use crate::{Result, Tensor, UninitTensor};

/// The family's name in errors of kernels.
const FAMILY: &str = "softmax";

/// y = softmax(x) or log_softmax(x), per row.
pub(crate) fn softmax(
    gpu: &Launcher<'_>,
    function: Function,
    x: &Tensor,
    y: &UninitTensor,
) -> Result<()> {
    let plan = gpu.planned(forward(function, &Operand::of(x)))?;
    let arguments = SoftmaxArguments {
        x: gpu.ptr(x)?,
        y: gpu.uninit_ptr(y)?,
        rows: plan.rows,
        features: plan.features,
    };
    gpu.run(&plan.kernel, &arguments)
}

fn forward(function: Function, x: &Operand) -> Result<Rows<Softmax>, PlanError> {
    let (rows, features) = rows_of(x)?;
    let variant = Softmax::new(function, float(x.dtype)?, features as usize, aligned(&[x]));
    Ok(Rows { kernel: Plan::new(variant.launch(rows), variant), rows, features })
}

/// The rows and features; no rows if there are no features.
fn rows_of(x: &Operand) -> Result<(u64, u32), PlanError> {
    let shape = x.layout.shape();
    let features = shape.last().copied().unwrap_or(1);
    let rows = shape.elements().checked_div(features).unwrap_or(0);
    let features = extent(FAMILY, "features", features, MAX_EXTENT)?;
    Ok((rows as u64, features))
}

#[cfg(test)]
mod tests {
    use meshgrad_kernels::Dtype;

    use super::*;
    use crate::{DType, Layout, Shape};

    fn operand(dtype: DType, shape: &[usize], offset: usize) -> Operand {
        let layout = Layout::contiguous(Shape::new(shape).unwrap(), offset);
        Operand { dtype, layout }
    }

    #[test]
    fn unaligned_rows_use_the_looping_kernel() {
        let variant = |offset| {
            let x = operand(DType::F32, &[6, 64], offset);
            forward(Function::Softmax, &x).unwrap().kernel.variant
        };
        let expected = |aligned| Softmax::new(Function::Softmax, Dtype::F32, 64, aligned);
        assert_eq!((variant(0), variant(1)), (expected(true), expected(false)));
    }

    #[test]
    fn empty_inputs_launch_nothing_and_f64_is_rejected() {
        for shape in [[0, 8], [8, 0]] {
            let plan = forward(Function::LogSoftmax, &operand(DType::BF16, &shape, 0)).unwrap();
            assert_eq!(plan.kernel.launch, None);
        }
        let refused = forward(Function::Softmax, &operand(DType::F64, &[2, 3], 0));
        assert_eq!(refused.err(), Some(PlanError::DType(DType::F64)));
    }
}
