//! Mixture of experts: each token is routed to the `top_k` experts with the highest scores (Shazeer
//! et al. 2017).
//!
//! Legend: n tokens, d hidden size, e experts, k experts per token, f inner features of an expert,
//! c = n k rows of (token, expert) pairs sorted by expert.

use meshgrad_autograd::{
    Buffer, Init, LocalOperand, LocalResult, Module, ModulePath, Param, Result, Seam, Var, Vars,
    local, ops,
};
use meshgrad_mesh::{Placement, Reduction, Sharding};
use meshgrad_runtime::{DType, Tensor};

use crate::config::Qwen3Config;

/// The feed-forward block of a sparse layer. It holds all experts or a contiguous range of them.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Moe {
    /// [e, d] for all experts, held or not; computed in f32.
    pub gate: Param,
    /// Before the experts: of their tokens and of the router's probabilities.
    pub input: Seam,
    /// [held, 2, f, d]: gate, then up.
    pub gate_up_proj: Param,
    /// [held, d, f].
    pub down_proj: Param,
    /// After the experts.
    pub output: Seam,
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
            input: Seam::new(at.sub("experts.input")),
            gate_up_proj: Param::new(at.sub("experts.gate_up_proj"), [e, 2, f, d], init),
            down_proj: Param::new(at.sub("experts.down_proj"), [e, d, f], init),
            output: Seam::new(at.sub("experts.output")),
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

        let x_nd = self.input.redistribute(&x_nd)?;
        let (y_nd, counts) = self.dispatch(&x_nd, &self.input.redistribute(&probabilities_ne)?)?;
        let y = ops::reshape(&y_nd, &x.global_shape())?;
        let routing = Routing { logits_ne, probabilities_ne, counts };
        Ok((self.output.redistribute(&y)?, routing))
    }

    /// Applies the experts to this rank's tokens. Each rank has all experts, or some inner features
    /// of all; the result is then a partial sum. Also returns the number of tokens per expert.
    fn dispatch(&self, x_nd: &Var, probabilities_ne: &Var) -> Result<(Var, Tensor)> {
        let gate_up = self.gate_up_proj.var_as(x_nd.dtype())?;
        let down = self.down_proj.var_as(x_nd.dtype())?;
        let operands = [x_nd, probabilities_ne, &gate_up, &down];
        let (Some(tokens), Some(experts)) = (x_nd.value().sharding(), gate_up.value().sharding())
        else {
            let [y_nd, counts] = self.apply_experts(operands.map(Var::clone))?;
            return Ok((y_nd, counts.value().clone()));
        };

        let (mesh, rows, features) = (tokens.mesh(), Shards::of(tokens, 0), Shards::of(experts, 2));
        let (shape, held) = (x_nd.global_shape(), [self.down_proj.shape()[0]]);
        let x_nd = LocalOperand::new(x_nd, mesh, &rows.0);
        let probabilities_ne = LocalOperand::new(probabilities_ne, mesh, &rows.0);
        let gate_up = LocalOperand::new(&gate_up, mesh, &features.0);
        let down = LocalOperand::new(&down, mesh, &features.0);
        let operands = [
            features.partial_gradient(x_nd),
            features.partial_gradient(probabilities_ne),
            rows.partial_gradient(gate_up),
            rows.partial_gradient(down),
        ];
        let y_nd = LocalResult::new(mesh, [&rows.0[..], &features.partial()].concat(), &shape);
        let counts = LocalResult::new(mesh, rows.partial(), &held);
        let body = |operands| self.apply_experts(operands);
        let [y_nd, counts] = local(operands, [y_nd, counts], body)?;
        Ok((y_nd, counts.value().clone()))
    }

    /// As [`Moe::dispatch`], with the tokens and experts of one rank.
    fn apply_experts(&self, [x_nd, probabilities_ne, gate_up, down]: [Var; 4]) -> Result<[Var; 2]> {
        let bias = self.router_bias.as_ref().map(Buffer::value).transpose()?;
        let bias = bias.as_ref().map(Tensor::local);
        let (weights_nk, experts_nk) =
            ops::router_top_k(&probabilities_ne, self.top_k, self.normalize, bias.as_ref())?;

        let (held, all) = (self.down_proj.shape()[0], self.gate.shape()[0]);
        let order = ops::expert_order(&experts_nk, all, self.first_expert, held)?;
        let x_cd = ops::permute_tokens(&x_nd, &order)?;

        let (features, inputs) = (gate_up.global_shape()[2], gate_up.global_shape()[3]);
        let gate_up = ops::reshape(&gate_up, &[held, 2 * features, inputs])?;
        let inside_c2f = ops::grouped_matmul(&x_cd, &gate_up, &order.offsets)?;
        let inside_cf = ops::swiglu(&ops::chunk(&inside_c2f, 2)?)?;
        let y_cd = ops::grouped_matmul(&inside_cf, &down, &order.offsets)?;

        let y_nd = ops::unpermute_tokens(&y_cd, &weights_nk, &order)?;
        let counts = ops::expert_counts(&order.offsets)?;
        Ok([y_nd, Var::constant(counts)])
    }
}

/// The axes that shard a dim, with their placements.
struct Shards(Vec<(String, Placement)>);

impl Shards {
    fn of(sharding: &Sharding, dim: usize) -> Shards {
        let placements = sharding.placements().into_iter();
        let shards = placements.filter(|(_, placement)| placement.dim() == Some(dim));
        Shards(shards.map(|(axis, at)| (axis.to_owned(), at)).collect())
    }

    /// A sum over the shards.
    fn partial(&self) -> Vec<(String, Placement)> {
        let sum = |(axis, _): &(String, _)| (axis.clone(), Placement::Partial(Reduction::Sum));
        self.0.iter().map(sum).collect()
    }

    /// An operand whose gradient is such a sum.
    fn partial_gradient<'a>(&self, operand: LocalOperand<'a>) -> LocalOperand<'a> {
        let axes = self.0.iter();
        axes.fold(operand, |operand, (axis, _)| operand.partial_gradient(axis))
    }
}
