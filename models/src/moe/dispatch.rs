//! How tokens reach their experts and come back.

use std::sync::Arc;

use meshgrad_autograd::{Result, Var, ops};
use meshgrad_collectives::Communicator;
use meshgrad_runtime::ops::ExpertOrder;
use meshgrad_runtime::{DType, Tensor};

/// This rank's tokens and their experts.
#[derive(Clone)]
pub struct RoutedTokens {
    /// [n, d].
    pub x_nd: Var,
    /// The weight of each expert of a token, [n, k].
    pub weights_nk: Var,
    /// The experts of each token, [n, k] i32, of all experts.
    pub experts_nk: Tensor,
    /// Their order by expert, for all experts.
    pub order: ExpertOrder,
}

/// The rows of the experts that a rank holds.
pub struct ExpertRows {
    /// Sorted by expert, [c, d].
    pub x_cd: Var,
    /// Expert g of those held has the rows `offsets[g]..offsets[g + 1]`: [held + 1] i64.
    pub offsets: Tensor,
}

/// The ranks that have the experts between them.
pub struct ExpertPeers {
    /// In the order of their experts; ranks that share experts follow each other.
    pub group: Arc<dyn Communicator>,
    /// The number of ranks that share each expert: each has some of its inner features.
    pub shards: usize,
    /// The number of tokens of each rank of the group.
    pub tokens: Vec<usize>,
    /// The number of experts that each rank of the group holds.
    pub held: usize,
    /// The rows that a rank can send to each set of experts. More are lost, and the step is repeated.
    pub slots: usize,
}

impl ExpertPeers {
    /// The expert-parallel degree: the number of sets of experts.
    pub fn ep_size(&self) -> usize {
        self.group.size() / self.shards
    }

    /// The number of all experts.
    pub fn experts(&self) -> usize {
        self.ep_size() * self.held
    }

    /// The first expert that this rank holds.
    pub fn first_expert(&self) -> usize {
        self.group.index() / self.shards * self.held
    }

    /// The rows of this rank for experts of other ranks, from those for each set of experts, and the
    /// `bytes` that it sends: [2] f32.
    pub(super) fn sent(&self, rows_by_rank: &Tensor, bytes: usize) -> Result<Tensor> {
        let own = self.group.index() / self.shards;
        let all = ops::reshape(&ops::sum(rows_by_rank, &[0])?, &[1])?;
        let rows = ops::sub(&all, &rows_by_rank.slice(0, own..own + 1)?)?;
        let bytes = ops::full(rows.device(), &[1], DType::F32, bytes as f64)?;
        ops::concat(&[&rows, &bytes], 0)
    }
}

/// The elements of [`ExpertPeers::sent`].
pub(super) const SENT: usize = 2;

/// Brings tokens to the ranks that have their experts, and the experts' results back.
///
/// All ranks of the group make the same calls, also a rank without tokens: what a dispatcher
/// communicates must not depend on data. It runs inside of [`local`](meshgrad_autograd::local), so its
/// values have no sharding; [`meshgrad_autograd::ops`] has collectives with gradients.
pub trait Dispatcher: Send + Sync {
    /// What [`Dispatcher::combine`] needs of a dispatch.
    type Sent;

    /// The rows of this rank's experts, from the tokens of all ranks of the group. With several shards
    /// of an expert, each gets the same rows.
    ///
    /// # Errors
    /// Errors of ops and of the communication.
    fn dispatch(
        &self,
        tokens: RoutedTokens,
        peers: &ExpertPeers,
    ) -> Result<(ExpertRows, Self::Sent)>;

    /// For each token of this rank, the sum of its experts' results, weighted: [n, d]. `y_cd` are those
    /// of this rank's experts; with several shards of an expert, its result is the sum of theirs.
    ///
    /// # Errors
    /// Errors of ops and of the communication.
    fn combine(&self, y_cd: &Var, sent: Self::Sent, peers: &ExpertPeers) -> Result<Var>;
}

/// How tokens are dispatched to experts on other ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dispatch {
    /// The one that sends fewer bytes.
    #[default]
    Cheapest,
    /// Every rank gets all tokens of the group, and results are summed over the group. Sends fewer bytes
    /// than `AllToAll` if a token has as many experts as there are ranks. The sum over ranks rounds.
    AllGather,
    /// Each row is sent to the ranks that have its expert, and comes back to be added at its source. The
    /// result has the same bits as on one rank.
    AllToAll,
}

impl Dispatch {
    /// The dispatcher that is not `Cheapest`, for slots of `slots_per_token` x tokens. The choice is the
    /// same on all ranks and for all steps, so that a run that resumes has the bits of one that does not.
    pub(super) fn chosen(self, slots_per_token: f64) -> Dispatch {
        match self {
            // Both send as many rows to each other rank of the group, and get as many back.
            Dispatch::Cheapest if slots_per_token < 1.0 => Dispatch::AllToAll,
            Dispatch::Cheapest => Dispatch::AllGather,
            chosen => chosen,
        }
    }
}

/// A [`Dispatcher`] of any type.
pub(super) trait AnyDispatcher: Send + Sync {
    /// The results of `experts` for each token.
    fn apply(
        &self,
        tokens: RoutedTokens,
        peers: &ExpertPeers,
        experts: &dyn Fn(&ExpertRows) -> Result<Var>,
    ) -> Result<Var>;
}

impl<D: Dispatcher> AnyDispatcher for D {
    fn apply(
        &self,
        tokens: RoutedTokens,
        peers: &ExpertPeers,
        experts: &dyn Fn(&ExpertRows) -> Result<Var>,
    ) -> Result<Var> {
        let (rows, sent) = self.dispatch(tokens, peers)?;
        self.combine(&experts(&rows)?, sent, peers)
    }
}

/// Without communication: this rank has all experts of its tokens.
pub(super) fn in_place(
    tokens: &RoutedTokens,
    experts: impl Fn(&ExpertRows) -> Result<Var>,
) -> Result<Var> {
    let order = &tokens.order;
    let x_cd = ops::permute_tokens(&tokens.x_nd, order)?;
    let y_cd = experts(&ExpertRows { x_cd, offsets: order.offsets.clone() })?;
    ops::unpermute_tokens(&y_cd, &tokens.weights_nk, order)
}
