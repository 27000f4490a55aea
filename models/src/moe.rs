//! Mixture of experts: each token is routed to the `top_k` experts with the highest scores (Shazeer
//! et al. 2017).
//!
//! Legend: n tokens, d hidden size, e experts, k experts per token, f inner features of an expert,
//! c = n k rows of (token, expert) pairs sorted by expert.

use meshgrad_autograd::{Buffer, Init, Module, ModulePath, Param, Result, Var, Vars, ops};
use meshgrad_runtime::{DType, Tensor};

use crate::config::Qwen3Config;

/// The feed-forward block of a sparse layer. It holds all experts or a contiguous range of them.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Moe {
    /// [e, d] for all experts, held or not; computed in f32.
    pub gate: Param,
    /// [held, 2, f, d]: gate, then up.
    pub gate_up_proj: Param,
    /// [held, d, f].
    pub down_proj: Param,
    /// The router's index of the first held expert.
    pub first_expert: usize,
    /// k.
    pub top_k: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalize: bool,
    /// Added to the probabilities only to choose the experts, \[e\] f32. It shifts the choice
    /// towards experts with few tokens; [`update_router_bias`](crate::balance::update_router_bias)
    /// changes it.
    pub router_bias: Option<Buffer>,
}

/// How a layer routed its tokens.
#[derive(Clone)]
pub struct Routing {
    /// The router logits, [n, e] f32; tracked.
    pub logits_ne: Var,
    /// Their softmax; tracked.
    pub probabilities_ne: Var,
    /// Tokens per held expert, \[held\] f32.
    pub counts: Tensor,
}

impl Vars for Routing {
    fn each_var(&mut self, f: &mut dyn FnMut(&mut Var)) {
        f(&mut self.logits_ne);
        f(&mut self.probabilities_ne);
    }
}

impl Moe {
    /// A block with all experts, at the path `at`.
    pub fn new(at: &ModulePath, config: &Qwen3Config) -> Moe {
        let (d, f) = (config.hidden_size, config.moe_intermediate_size);
        let (e, init) = (config.num_experts, config.init());
        Moe {
            gate: Param::new(at.sub("gate.weight"), [e, d], init),
            gate_up_proj: Param::new(at.sub("experts.gate_up_proj"), [e, 2, f, d], init),
            down_proj: Param::new(at.sub("experts.down_proj"), [e, d, f], init),
            first_expert: 0,
            top_k: config.num_experts_per_tok,
            normalize: config.norm_topk_prob,
            router_bias: None,
        }
    }

    /// Adds a bias to the router, zero at first, under its name in DeepSeek-V3. Clones made before
    /// have none.
    pub fn add_router_bias(&mut self) {
        let gate = ModulePath::from(self.gate.name().trim_end_matches(".weight"));
        let name = gate.sub("e_score_correction_bias");
        self.router_bias = Some(Buffer::new(name, [self.gate.shape()[0]], Init::Zeros));
    }

    /// Maps `x` [.., d] to the same shape: the sum over a token's experts, weighted by probability.
    /// An expert without tokens gets a zero gradient.
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<(Var, Routing)> {
        let x_nd = ops::merge_leading(x)?;
        let x_f32 = ops::cast(&x_nd, DType::F32)?;
        let logits_ne = ops::linear(&x_f32, &self.gate.var_as(DType::F32)?)?;
        let probabilities_ne = ops::softmax(&logits_ne)?;
        let bias = self.router_bias.as_ref().map(Buffer::value).transpose()?;
        let (weights_nk, experts_nk) =
            ops::router_top_k(&probabilities_ne, self.top_k, self.normalize, bias.as_ref())?;

        let (held, all) = (self.down_proj.shape()[0], self.gate.shape()[0]);
        let order = ops::expert_order(&experts_nk, all, self.first_expert, held)?;
        let x_cd = ops::permute_tokens(&x_nd, &order)?;
        let y_cd = self.experts(&x_cd, &order.offsets)?;
        let y_nd = ops::unpermute_tokens(&y_cd, &weights_nk, &order)?;

        let counts = ops::expert_counts(&order.offsets)?;
        let y = ops::reshape(&y_nd, &x.global_shape())?;
        Ok((
            y,
            Routing {
                logits_ne,
                probabilities_ne,
                counts,
            },
        ))
    }

    /// Applies each expert to its group of rows.
    fn experts(&self, x_cd: &Var, offsets: &Tensor) -> Result<Var> {
        let gate_up = self.gate_up_proj.var_as(x_cd.dtype())?;
        let down = self.down_proj.var_as(x_cd.dtype())?;
        let (held, features) = (gate_up.global_shape()[0], gate_up.global_shape()[2]);
        let gate_up = ops::reshape(&gate_up, &[held, 2 * features, gate_up.global_shape()[3]])?;

        let inside_c2f = ops::grouped_matmul(x_cd, &gate_up, offsets)?;
        let inside_cf = ops::swiglu(&ops::chunk(&inside_c2f, 2)?)?;
        ops::grouped_matmul(&inside_cf, &down, offsets)
    }
}
