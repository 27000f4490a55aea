//! The feed-forward blocks of dense layers: gated (Shazeer 2020), and plain.
//!
//! Legend: d hidden size, f inner features.

use meshgrad_autograd::{Init, Module, ModulePath, Param, Result, Seam, Var, ops};
use meshgrad_mesh::Sharding;
use meshgrad_runtime::DType;

use crate::config::Activation;
use crate::layers::Linear;
use crate::lora::{Lora, LoraSlot};

/// down(silu(gate(x)) * up(x)), with gate and up in one matrix, or with another activation than silu.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Mlp {
    /// Before `gate_up_proj`.
    pub input: Seam,
    /// [2, f, d]: gate, then up.
    pub gate_up_proj: Param,
    /// Low-rank updates of the gate and of up.
    pub gate_up_loras: [Option<Lora>; 2],
    /// From f to d features.
    pub down_proj: Linear,
    /// After `down_proj`.
    pub output: Seam,
    /// Of the gate: silu at first.
    #[module(skip)]
    pub activation: Activation,
}

impl Mlp {
    /// A block at the path `at`, with `d` features outside and `f` inside.
    pub fn new(at: &ModulePath, d: usize, f: usize, init: Init) -> Mlp {
        Mlp {
            input: Seam::new(at.sub("input")),
            gate_up_proj: Param::new(at.sub("gate_up_proj.weight"), [2, f, d], init),
            gate_up_loras: [None, None],
            down_proj: Linear::new(at.sub("down_proj"), f, d).init(init),
            output: Seam::new(at.sub("output")),
            activation: Activation::Silu,
        }
    }

    /// With another activation of the gate.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Mlp {
        self.activation = activation;
        self
    }

    /// The weights for [`Mlp::of_rank`], in `dtype`: if they are whole, and nothing is added to them.
    pub(crate) fn whole_weights(&self, dtype: DType) -> Result<Option<[Var; 2]>> {
        let has_loras =
            self.gate_up_loras.iter().chain([&self.down_proj.lora]).any(Option::is_some);
        let has_more = has_loras || self.down_proj.bias.is_some();
        if has_more || self.activation != Activation::Silu {
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
        let gate_up = match self.gate_up_loras.iter().any(Option::is_some) {
            false => {
                let [gate_up] = self.input.redistribute_linear(x, [&gate_up])?;
                ops::chunk(&gate_up, 2)?
            }
            true => {
                let x = self.input.redistribute(x)?;
                self.with_loras(&x, ops::chunk(&ops::linear(&x, &gate_up)?, 2)?)?
            }
        };
        let inside = match self.activation {
            Activation::Silu => ops::swiglu(&gate_up)?,
            other => {
                let parts = ops::split(&gate_up, &[1, 1], -2)?;
                ops::merge_last(&ops::mul(&activated(other, &parts[0])?, &parts[1])?)?
            }
        };
        self.down_proj.forward_before(&inside, &self.output)
    }

    /// Adds the low-rank updates of `x` to the results `gate_up`, [.., 2, f].
    fn with_loras(&self, x: &Var, gate_up: Var) -> Result<Var> {
        let mut shape = gate_up.global_shape().to_vec();
        let dim = shape.len() - 2;
        shape[dim] = 1;
        let mut halves = Vec::new();
        for (at, lora) in self.gate_up_loras.iter().enumerate() {
            let half = ops::slice(&gate_up, dim as isize, at..at + 1)?;
            halves.push(match lora {
                Some(lora) => ops::add(&half, &ops::reshape(&lora.forward(x)?, &shape)?)?,
                None => half,
            });
        }
        ops::concat(&halves.iter().collect::<Vec<_>>(), dim as isize)
    }

    /// Adds the low-rank updates to the weights, and removes them.
    ///
    /// # Errors
    /// When a parameter has no value.
    pub fn merge_loras(&mut self) -> Result<()> {
        self.down_proj.merge_lora()?;
        if self.gate_up_loras.iter().all(Option::is_none) {
            return Ok(());
        }
        let merged = self.gate_up_proj.value()?;
        let mut halves = ops::split(&merged, &[1, 1], 0)?;
        for (half, lora) in halves.iter_mut().zip(&mut self.gate_up_loras) {
            if let Some(lora) = lora.take() {
                let [_, f, d] = half.global_shape()[..] else {
                    unreachable!("a gate_up_proj has three dims")
                };
                let merged = lora.merged(&ops::reshape(half, &[f, d])?)?;
                *half = ops::reshape(&merged, &[1, f, d])?;
            }
        }
        self.gate_up_proj.set(&ops::concat(&[&halves[0], &halves[1]], 0)?)
    }

    /// Its places for low-rank updates.
    pub(crate) fn lora_slots(&mut self) -> Vec<LoraSlot<'_>> {
        let at = self.gate_up_proj.name().trim_end_matches(".gate_up_proj.weight");
        let at = ModulePath::from(at);
        let [outputs, inputs] = [1, 2].map(|dim| self.gate_up_proj.shape()[dim]);
        let halves = self.gate_up_loras.iter_mut().zip(["gate_proj", "up_proj"]);
        let halves =
            halves.map(|(lora, name)| LoraSlot { path: at.sub(name), inputs, outputs, lora });
        halves.chain([self.down_proj.lora_slot()]).collect()
    }
}

/// down(activation(up(x))), with biases.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct PlainMlp {
    /// Before `up_proj`.
    pub input: Seam,
    /// From d to f features.
    pub up_proj: Linear,
    /// Between the projections.
    #[module(skip)]
    pub activation: Activation,
    /// From f to d features.
    pub down_proj: Linear,
    /// After `down_proj`.
    pub output: Seam,
}

impl PlainMlp {
    /// A block at the path `at`, with `d` features outside and `f` inside.
    pub fn new(at: &ModulePath, d: usize, f: usize, activation: Activation, init: Init) -> Self {
        PlainMlp {
            input: Seam::new(at.sub("input")),
            up_proj: Linear::new(at.sub("up_proj"), d, f).init(init).bias(true),
            activation,
            down_proj: Linear::new(at.sub("down_proj"), f, d).init(init).bias(true),
            output: Seam::new(at.sub("output")),
        }
    }

    /// Maps `x` [.., d] to the same shape.
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let [inside] = Linear::forward_after(&self.input, x, [&self.up_proj])?;
        self.down_proj.forward_before(&activated(self.activation, &inside)?, &self.output)
    }
}

fn activated(activation: Activation, x: &Var) -> Result<Var> {
    match activation {
        Activation::Silu => ops::silu(x),
        Activation::Gelu => ops::gelu(x),
        Activation::GeluNew | Activation::GeluPytorchTanh => ops::gelu_tanh(x),
    }
}
