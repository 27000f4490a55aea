//! The feed-forward block of a dense layer: SwiGLU (Shazeer 2020).
//!
//! Legend: d hidden size, f inner features.

use meshgrad_autograd::{Init, Module, ModulePath, Param, Result, Seam, Var, ops};
use meshgrad_mesh::Sharding;
use meshgrad_runtime::DType;

use crate::layers::Linear;

/// down(silu(gate(x)) * up(x)), with gate and up in one matrix.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Mlp {
    /// Before `gate_up_proj`.
    pub input: Seam,
    /// [2, f, d]: gate, then up.
    pub gate_up_proj: Param,
    /// From f to d features.
    pub down_proj: Linear,
    /// After `down_proj`.
    pub output: Seam,
}

impl Mlp {
    /// A block at the path `at`, with `d` features outside and `f` inside.
    pub fn new(at: &ModulePath, d: usize, f: usize, init: Init) -> Mlp {
        Mlp {
            input: Seam::new(at.sub("input")),
            gate_up_proj: Param::new(at.sub("gate_up_proj.weight"), [2, f, d], init),
            down_proj: Linear::new(at.sub("down_proj"), f, d).init(init),
            output: Seam::new(at.sub("output")),
        }
    }

    /// The weights for [`Mlp::of_rank`], in `dtype`: if they are whole, and nothing is added to them.
    pub(crate) fn whole_weights(&self, dtype: DType) -> Result<Option<[Var; 2]>> {
        if self.down_proj.lora.is_some() || self.down_proj.bias.is_some() {
            return Ok(None);
        }
        let weights = [&self.gate_up_proj, &self.down_proj.weight].map(|it| it.var_as(dtype));
        let [gate_up, down] = weights;
        let weights = [gate_up?, down?];
        let is_whole = |var: &Var| var.value().sharding().is_none_or(Sharding::is_replicated);
        Ok(weights.iter().all(is_whole).then_some(weights))
    }

    /// As [`Mlp::forward`], in the body of `local`: with tokens and weights, and without seams.
    pub(crate) fn of_rank([x, gate_up, down]: [Var; 3]) -> Result<Var> {
        let gate_up = ops::linear(&x, &ops::merge_first(&gate_up)?)?;
        ops::linear(&ops::swiglu(&ops::chunk(&gate_up, 2)?)?, &down)
    }

    /// Maps `x` [.., d] to the same shape.
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let gate_up = ops::merge_first(&self.gate_up_proj.var_as(x.dtype())?)?;
        let [gate_up] = self.input.redistribute_linear(x, [&gate_up])?;
        let inside = ops::swiglu(&ops::chunk(&gate_up, 2)?)?;
        self.down_proj.forward_before(&inside, &self.output)
    }
}
