//! Mixture of experts: each token is routed to the `top_k` experts with the highest scores (Shazeer
//! et al. 2017).
//!
//! - `moe.rs`: the block.
//! - `router.rs`: which experts a token has, and with which weights.
//! - `dispatch.rs`: how tokens reach their experts; `all_gather.rs` and `all_to_all.rs` between ranks.
//! - `over_ranks.rs`: which part of tokens and experts a rank works on.
//! - `slots.rs`: the slots for tokens that are sent.
//! - `balance.rs`: what keeps the load of experts even.
//!
//! Legend: n tokens, d hidden size, e experts, k experts per token, f inner features of an expert,
//! c = n k rows of (token, expert) pairs sorted by expert.

mod all_gather;
mod all_to_all;
pub mod balance;
mod dispatch;
mod over_ranks;
mod router;
mod slots;

use std::sync::Arc;

use meshgrad_autograd::{Init, Module, ModulePath, Param, Result, Seam, Var, Vars, beside, ops};
use meshgrad_error::{Error, Kind};
use meshgrad_runtime::Tensor;

use crate::mlp::Mlp;
pub use all_gather::AllGather;
pub use all_to_all::AllToAll;
use dispatch::{AnyDispatcher, SENT, in_place};
pub use dispatch::{Dispatch, Dispatcher, ExpertPeers, ExpertRows, RoutedTokens};
pub use router::Router;
use slots::Slots;

/// The feed-forward block of a sparse layer. Over ranks, each has all experts, some inner features of
/// all, or some experts, to which the tokens of all ranks are dispatched.
#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub struct Moe {
    /// Chooses the experts of each token.
    pub router: Router,
    /// Before the experts: of their tokens, and of the weights and numbers of their experts.
    pub input: Seam,
    /// [held, 2, f, d]: gate, then up.
    pub gate_up_proj: Param,
    /// [held, d, f].
    pub down_proj: Param,
    /// After the experts.
    pub output: Seam,
    /// Has every token, in addition to its experts.
    pub shared: Option<Mlp>,
    #[module(skip)]
    dispatcher: Choice,
    #[module(skip)]
    slots: Slots,
}

/// The sizes of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeSizes {
    /// d.
    pub inputs: usize,
    /// f.
    pub features: usize,
    /// e.
    pub experts: usize,
    /// k.
    pub top_k: usize,
}

/// What dispatches tokens to experts on other ranks.
#[derive(Clone)]
enum Choice {
    BuiltIn(Dispatch),
    Own(Arc<dyn AnyDispatcher>),
}

/// How a layer routed its tokens.
#[derive(Clone)]
pub struct Routing {
    /// The number of sequences, of n / sequences tokens.
    pub sequences: usize,
    /// The experts of each token, the best first, [n, k] i32.
    pub experts_nk: Tensor,
    /// The router logits, [n, e] f32; tracked.
    pub logits_ne: Var,
    /// The scores, which add up to 1 for each token; tracked.
    pub probabilities_ne: Var,
    /// Tokens per expert, \[e\] f32: with sharded tokens, partial sums.
    pub counts: Tensor,
    /// What the step must know of the dispatch: `counts`; with experts on other ranks, the rows for
    /// those, and the bytes that the built-in dispatchers send in a forward pass; if slots adapt, what is
    /// needed of them. f32, summed over microbatches and ranks for [`Moe::follow`].
    pub statistics: Tensor,
}

impl Vars for Routing {
    fn each_var(&mut self, f: &mut dyn FnMut(&mut Var)) {
        f(&mut self.logits_ne);
        f(&mut self.probabilities_ne);
    }
}

impl Moe {
    /// A block with all experts, at the path `at`. The router's weights of a token's experts are not
    /// [normalized](Router::normalize).
    pub fn new(at: &ModulePath, sizes: MoeSizes, init: Init) -> Moe {
        let MoeSizes { inputs: d, features: f, experts: e, top_k } = sizes;
        let gate = Param::new(at.sub("gate.weight"), [e, d], init);
        Moe {
            router: Router::new(gate, top_k),
            input: Seam::new(at.sub("experts.input")),
            gate_up_proj: Param::new(at.sub("experts.gate_up_proj"), [e, 2, f, d], init),
            down_proj: Param::new(at.sub("experts.down_proj"), [e, d, f], init),
            output: Seam::new(at.sub("experts.output")),
            shared: None,
            dispatcher: Choice::BuiltIn(Dispatch::default()),
            slots: Slots::default(),
        }
    }

    /// Sets how tokens are dispatched to experts on other ranks. Clones made before keep theirs.
    pub fn dispatch_by(&mut self, dispatch: Dispatch) {
        self.dispatcher = Choice::BuiltIn(dispatch);
    }

    /// As [`Moe::dispatch_by`], with a dispatcher of your own.
    pub fn dispatch_with(&mut self, dispatcher: impl Dispatcher + 'static) {
        self.dispatcher = Choice::Own(Arc::new(dispatcher));
    }

    /// Adds a bias to the router, zero at first, under its name in DeepSeek-V3, if it has none. Clones made before
    /// have none.
    pub fn add_router_bias(&mut self) {
        self.router.add_bias();
    }

    /// Adds `count` experts that every token has, as one MLP.
    #[must_use]
    pub fn shared_experts(mut self, count: usize) -> Moe {
        let block = self.router.gate.name().trim_end_matches(".gate.weight");
        let at = ModulePath::from(block).sub("shared_experts");
        let [_, _, f, d] = self.gate_up_proj.shape()[..] else {
            unreachable!("a gate_up_proj has four dims")
        };
        self.shared = Some(Mlp::new(&at, d, count * f, self.gate_up_proj.spec().init));
        self
    }

    /// The expert-parallel degree: the number of sets of experts, each on ranks of its own.
    pub fn ep_size(&self) -> usize {
        let shape = self.down_proj.sharded_shape();
        let axes = shape.sharding().map(|of| (of.mesh(), of.axes_of_dim(0)));
        axes.map_or(1, |(mesh, axes)| axes.iter().flat_map(|axis| mesh.size(axis)).product())
    }

    /// Maps `x` [.., d] to the same shape: the weighted sum over a token's experts, and the shared
    /// experts' result. An expert without tokens gets a zero gradient.
    ///
    /// # Errors
    /// When the last dim of `x` has another size.
    pub fn forward(&self, x: &Var) -> Result<(Var, Routing)> {
        self.forward_with(x, None)
    }

    /// As [`Moe::forward`]; each token has the `replayed` experts in place of those of the highest
    /// scores, if they are given: [.., k] i32, such as [`Routing::experts_nk`] of another pass. Their
    /// weights are of this pass.
    ///
    /// # Errors
    /// As [`Moe::forward`]; when `replayed` does not fit `x`.
    pub fn forward_with(&self, x: &Var, replayed: Option<&Tensor>) -> Result<(Var, Routing)> {
        let x_nd = ops::merge_leading(x)?;
        let logits_ne = self.router.logits(&x_nd)?;
        let scores_ne = self.router.scores(&logits_ne)?;
        let probabilities_ne = self.router.probabilities(&scores_ne)?;
        let (weights_nk, experts_nk) = self.choose(&scores_ne, replayed)?;

        let [x_nd, weights, experts] = [&x_nd, &weights_nk, &Var::constant(experts_nk.clone())]
            .map(|of_tokens| self.input.redistribute(of_tokens));
        let routed = [x_nd?, weights?, experts?];
        let beside = self.shared_beside(x)?;
        let (y_nd, statistics) = self.apply_experts(routed.each_ref(), beside.as_ref())?;
        let counts = statistics.slice(0, 0..self.router.experts())?;
        let mut y = self.output.redistribute(&ops::reshape(&y_nd, &x.global_shape())?)?;
        if let (Some(shared), None) = (&self.shared, &beside) {
            y = ops::add(&y, &shared.forward(x)?)?;
        }
        let sequences = x.global_shape().iter().rev().skip(2).product();
        let of_tokens =
            Routing { sequences, experts_nk, logits_ne, probabilities_ne, counts, statistics };
        Ok((y, of_tokens))
    }

    /// Lets the slots of tokens that are sent to experts on other ranks follow what the last steps needed,
    /// in place of the most that can be needed. Steps in which they were too few must be repeated:
    /// [`Model::overflow`](crate::Model::overflow).
    pub fn adapt_slots(&self, adapts: bool) {
        self.slots.adapt(adapts);
    }

    /// Sets the slots of training passes until the next step has been followed, such as to those that an
    /// earlier run needed: at least `slots`. Slots that do not adapt stay.
    pub fn set_slots(&self, slots: usize) {
        self.slots.set(slots);
    }

    /// Lets slots follow the sums of [`Routing::statistics`] over a step. All ranks pass the same.
    pub fn follow(&self, statistics: &[f32]) {
        let needs = statistics.get(self.router.experts() + SENT..).unwrap_or_default();
        if !needs.is_empty() {
            self.slots.follow(needs);
        }
    }

    /// The results of the experts for each token, and the statistics of the dispatch. `routed` are tokens,
    /// weights of their experts, and these experts. With `shared` tokens and weights, the result has that
    /// of the shared experts, too.
    fn apply_experts(&self, routed: [&Var; 3], shared: Option<&[Var; 3]>) -> Result<(Var, Tensor)> {
        let x_nd = routed[0];
        let gate_up = self.gate_up_proj.var_as(x_nd.dtype())?;
        let down = self.down_proj.var_as(x_nd.dtype())?;
        let weights = [&gate_up, &down];
        match (x_nd.value().sharding(), gate_up.value().sharding()) {
            (Some(tokens), Some(experts)) if tokens.mesh() == experts.mesh() => {
                self.apply_own(routed, weights, [tokens, experts])
            }
            (Some(tokens), Some(_)) => self.apply_anywhere(routed, weights, shared, tokens),
            _ => {
                let [x_nd, weights_nk, experts_nk] = routed;
                let operands = [x_nd, weights_nk, experts_nk, &gate_up, &down].map(Var::clone);
                let [y_nd, counts] = self.on_rank(operands, None, None)?;
                Ok((y_nd, counts.value().clone()))
            }
        }
    }

    /// What a built-in dispatch between `ranks` sets of experts is.
    fn built_in(&self, dispatch: Dispatch, ranks: usize) -> Dispatch {
        let held = self.router.experts() / ranks;
        dispatch.chosen(self.slots.per_token(self.router.top_k, ranks, held))
    }

    /// Whether the statistics say how many slots are needed between `ranks` sets of experts: only those
    /// of slots that adapt are too few.
    fn counts_needs(&self, ranks: usize) -> bool {
        match self.dispatcher {
            Choice::BuiltIn(dispatch) => {
                self.slots.adapts() && self.built_in(dispatch, ranks) == Dispatch::AllToAll
            }
            Choice::Own(_) => false,
        }
    }

    /// Says which dispatch has no memory.
    fn explain(&self, error: Error, peers: &ExpertPeers) -> Error {
        match error.kind() {
            Kind::OutOfMemory => error.context(format!(
                "`{}`: a dispatch between {} ranks, with at most {} rows from each to another; use \
                 smaller microbatches or more ranks{}",
                self.gate_up_proj.name(),
                peers.group.size(),
                peers.slots,
                match self.slots.adapts() {
                    true => "",
                    false => ", or let the rows adapt (parallel.capacity = \"auto\")",
                }
            )),
            _ => error,
        }
    }

    /// As [`Moe::apply_experts`], with the tokens and experts of one rank.
    fn on_rank(
        &self,
        [x_nd, weights_nk, experts_nk, gate_up, down]: [Var; 5],
        shared: Option<[Var; 3]>,
        peers: Option<&ExpertPeers>,
    ) -> Result<[Var; 2]> {
        let experts_nk = experts_nk.value().clone();
        let all = self.router.experts();
        let order = ops::expert_order(&experts_nk, all, 0, all)?;
        let counts = ops::expert_counts(&order.offsets)?;

        let experts = |rows: &ExpertRows| {
            let [held, _, features, inputs] = gate_up.global_shape()[..] else {
                unreachable!("a gate_up_proj has four dims")
            };
            let gate_up = ops::reshape(&gate_up, &[held, 2 * features, inputs])?;
            let inside_c2f = ops::grouped_matmul(&rows.x_cd, &gate_up, &rows.offsets)?;
            let inside_cf = ops::swiglu(&ops::chunk(&inside_c2f, 2)?)?;
            ops::grouped_matmul(&inside_cf, &down, &rows.offsets)
        };
        let tokens = RoutedTokens { x_nd, weights_nk, experts_nk, order };
        let Some(peers) = peers else {
            return Ok([in_place(&tokens, experts)?, Var::constant(counts)]);
        };
        let (dispatcher, bytes): (&dyn AnyDispatcher, usize) = match &self.dispatcher {
            Choice::Own(dispatcher) => (&**dispatcher, 0),
            Choice::BuiltIn(dispatch) => match self.built_in(*dispatch, peers.ep_size()) {
                Dispatch::AllToAll => (&AllToAll, AllToAll::sent_bytes(&tokens, peers)),
                _ => (&AllGather, AllGather::sent_bytes(&tokens, peers)),
            },
        };
        let apply = || dispatcher.apply(tokens, peers, &experts);
        let y_nd = match shared {
            None => apply(),
            Some(shared) => beside(move || Mlp::of_rank(shared), apply)
                .and_then(|(shared_nd, y_nd)| ops::add(&y_nd, &shared_nd)),
        };
        let y_nd = y_nd.map_err(|error| self.explain(error, peers))?;

        let rows_by_rank = ops::reshape(&counts, &[peers.ep_size(), peers.held])?;
        let rows_by_rank = ops::sum(&rows_by_rank, &[1])?;
        let mut statistics = vec![counts, peers.sent(&rows_by_rank, bytes)?];
        if self.counts_needs(peers.ep_size()) {
            statistics.push(self.slots.needs(&rows_by_rank, peers.slots)?);
        }
        let statistics = ops::concat(&statistics.iter().collect::<Vec<_>>(), 0)?;
        Ok([y_nd, Var::constant(statistics)])
    }
}

/// The number of dispatches that lost rows, a scalar f32, from the sums of [`Routing::statistics`] of
/// layers with so many experts; `None` if their slots do not adapt.
pub(crate) fn overflow(statistics: &[Tensor], experts: usize) -> Result<Option<Tensor>> {
    let at = experts + SENT;
    let of_layers = statistics.iter().filter(|of_layer| of_layer.global_shape()[0] > at);
    let lost = of_layers.map(|of_layer| of_layer.slice(0, at..at + 1));
    let lost: Vec<Tensor> = lost.collect::<Result<_>>()?;
    match lost.is_empty() {
        true => Ok(None),
        false => Ok(Some(ops::sum(&ops::concat(&lost.iter().collect::<Vec<_>>(), 0)?, &[0])?)),
    }
}
