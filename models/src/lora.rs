//! Low-rank adaptation (Hu et al. 2021): a small trained update of a weight that is not trained.
//!
//! Legend: r rank.

use meshgrad_autograd::{Init, Module, ModulePath, Param, Result, Var, ops};
use meshgrad_runtime::Tensor;

/// scale x a^T b^T, added to the result of a [`Linear`](crate::layers::Linear). Zero at first,
/// because `b` is.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Lora {
    /// [r, in].
    pub a: Param,
    /// [out, r].
    pub b: Param,
    /// alpha / r.
    pub scale: f64,
}

impl Lora {
    /// An update of a projection from `inputs` to `outputs` features at the path `at`, under the
    /// names that PEFT uses: `lora_A.weight`, `lora_B.weight`.
    pub fn new(at: &ModulePath, inputs: usize, outputs: usize, rank: usize, alpha: f64) -> Lora {
        let bound = (inputs as f64).sqrt().recip();
        Lora {
            a: Param::new(at.sub("lora_A.weight"), [rank, inputs], Init::Uniform { bound }),
            b: Param::new(at.sub("lora_B.weight"), [outputs, rank], Init::Zeros),
            scale: alpha / rank.max(1) as f64,
        }
    }

    /// Maps `x` [.., in] to [.., out].
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let inside = ops::linear(x, &self.a.var_as(x.dtype())?)?;
        let y = ops::linear(&inside, &self.b.var_as(x.dtype())?)?;
        ops::affine(&y, self.scale, 0.0)
    }

    /// The update as a matrix, scale b a, [out, in] in the parameters' dtype.
    ///
    /// # Errors
    /// When a parameter has no value.
    pub fn matrix(&self) -> Result<Tensor> {
        ops::affine(&ops::matmul(&self.b.value()?, &self.a.value()?)?, self.scale, 0.0)
    }
}
