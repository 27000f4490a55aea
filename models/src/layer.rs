//! A layer of a decoder.
//!
//! Legend: b batch, t tokens per sequence, d hidden size.

use meshgrad_autograd::{Module, Result, Var, checkpoint};
use meshgrad_runtime::Tensor;

use crate::attention::{Attention, Positions};
use crate::cache::LayerCache;
use crate::layers::Linear;
use crate::lora::LoraSlot;
use crate::mlp::{Mlp, PlainMlp};
use crate::moe::{Moe, Routing};
use crate::norms::Norm;
use crate::residual::Residual;

/// One layer: attention, then a feed-forward block, each with a residual connection and norms before it, after it or
/// both.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Layer {
    /// The norm before attention.
    pub before_attention: Option<Norm>,
    /// Attention.
    pub self_attn: Attention,
    /// The norm of what attention adds to the stream.
    pub after_attention: Option<Norm>,
    /// The norm before the feed-forward block.
    pub before_mlp: Option<Norm>,
    /// The feed-forward block.
    pub mlp: FeedForward,
    /// The norm of what the feed-forward block adds to the stream.
    pub after_mlp: Option<Norm>,
}

/// The feed-forward block of a layer.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub enum FeedForward {
    /// A gated MLP.
    Dense(Mlp),
    /// An MLP without a gate.
    Plain(PlainMlp),
    /// A mixture of experts.
    Sparse(Moe),
}

impl Layer {
    /// Adds attention, then the feed-forward block, to the residual stream `x`, [b, t, d]; returns
    /// the routing of a sparse layer, too, which is the `replayed` one if it is given:
    /// [`Moe::forward_with`].
    ///
    /// # Errors
    /// When shapes do not match or the cache is full.
    pub fn forward(
        &self,
        x: &Residual,
        at: &Positions,
        replayed: Option<&Tensor>,
        cache: Option<&LayerCache>,
    ) -> Result<(Residual, Option<Routing>)> {
        let y = self.self_attn.forward(&before(&self.before_attention, x)?, at, cache)?;
        let x = (x + after(&self.after_attention, y)?)?;
        let (y, routing) = self.mlp.forward(&before(&self.before_mlp, &x)?, replayed)?;
        Ok(((&x + after(&self.after_mlp, y)?)?, routing))
    }

    /// Its norms.
    pub(crate) fn norms(&self) -> impl Iterator<Item = &Norm> {
        let norms =
            [&self.before_attention, &self.after_attention, &self.before_mlp, &self.after_mlp];
        norms.into_iter().flatten()
    }

    /// Its places for low-rank updates. A layer of GPT-2 has none: PEFT's are those of merged projections.
    pub(crate) fn lora_slots(&mut self) -> Vec<LoraSlot<'_>> {
        let mlp = match &mut self.mlp {
            FeedForward::Dense(mlp) => Some(mlp),
            FeedForward::Plain(_) => return Vec::new(),
            FeedForward::Sparse(moe) => moe.shared.as_mut(),
        };
        let of_attention = self.self_attn.linears().into_iter().map(Linear::lora_slot);
        of_attention.chain(mlp.into_iter().flat_map(Mlp::lora_slots)).collect()
    }

    /// Adds low-rank updates to the weights, and removes them.
    pub(crate) fn merge_loras(&mut self) -> Result<()> {
        self.self_attn.linears().into_iter().try_for_each(Linear::merge_lora)?;
        match &mut self.mlp {
            FeedForward::Dense(mlp) => mlp.merge_loras(),
            FeedForward::Plain(_) => Ok(()),
            FeedForward::Sparse(moe) => moe.shared.as_mut().map_or(Ok(()), Mlp::merge_loras),
        }
    }

    /// As [`Layer::forward`], saving only `x_btd` for backward.
    pub(crate) fn checkpointed(
        &self,
        x_btd: &Var,
        at: &Positions,
        replayed: Option<&Tensor>,
    ) -> Result<(Residual, Option<Routing>)> {
        let (layer, at, replayed) = (self.clone(), at.clone(), replayed.cloned());
        let (x_btd, routing) = checkpoint([x_btd], move |[x_btd]| {
            let (x, routing) =
                layer.forward(&Residual::new(x_btd), &at, replayed.as_ref(), None)?;
            Ok((x.sum()?, routing))
        })?;
        Ok((Residual::new(x_btd), routing))
    }
}

/// The input of a block.
fn before(norm: &Option<Norm>, x: &Residual) -> Result<Var> {
    match norm {
        Some(norm) => norm.of(x),
        None => x.sum(),
    }
}

/// What a block with the result `y` adds to the stream.
fn after(norm: &Option<Norm>, y: Var) -> Result<Var> {
    match norm {
        Some(norm) => norm.forward(&y),
        None => Ok(y),
    }
}

impl FeedForward {
    /// The mixture of experts, if it is one.
    pub fn sparse(&self) -> Option<&Moe> {
        match self {
            FeedForward::Sparse(moe) => Some(moe),
            FeedForward::Dense(_) | FeedForward::Plain(_) => None,
        }
    }

    /// Maps `x` [.., d] to the same shape, and returns the routing of a mixture of experts, as
    /// [`Moe::forward_with`].
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var, replayed: Option<&Tensor>) -> Result<(Var, Option<Routing>)> {
        match self {
            FeedForward::Dense(mlp) => Ok((mlp.forward(x)?, None)),
            FeedForward::Plain(mlp) => Ok((mlp.forward(x)?, None)),
            FeedForward::Sparse(moe) => {
                let (y, routing) = moe.forward_with(x, replayed)?;
                Ok((y, Some(routing)))
            }
        }
    }
}
