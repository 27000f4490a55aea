//! The router: which experts a token has, and with which weights.
//!
//! Legend: n tokens, d hidden size, e experts in g groups of s, k experts per token, j groups per token.

use meshgrad_autograd::{Buffer, Init, Module, ModulePath, Param, Result, Var, ops};
use meshgrad_error::ensure;
use meshgrad_runtime::{DType, Tensor};

/// Scores the experts for each token, and chooses the best ones. Equal scores go to the lower index.
/// With softmax as in Qwen3; with sigmoid and groups as in DeepSeek-V3 (DeepSeek-AI 2024, section
/// 2.1.2). Gradients flow through the weights, not through the choice.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Router {
    /// [e, d] for all experts, held or not; computed in f32.
    pub gate: Param,
    /// k.
    pub top_k: usize,
    /// Whether scores are the sigmoid of the logits, not their softmax.
    pub sigmoid: bool,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalize: bool,
    /// The factor of all weights.
    pub scale: f64,
    /// g: experts that follow each other are a group. 1 is no groups.
    pub groups: usize,
    /// j: a token's experts are of its best groups. A group's score is the sum of its best two.
    pub top_groups: usize,
    /// Added to the scores only to choose the experts, \[e\] f32. It shifts the choice towards
    /// experts with few tokens; [`update_router_bias`](super::balance::update_router_bias) changes
    /// it.
    pub bias: Option<Buffer>,
}

impl Router {
    /// Softmax without groups and bias; the gate is `gate` [e, d].
    pub(super) fn new(gate: Param, top_k: usize) -> Router {
        Router {
            gate,
            top_k,
            sigmoid: false,
            normalize: false,
            scale: 1.0,
            groups: 1,
            top_groups: 1,
            bias: None,
        }
    }

    /// The number of all experts.
    pub fn experts(&self) -> usize {
        self.gate.shape()[0]
    }

    /// Adds a bias, zero at first, under its name in DeepSeek-V3, if there is none.
    pub(super) fn add_bias(&mut self) {
        if self.bias.is_some() {
            return;
        }
        let gate = ModulePath::from(self.gate.name().trim_end_matches(".weight"));
        let name = gate.sub("e_score_correction_bias");
        self.bias = Some(Buffer::new(name, [self.experts()], Init::Zeros));
    }

    /// The logits of `x_nd`, [n, e] f32.
    pub(super) fn logits(&self, x_nd: &Var) -> Result<Var> {
        ops::linear(&ops::cast(x_nd, DType::F32)?, &self.gate.var_as(DType::F32)?)
    }

    /// The scores, from which weights are computed.
    pub(super) fn scores(&self, logits_ne: &Var) -> Result<Var> {
        match self.sigmoid {
            true => ops::sigmoid(logits_ne),
            false => ops::softmax(logits_ne),
        }
    }

    /// The scores of each token as probabilities (DeepSeek-V3, equation 19).
    pub(super) fn probabilities(&self, scores_ne: &Var) -> Result<Var> {
        match self.sigmoid {
            true => divided_by_sum(scores_ne),
            false => Ok(scores_ne.clone()),
        }
    }

    /// The weights and the experts of each token, [n, k] f32 and i32: the `replayed` ones, or the best,
    /// of which the first is the best. Reads no value on the host.
    pub(super) fn choose(
        &self,
        scores_ne: &Var,
        replayed: Option<&Tensor>,
    ) -> Result<(Var, Tensor)> {
        let bias = self.bias.as_ref().map(Buffer::value).transpose()?;
        let bias = bias.as_ref().map(Tensor::local);
        let (weights_nk, experts_nk) = match (replayed, self.sigmoid || self.groups > 1) {
            (Some(experts_nk), _) => (self.weights(scores_ne, experts_nk)?, experts_nk.clone()),
            (None, true) => {
                let experts_nk = self.best_in_steps(scores_ne.value(), bias.as_ref())?;
                (self.weights(scores_ne, &experts_nk)?, experts_nk)
            }
            (None, false) => {
                ops::router_top_k(scores_ne, self.top_k, self.normalize, bias.as_ref())?
            }
        };
        match self.scale == 1.0 {
            true => Ok((weights_nk, experts_nk)),
            false => Ok((ops::affine(&weights_nk, self.scale, 0.0)?, experts_nk)),
        }
    }

    fn best_in_steps(&self, scores_ne: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let mut choice_ne = scores_ne.clone();
        if let Some(bias) = bias {
            choice_ne = ops::add(&choice_ne, bias)?;
        }
        if self.groups > 1 {
            choice_ne = self.only_best_groups(&choice_ne)?;
        }
        let (_, experts_nk) = ops::router_top_k(&choice_ne, self.top_k, false, None)?;
        Ok(experts_nk)
    }

    /// The weights of `experts_nk`, before scaling.
    fn weights(&self, scores_ne: &Var, experts_nk: &Tensor) -> Result<Var> {
        let weights_nk = ops::gather(scores_ne, 1, experts_nk)?;
        match self.normalize {
            true => divided_by_sum(&weights_nk),
            false => Ok(weights_nk),
        }
    }

    /// `choice_ne`, with minus infinity for the experts of other groups than the best of each token.
    fn only_best_groups(&self, choice_ne: &Tensor) -> Result<Tensor> {
        self.check_groups()?;
        let (tokens, groups, best) = (choice_ne.shape()[0], self.groups, self.top_groups);
        let choice_ngs = ops::split_last(choice_ne, self.experts() / groups)?;
        let (best_two_ng2, _) = ops::top_k(&choice_ngs, 2)?;
        let score_ng = ops::sum(&best_two_ng2, &[2])?;
        let (_, best_nj) = ops::router_top_k(&score_ng, best, false, None)?;

        let full = |shape: &[usize], value| ops::full(choice_ne.device(), shape, DType::F32, value);
        let chosen_ng =
            ops::scatter_add(&[tokens, groups], 1, &best_nj, &full(&[tokens, best], 1.0)?)?;
        let is_chosen_ng1 = ops::gt(&chosen_ng, &full(&[], 0.0)?)?.unsqueeze(2)?;
        let outside = full(&[], f64::NEG_INFINITY)?;
        let masked_ngs = ops::where_(&is_chosen_ng1, &choice_ngs, &outside)?;
        ops::reshape(&masked_ngs, choice_ne.shape())
    }

    fn check_groups(&self) -> Result<()> {
        let (experts, groups, best, k) = (self.experts(), self.groups, self.top_groups, self.top_k);
        let size = experts / groups;
        ensure!(
            size >= 2 && size * groups == experts,
            Invalid,
            "`{}`: {experts} experts cannot be divided into {groups} groups of at least two",
            self.gate.name()
        );
        ensure!(
            best <= groups && k <= best * size,
            Invalid,
            "`{}`: {k} experts cannot be chosen in {best} of {groups} groups of {size} experts",
            self.gate.name()
        );
        Ok(())
    }
}

/// Each row divided by its sum. Like DeepSeek-V3, a row of zeros stays zero.
fn divided_by_sum(x_nc: &Var) -> Result<Var> {
    let sum_n = ops::affine(&ops::sum(x_nc, &[1])?, 1.0, 1e-20)?;
    ops::div(x_nc, &ops::reshape(&sum_n, &[x_nc.global_shape()[0], 1])?)
}
