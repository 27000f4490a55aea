//! Linear layers fused with cross entropy.

use super::{gradient, indices, tensor};
use crate::ops::Targets;
use crate::{DType, Device, Result, Tensor, ops};

/// Covers one tile with a warp per row (70 classes) or a CTA per row (600), several tiles (5000),
/// and labels of every index dtype.
pub(super) fn cross_entropy(device: &Device, dtype: DType) -> Result<()> {
    for index in [DType::I64, DType::I32, DType::U32] {
        for classes in [70, 600] {
            Layer::new(device, [dtype, index], classes)?.backward()?;
        }
        Layer::new(device, [dtype, index], 5000)?.forward()?;
    }
    Layer::new(device, [dtype, DType::I64], 5000)?.backward()?;

    let x = tensor(device, &[6], dtype)?;
    ops::cross_entropy_sum(&x, &x, &indices(device, &[6], DType::I64, 2)?, 0)?;
    Ok(())
}

struct Layer {
    x: Tensor,
    w: Tensor,
    labels: Tensor,
}

impl Layer {
    fn new(device: &Device, [dtype, index]: [DType; 2], classes: usize) -> Result<Layer> {
        Ok(Layer {
            x: tensor(device, &[6, 8], dtype)?,
            w: tensor(device, &[classes, 8], dtype)?,
            labels: indices(device, &[6], index, classes)?,
        })
    }

    fn targets(&self) -> Targets<'_> {
        Targets {
            labels: &self.labels,
            ignore_index: -100,
            vocab_start: 0,
            vocab_total: self.w.shape()[0],
        }
    }

    /// Runs the forward pass. Returns two of its results in place of lse and dloss, whose values do
    /// not matter here.
    fn forward(&self) -> Result<[Tensor; 2]> {
        let (lse, dloss, label_logit) =
            ops::linear_cross_entropy(&self.x, &self.w, self.targets())?;
        ops::cross_entropy_sum(&lse, &label_logit, &self.labels, -100)?;
        Ok([lse, dloss])
    }

    fn backward(&self) -> Result<()> {
        let (x, w, targets) = (&self.x, &self.w, self.targets());
        let [lse, dloss] = self.forward()?;
        let mut dw = gradient(x.device(), &w.shape()[..])?;
        ops::linear_cross_entropy_grad_input(x, w, targets, &lse, &dloss)?;
        ops::linear_cross_entropy_grad_weight_into(x, w, targets, &lse, &dloss, &mut dw)?;
        ops::linear_cross_entropy_grad_both_into(x, w, targets, &lse, &dloss, &mut dw)?;
        Ok(())
    }
}
