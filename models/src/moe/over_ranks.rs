//! A block on several ranks: which part of its tokens and experts each works on.

use meshgrad_autograd::{LocalOperand, LocalResult, Result, Var, local, ops, precedes_backward};
use meshgrad_collectives::communicator;
use meshgrad_error::ensure;
use meshgrad_mesh::{Mesh, Placement, Reduction, Sharding};
use meshgrad_runtime::Tensor;

use super::dispatch::{ExpertPeers, SENT};
use super::{Moe, slots};

impl Moe {
    /// The weights and the experts of each token.
    pub(super) fn choose(
        &self,
        scores_ne: &Var,
        replayed: Option<&Tensor>,
    ) -> Result<(Var, Tensor)> {
        let replayed = replayed.map(ops::merge_leading).transpose()?;
        let shape = [scores_ne.global_shape()[0], self.router.top_k];
        if let Some(given) = replayed.as_ref().map(Tensor::global_shape) {
            ensure!(
                given[..] == shape,
                Invalid,
                "`{}`: replayed experts of {given:?} (tokens, experts per token), not {shape:?}",
                self.router.gate.name()
            );
        }
        let Some(sharding) = scores_ne.value().sharding() else {
            return self.router.choose(scores_ne, replayed.as_ref());
        };
        let (mesh, rows) = (sharding.mesh(), Shards::of(sharding, 0));
        let replayed = replayed.map(|experts| ops::redistribute(&experts, sharding.placements()));
        let replayed = replayed.transpose()?.map(|experts| experts.local());
        let results = [(); 2].map(|()| LocalResult::new(mesh, &rows.0, &shape));
        let scores_ne = LocalOperand::new(scores_ne, mesh, &rows.0);
        let [weights_nk, experts_nk] = local([scores_ne], results, |[scores_ne]| {
            let (weights, experts) = self.router.choose(&scores_ne, replayed.as_ref())?;
            Ok([weights, Var::constant(experts)])
        })?;
        Ok((weights_nk, experts_nk.value().clone()))
    }

    /// The tokens `x` and the weights of the shared experts, if a rank can apply them to its own tokens
    /// while others are on their way: it has each token alone, and all of these weights.
    pub(super) fn shared_beside(&self, x: &Var) -> Result<Option<[Var; 3]>> {
        let Some(shared) = &self.shared else {
            return Ok(None);
        };
        // Of its own, so that its gradient is added to that of `x` as on one rank.
        let x_nd = ops::merge_leading(x)?;
        let Some(tokens) = x_nd.value().sharding() else {
            return Ok(None);
        };
        let experts = self.gate_up_proj.sharded_shape();
        let sizes = tokens.axes_of_dim(0).into_iter().map(|axis| tokens.mesh().size(axis));
        let is_alone = sizes.product::<meshgrad_mesh::Result<usize>>()? == tokens.mesh().len();
        if !is_alone || experts.sharding().is_none_or(|it| it.mesh() == tokens.mesh()) {
            return Ok(None);
        }
        let weights = shared.whole_weights(x_nd.dtype())?;
        Ok(weights.map(|[gate_up, down]| [x_nd, gate_up, down]))
    }

    /// As [`Moe::apply_experts`], where each rank has all experts, or some inner features of all; the
    /// result is then a partial sum.
    pub(super) fn apply_own(
        &self,
        [x_nd, weights_nk, experts_nk]: [&Var; 3],
        [gate_up, down]: [&Var; 2],
        [tokens, experts]: [&Sharding; 2],
    ) -> Result<(Var, Tensor)> {
        let (mesh, rows, features) = (tokens.mesh(), Shards::of(tokens, 0), Shards::of(experts, 2));
        let operands = [
            features.partial_gradient(LocalOperand::new(x_nd, mesh, &rows.0)),
            features.partial_gradient(LocalOperand::new(weights_nk, mesh, &rows.0)),
            LocalOperand::new(experts_nk, mesh, &rows.0),
            rows.partial_gradient(LocalOperand::new(gate_up, mesh, &features.0)),
            rows.partial_gradient(LocalOperand::new(down, mesh, &features.0)),
        ];
        let (shape, experts) = (x_nd.global_shape(), [self.router.experts()]);
        let y_nd = LocalResult::new(mesh, [&rows.0[..], &features.partial()].concat(), &shape);
        let counts = LocalResult::new(mesh, rows.partial(), &experts);
        let [y_nd, counts] =
            local(operands, [y_nd, counts], |operands| self.on_rank(operands, None, None))?;
        Ok((y_nd, counts.value().clone()))
    }

    /// As [`Moe::apply_experts`], where each rank has some experts, or some inner features of them, on
    /// a mesh of their own. Each token is dispatched by one rank: those that are on several ranks are
    /// divided between them before, and gathered after.
    pub(super) fn apply_anywhere(
        &self,
        routed: [&Var; 3],
        [gate_up, down]: [&Var; 2],
        shared: Option<&[Var; 3]>,
        tokens: &Sharding,
    ) -> Result<(Var, Tensor)> {
        let axes = tokens.mesh().axes().iter().map(|axis| axis.name());
        let copies: Vec<&str> = axes.filter(|axis| !tokens.axes_of_dim(0).contains(axis)).collect();
        let on_copies =
            |at: &Placement| -> Vec<_> { copies.iter().map(|axis| (*axis, at.clone())).collect() };
        let divided = routed.map(|it| ops::redistribute(it, on_copies(&Placement::shard(0))));
        let [x_nd, weights_nk, experts_nk] = divided;
        let (x_nd, weights_nk, experts_nk) = (x_nd?, weights_nk?, experts_nk?);

        let [tokens, up, out] = [&x_nd, gate_up, down].map(|it| it.value().sharding());
        let (Some(tokens), Some(up), Some(out)) = (tokens, up, out) else {
            unreachable!("a redistribution keeps a sharding, and so does a cast")
        };
        let peers = self.peers(tokens, up)?;
        let (mesh, rows) = (tokens.mesh(), Shards::of(tokens, 0));
        let operands = [
            LocalOperand::new(&x_nd, mesh, &rows.0),
            LocalOperand::new(&weights_nk, mesh, &rows.0),
            LocalOperand::new(&experts_nk, mesh, &rows.0),
            of_other_tokens(gate_up, up.mesh()),
            of_other_tokens(down, out.mesh()),
        ];
        let shape = x_nd.global_shape();
        let y_nd = LocalResult::new(mesh, &rows.0, &shape);
        let needs = if self.counts_needs(peers.ep_size()) { slots::COUNTED } else { 0 };
        let statistics = [self.router.experts() + SENT + needs];
        let counts = LocalResult::new(mesh, rows.partial(), &statistics);
        let [y_nd, counts] = match shared {
            None => local(operands, [y_nd, counts], |operands| {
                self.on_rank(operands, None, Some(&peers))
            })?,
            Some([own_nd, shared_up, shared_down]) => {
                let [x, of, experts, up, down] = operands;
                let own_nd = LocalOperand::new(own_nd, mesh, &rows.0);
                let [shared_up, shared_down] =
                    [shared_up, shared_down].map(|weight| of_other_tokens(weight, mesh));
                let operands = [x, of, experts, up, down, own_nd, shared_up, shared_down];
                local(operands, [y_nd, counts], |[x, of, experts, up, down, shared @ ..]| {
                    self.on_rank([x, of, experts, up, down], Some(shared), Some(&peers))
                })?
            }
        };
        let y_nd = ops::redistribute(&y_nd, on_copies(&Placement::Replicate))?;
        Ok((y_nd, counts.value().clone()))
    }

    /// The ranks among which tokens are exchanged: those that differ in their experts, or in their inner
    /// features of them.
    fn peers(&self, tokens: &Sharding, experts: &Sharding) -> Result<ExpertPeers> {
        let mesh = experts.mesh();
        let (by_expert, by_feature) = (experts.axes_of_dim(0), experts.axes_of_dim(2));
        let sizes = by_feature.iter().map(|axis| mesh.size(axis));
        let (ranks, shards) = (self.ep_size(), sizes.product::<meshgrad_mesh::Result<usize>>()?);
        let all = self.router.experts();
        ensure!(
            all.is_multiple_of(ranks),
            Invalid,
            "`{}`: {all} experts cannot be divided over {ranks} ranks",
            self.gate_up_proj.name()
        );
        let group = communicator(mesh, [by_expert, by_feature].concat())?;
        let members = group.group().ranks().iter();
        let of_rank = |rank: &usize| tokens.local_shape(*rank).map_or(0, |shape| shape[0]);
        let (tokens, held) = (members.map(of_rank).collect::<Vec<usize>>(), all / ranks);
        let worst = tokens.iter().copied().max().unwrap_or(0) * self.router.top_k.min(held);
        let slots = match precedes_backward() && self.counts_needs(ranks) {
            true => self.slots.in_training(worst),
            false => worst,
        };
        Ok(ExpertPeers { group, shards, tokens, held, slots })
    }
}

/// An operand whose gradient is a sum over the axes of its mesh that do not shard it: their ranks have
/// other tokens.
fn of_other_tokens<'a>(weight: &'a Var, mesh: &'a Mesh) -> LocalOperand<'a> {
    let placements = weight.value().sharding().map(Sharding::placements).unwrap_or_default();
    let others = placements.iter().filter(|(_, at)| at.dim().is_none()).map(|(axis, _)| *axis);
    let operand = LocalOperand::new(weight, mesh, &placements);
    others.fold(operand, |operand, axis| operand.partial_gradient(axis))
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
