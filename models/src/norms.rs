//! Norms over the last dim.

use meshgrad_autograd::{Init, Module, ModulePath, Param, Result, Var, ops};
use meshgrad_mesh::Placement;
use meshgrad_runtime::ops::RopeStyle;
use meshgrad_runtime::{DType, Tensor};

/// The norm before or after a block.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub enum Norm {
    /// Root mean square.
    Rms(RmsNorm),
    /// Mean and variance.
    Layer(LayerNorm),
}

impl Norm {
    /// Maps `x` [.., features] to the same shape.
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<Var> {
        match self {
            Norm::Rms(norm) => norm.forward(x),
            Norm::Layer(norm) => norm.forward(x),
        }
    }
}

impl From<RmsNorm> for Norm {
    fn from(norm: RmsNorm) -> Norm {
        Norm::Rms(norm)
    }
}

impl From<LayerNorm> for Norm {
    fn from(norm: LayerNorm) -> Norm {
        Norm::Layer(norm)
    }
}

/// Root-mean-square normalization with a weight (Zhang & Sennrich 2019).
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct RmsNorm {
    /// \[features\].
    pub weight: Param,
    /// Added to the mean square.
    pub eps: f64,
    /// Added to the weight: 0, or 1 in a norm [around one](RmsNorm::around_one).
    pub offset: f64,
}

impl RmsNorm {
    /// A norm at the path `at` over the last dim, of size `features`. The weight is one at first.
    pub fn new(at: impl Into<ModulePath>, features: usize, eps: f64) -> RmsNorm {
        let weight = Param::new(at.into().sub("weight"), [features], Init::Ones);
        RmsNorm { weight, eps, offset: 0.0 }
    }

    /// A norm that multiplies by 1 + weight, as in Gemma. The weight is zero at first.
    pub fn around_one(at: impl Into<ModulePath>, features: usize, eps: f64) -> RmsNorm {
        let weight = Param::new(at.into().sub("weight"), [features], Init::Zeros);
        RmsNorm { weight, eps, offset: 1.0 }
    }

    /// Maps `x` [.., features] to the same shape. Ranks may have shards of the features, of `x` and the weight alike.
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let axes = feature_axes(x.value());
        match axes.is_empty() {
            true => ops::rms_norm(x, &self.factor(x.dtype())?, self.eps),
            false => self.forward_sharded(x, axes),
        }
    }

    /// The residual stream `x + added` and its norm, in one pass.
    ///
    /// # Errors
    /// When shapes do not match.
    pub fn forward_sum(&self, x: &Var, added: &Var) -> Result<(Var, Var)> {
        ops::add_rms_norm(x, added, &self.factor(x.dtype())?, self.eps)
    }

    /// The residual stream `x`, a sum that is already computed, and its norm: the same bits as
    /// [`RmsNorm::forward_sum`].
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward_residual(&self, x: &Var) -> Result<(Var, Var)> {
        ops::residual_rms_norm(x, &self.factor(x.dtype())?, self.eps)
    }

    /// The norm of each head of `x` [b, t, heads, features], rotated by the angles of its position,
    /// in one pass. `cos` and `sin` are [b, t, features / 2].
    ///
    /// # Errors
    /// When shapes do not match.
    pub fn forward_rotated(&self, x: &Var, cos: &Tensor, sin: &Tensor) -> Result<Var> {
        let factor = self.factor(x.dtype())?;
        ops::rms_norm_rope(x, &factor, cos, sin, RopeStyle::Half, self.eps)
    }

    /// What normalized features are multiplied by. 1 + weight is rounded once.
    fn factor(&self, dtype: DType) -> Result<Var> {
        if self.offset == 0.0 {
            return self.weight.var_as(dtype);
        }
        let wide = if dtype == DType::BF16 { DType::F32 } else { dtype };
        ops::cast(&ops::affine(&self.weight.var_as(wide)?, 1.0, self.offset)?, dtype)
    }

    /// With the mean square over the shards that ranks have along `axes`.
    fn forward_sharded(&self, x: &Var, axes: Vec<(String, Placement)>) -> Result<Var> {
        let (dtype, shape) = (x.dtype(), x.global_shape());
        let wide = if dtype == DType::BF16 { DType::F32 } else { dtype };
        let x = ops::cast(x, wide)?;
        let last = shape.len() - 1;
        let sums = ops::redistribute(&ops::sum(&ops::square(&x)?, &[-1])?, axes)?;
        let mean_and_eps = ops::affine(&sums, (shape[last] as f64).recip(), self.eps)?;
        let inv_rms = ops::reshape(&ops::rsqrt(&mean_and_eps)?, &[&shape[..last], &[1]].concat())?;
        let y = ops::mul(&ops::mul(&x, &inv_rms)?, &self.factor(wide)?)?;
        ops::cast(&y, dtype)
    }
}

/// The axes along which ranks have shards of the last dim of `x`, to be replicated over.
fn feature_axes(x: &Tensor) -> Vec<(String, Placement)> {
    let last = x.global_shape().len() - 1;
    let axes = x.sharding().map(|it| it.axes_of_dim(last)).unwrap_or_default().into_iter();
    axes.map(|axis| (axis.to_owned(), Placement::Replicate)).collect()
}

/// Layer normalization with a weight and a bias (Ba et al. 2016).
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct LayerNorm {
    /// \[features\].
    pub weight: Param,
    /// \[features\].
    pub bias: Param,
    /// Added to the variance.
    pub eps: f64,
}

impl LayerNorm {
    /// A norm at the path `at` over the last dim, of size `features`. The weight is one and the bias zero at first.
    pub fn new(at: impl Into<ModulePath>, features: usize, eps: f64) -> LayerNorm {
        let at = at.into();
        LayerNorm {
            weight: Param::new(at.sub("weight"), [features], Init::Ones),
            bias: Param::new(at.sub("bias"), [features], Init::Zeros),
            eps,
        }
    }

    /// Maps `x` [.., features] to the same shape.
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<Var> {
        ops::layer_norm(x, &self.weight.var_as(x.dtype())?, &self.bias.var_as(x.dtype())?, self.eps)
    }
}
