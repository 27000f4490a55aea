//! The smallest blocks: a projection and a norm. Each holds its parameters and shows its
//! mathematics.

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
    /// A projection named `name` from `inputs` to `outputs` features, its weight normal with
    /// deviation `std`, its bias zero.
    ///
    /// # Errors
    /// None for shapes of this kind.
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

    /// `x` [.., in] to [.., out], in `x`'s dtype.
    ///
    /// # Errors
    /// When `x` has other features.
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

/// Root-mean-square normalisation with a weight (Zhang & Sennrich 2019).
#[derive(Clone)]
pub struct RmsNorm {
    /// \[features\].
    pub weight: Param,
    eps: f64,
}

impl RmsNorm {
    /// A norm named `name` over the last dim of `features`, its weight one.
    ///
    /// # Errors
    /// None for shapes of this kind.
    pub fn new(name: &str, features: usize, eps: f64) -> Result<RmsNorm> {
        Ok(RmsNorm {
            weight: Param::new(format!("{name}.weight"), &[features], Init::Ones)?,
            eps,
        })
    }

    /// `x` [.., features] to the same.
    ///
    /// # Errors
    /// When `x` has other features.
    pub fn forward(&self, x: &Var) -> Result<Var> {
        ops::rms_norm(x, &self.weight.var_as(x.dtype())?, self.eps)
    }

    /// The residual stream `x` with what a block `added` to it, and the norm of that; in one pass.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn forward_sum(&self, x: &Var, added: &Var) -> Result<(Var, Var)> {
        ops::add_rms_norm(x, added, &self.weight.var_as(x.dtype())?, self.eps)
    }

    /// The norm of each head of `x` [b, t, heads, features], turned by the angles of its position
    /// ([b, t, features / 2]); in one pass.
    ///
    /// # Errors
    /// When shapes do not fit.
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
