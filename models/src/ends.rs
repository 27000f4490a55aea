//! The ends of a language model: the embedding of tokens, and the head, which predicts the next one.
//!
//! Legend: b batch, t tokens per sequence, d hidden size, v vocabulary.

use std::ops::RangeBounds;

use half::bf16;
use meshgrad_autograd::{Module, Param, Result, Seam, Var, ops};
use meshgrad_collectives::redistribute;
use meshgrad_runtime::{DType, Tensor};

use crate::model::IGNORE_INDEX;
use crate::norms::Norm;
use crate::residual::Residual;

/// The embedding of tokens.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Embedding {
    /// Before the lookup: of the ids.
    pub input: Seam,
    /// [v, d].
    pub weight: Param,
    /// After the lookup.
    pub output: Seam,
    /// The id of padding, whose row gets no gradient from the lookup.
    pub padding: Option<usize>,
    /// The factor of what is looked up, rounded to the dtype of activations, as in Gemma.
    pub scale: f64,
    /// [positions, d]: added to embeddings, by the position of the token.
    pub positions: Option<Param>,
}

/// The norm after the last layer, and the projection to the vocabulary.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Head {
    /// The norm.
    pub norm: Norm,
    /// Before the projection.
    pub input: Seam,
    /// [v, d]; the embedding's weight if they are tied.
    pub weight: Param,
}

impl Embedding {
    /// The embeddings of `ids_bt`, i64 [b, t], as an activation of `dtype`, [b, t, d]. Learned positions are those
    /// `at` the numbers, i64 [b, t].
    ///
    /// # Errors
    /// When an id or a position is out of range.
    pub fn forward(&self, ids_bt: &Tensor, at: Option<&Tensor>, dtype: DType) -> Result<Var> {
        let ids_bt = self.input.redistribute(ids_bt)?;
        let weight = self.weight.var_as(dtype)?;
        let x_btd = match self.padding {
            Some(padding) => ops::embedding_with_padding(&weight, &ids_bt, padding)?,
            None => ops::embedding(&weight, &ids_bt)?,
        };
        let x_btd = self.output.redistribute(&x_btd.as_activation()?)?;
        let x_btd = match self.scale == 1.0 {
            true => x_btd,
            false => ops::affine(&x_btd, rounded(self.scale, dtype), 0.0)?,
        };
        match (&self.positions, at) {
            (Some(positions), Some(at_bt)) => {
                let at_bt = sharded_like(at_bt, x_btd.value(), ..2)?;
                let added = ops::embedding(&positions.var_as(dtype)?, &at_bt)?;
                ops::add(&x_btd, &added.as_activation()?)
            }
            _ => Ok(x_btd),
        }
    }
}

impl Head {
    /// The normalized stream `x`, [b, t, d], which [`Head::project`] expects.
    ///
    /// # Errors
    /// When shapes do not match.
    pub fn hidden(&self, x: &Residual) -> Result<Var> {
        self.input.redistribute(&self.norm.of(x)?)
    }

    /// The logits of `hidden` [.., d], [.., v].
    ///
    /// # Errors
    /// When shapes do not match.
    pub fn project(&self, hidden: &Var) -> Result<Var> {
        ops::linear(hidden, &self.weight.var_as(hidden.dtype())?)
    }

    /// The cross-entropy of `labels_bt`, i64 [b, t], summed over the labels that are not
    /// [`IGNORE_INDEX`], and their number. The logits are never all in memory.
    ///
    /// # Errors
    /// When shapes do not match or a label is out of range.
    pub fn cross_entropy(&self, x: &Residual, labels_bt: &Tensor) -> Result<(Var, Tensor)> {
        let hidden = self.hidden(x)?;
        let labels_bt = sharded_like(labels_bt, hidden.value(), ..2)?;
        let weight = self.weight.var_as(hidden.dtype())?;
        ops::linear_cross_entropy(&hidden, &weight, &labels_bt, IGNORE_INDEX)
    }
}

fn rounded(number: f64, dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_f64(number).to_f64(),
        _ => number,
    }
}

/// `x` with the shards that `other` has along `dims`. Of a replicated `x` this is a slice, which sends
/// nothing.
pub(crate) fn sharded_like(
    x: &Tensor,
    other: &Tensor,
    dims: impl RangeBounds<usize>,
) -> Result<Tensor> {
    let Some(sharding) = other.sharding() else {
        return Ok(x.clone());
    };
    let mut placements = sharding.placements();
    placements.retain(|(_, placement)| placement.dim().is_some_and(|dim| dims.contains(&dim)));
    match placements.is_empty() {
        true => Ok(x.clone()),
        false => redistribute(x, placements),
    }
}
