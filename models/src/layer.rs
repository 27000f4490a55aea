//! A layer of a decoder.
//!
//! Legend: b batch, t tokens per sequence, d hidden size.

use meshgrad_autograd::{Module, Result, Var, checkpoint};
use meshgrad_runtime::Tensor;

use crate::attention::{Attention, Positions};
use crate::cache::LayerCache;
use crate::layers::{Linear, RmsNorm};
use crate::lora::LoraSlot;
use crate::mlp::Mlp;
use crate::moe::{Moe, Routing};
use crate::residual::Residual;

/// One layer: attention, then a feed-forward block, each with a norm before it and a residual
/// connection.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Layer {
    /// The norm before attention.
    pub input_layernorm: RmsNorm,
    /// Attention.
    pub self_attn: Attention,
    /// The norm before the feed-forward block.
    pub post_attention_layernorm: RmsNorm,
    /// The feed-forward block.
    pub mlp: FeedForward,
}

/// The feed-forward block of a layer.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub enum FeedForward {
    /// An MLP.
    Dense(Mlp),
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
        let attention = &self.self_attn;
        let x = (x + attention.forward(&self.input_layernorm.of(x)?, at, cache)?)?;
        let (y, routing) = self.mlp.forward(&self.post_attention_layernorm.of(&x)?, replayed)?;
        Ok(((&x + y)?, routing))
    }

    /// Its places for low-rank updates.
    pub(crate) fn lora_slots(&mut self) -> Vec<LoraSlot<'_>> {
        let attention = &mut self.self_attn;
        let of_attention = [
            &mut attention.q_proj,
            &mut attention.k_proj,
            &mut attention.v_proj,
            &mut attention.o_proj,
        ];
        let slots = of_attention.map(Linear::lora_slot).into_iter();
        let mlp = match &mut self.mlp {
            FeedForward::Dense(mlp) => Some(mlp),
            FeedForward::Sparse(moe) => moe.shared.as_mut(),
        };
        slots.chain(mlp.into_iter().flat_map(Mlp::lora_slots)).collect()
    }

    /// Adds low-rank updates to the weights, and removes them.
    pub(crate) fn merge_loras(&mut self) -> Result<()> {
        let attention = &mut self.self_attn;
        attention.q_proj.merge_lora()?;
        attention.k_proj.merge_lora()?;
        attention.v_proj.merge_lora()?;
        attention.o_proj.merge_lora()?;
        match &mut self.mlp {
            FeedForward::Dense(mlp) => mlp.merge_loras(),
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

impl FeedForward {
    /// Maps `x` [.., d] to the same shape, and returns the routing of a mixture of experts, as
    /// [`Moe::forward_with`].
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var, replayed: Option<&Tensor>) -> Result<(Var, Option<Routing>)> {
        match self {
            FeedForward::Dense(mlp) => Ok((mlp.forward(x)?, None)),
            FeedForward::Sparse(moe) => {
                let (y, routing) = moe.forward_with(x, replayed)?;
                Ok((y, Some(routing)))
            }
        }
    }
}
