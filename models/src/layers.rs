//! The smallest blocks: a projection and a norm.

use meshgrad_autograd::{Init, Module, Param, Result, Var, ops};
use meshgrad_runtime::Tensor;
use meshgrad_runtime::ops::RopeStyle;

/// y = x w^T, or x w^T + b.
#[derive(Clone)]
pub struct Linear {
    /// [out, in].
    pub weight: Param,
    /// \[out\].
    pub bias: Option<Param>,
}

impl Linear {
    /// A projection named `name` from `inputs` to `outputs` features. The weight is normal with
    /// standard deviation `std`, the bias zero.
    ///
    /// # Errors
    /// None: the shapes are valid.
    pub fn new(name: &str, inputs: usize, outputs: usize, bias: bool, std: f64) -> Result<Linear> {
        let weight = Param::new(
            format!("{name}.weight"),
            &[outputs, inputs],
            Init::Normal { std },
        )?;
        let bias = bias.then(|| Param::new(format!("{name}.bias"), &[outputs], Init::Zeros));
        Ok(Linear {
            weight,
            bias: bias.transpose()?,
        })
    }

    /// Maps `x` [.., in] to [.., out], in `x`'s dtype.
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let y = ops::linear(x, &self.weight.var_as(x.dtype())?)?;
        match &self.bias {
            Some(bias) => ops::add(&y, &bias.var_as(x.dtype())?),
            None => Ok(y),
        }
    }
}

impl Module for Linear {
    fn visit(&self, visitor: &mut dyn FnMut(&Param)) {
        visitor(&self.weight);
        self.bias.iter().for_each(visitor);
    }
}

/// Root-mean-square normalization with a weight (Zhang & Sennrich 2019).
#[derive(Clone)]
pub struct RmsNorm {
    /// \[features\].
    pub weight: Param,
    eps: f64,
}

impl RmsNorm {
    /// A norm named `name` over the last dim, of size `features`. The weight is one.
    ///
    /// # Errors
    /// None: the shapes are valid.
    pub fn new(name: &str, features: usize, eps: f64) -> Result<RmsNorm> {
        Ok(RmsNorm {
            weight: Param::new(format!("{name}.weight"), &[features], Init::Ones)?,
            eps,
        })
    }

    /// Maps `x` [.., features] to the same shape.
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<Var> {
        ops::rms_norm(x, &self.weight.var_as(x.dtype())?, self.eps)
    }

    /// The residual stream `x + added` and its norm, in one pass.
    ///
    /// # Errors
    /// When shapes do not match.
    pub fn forward_sum(&self, x: &Var, added: &Var) -> Result<(Var, Var)> {
        ops::add_rms_norm(x, added, &self.weight.var_as(x.dtype())?, self.eps)
    }

    /// The norm of each head of `x` [b, t, heads, features], rotated by the angles of its position
    /// ([b, t, features / 2]), in one pass.
    ///
    /// # Errors
    /// When shapes do not match.
    pub fn forward_rotated(&self, x: &Var, cos: &Tensor, sin: &Tensor) -> Result<Var> {
        let weight = self.weight.var_as(x.dtype())?;
        ops::rms_norm_rope(x, &weight, cos, sin, RopeStyle::Half, self.eps)
    }
}

impl Module for RmsNorm {
    fn visit(&self, visitor: &mut dyn FnMut(&Param)) {
        visitor(&self.weight);
    }
}
