//! The feed-forward block of a dense layer: SwiGLU (Shazeer 2020).
//!
//! Legend: d hidden size, f inner features.

use meshgrad_autograd::{Init, Module, Param, Result, Var, ops};

use crate::config::Qwen3Config;
use crate::layers::Linear;

/// down(silu(gate(x)) * up(x)), with gate and up in one matrix.
#[derive(Clone)]
pub struct Mlp {
    /// [2, f, d]: gate, then up.
    gate_up_proj: Param,
    down_proj: Linear,
}

impl Mlp {
    /// A block. The names of its parameters start with `name`.
    ///
    /// # Errors
    /// None for a valid configuration.
    pub fn new(name: &str, config: &Qwen3Config) -> Result<Mlp> {
        let (d, f, std) = (
            config.hidden_size,
            config.intermediate_size,
            config.initializer_range,
        );
        let gate_up = format!("{name}.gate_up_proj.weight");
        Ok(Mlp {
            gate_up_proj: Param::new(gate_up, &[2, f, d], Init::Normal { std })?,
            down_proj: Linear::new(&format!("{name}.down_proj"), f, d, false, std)?,
        })
    }

    /// Maps `x` [.., d] to the same shape.
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let gate_up = ops::merge_first(&self.gate_up_proj.var_as(x.dtype())?)?;
        let inside = ops::swiglu(&ops::chunk(&ops::linear(x, &gate_up)?, 2)?)?;
        self.down_proj.forward(&inside)
    }
}

impl Module for Mlp {
    fn visit(&self, visitor: &mut dyn FnMut(&Param)) {
        visitor(&self.gate_up_proj);
        self.down_proj.visit(visitor);
    }
}
