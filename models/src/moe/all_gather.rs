//! Dispatch by gathering all tokens.

use meshgrad_autograd::{Result, Var, ops};
use meshgrad_collectives::Collectives;
use meshgrad_runtime::ops::{ExpertOrder, expert_order};

use super::dispatch::{Dispatcher, ExpertPeers, ExpertRows, RoutedTokens};

/// Every rank of the group gets all tokens and takes those of its experts. Results are summed over the
/// group. Everything that is sent has a known size.
///
/// Each rank sends its tokens to each other rank, and a partial result for each token of the other: 2 (g
/// - 1) n d elements in a group of g.
#[derive(Clone, Copy, Debug)]
pub struct AllGather;

impl AllGather {
    /// The bytes that this rank sends in a forward pass: to each other rank its tokens, with their
    /// weights and experts, and a partial result for each token of that rank.
    pub(super) fn sent_bytes(tokens: &RoutedTokens, peers: &ExpertPeers) -> usize {
        let [x, weights] = [&tokens.x_nd, &tokens.weights_nk];
        let row = |x: &Var| x.dtype().bytes(x.shape()[1]);
        let (others, own) = (peers.group.size() - 1, peers.tokens[peers.group.index()]);
        let of_others = peers.tokens.iter().sum::<usize>() - own;
        let experts = tokens.experts_nk.dtype().bytes(tokens.experts_nk.shape()[1]);
        others * own * (row(x) + row(weights) + experts) + of_others * row(x)
    }
}

/// What [`AllGather`] needs to combine.
pub struct Gathered {
    /// Of the tokens of all ranks.
    weights_nk: Var,
    order: ExpertOrder,
}

impl Dispatcher for AllGather {
    type Sent = Gathered;

    fn dispatch(
        &self,
        tokens: RoutedTokens,
        peers: &ExpertPeers,
    ) -> Result<(ExpertRows, Gathered)> {
        let (group, rows) = (&peers.group, &peers.tokens[..]);
        let experts_nk = group.all_gather_rows(&tokens.experts_nk, rows)?;
        let [x_nd, weights_nk] =
            ops::all_gather_rows_of([&tokens.x_nd, &tokens.weights_nk], rows, group)?;

        let experts_nk = experts_nk.wait()?;
        let order = expert_order(&experts_nk, peers.experts(), peers.first_expert(), peers.held)?;
        let x_cd = ops::permute_tokens(&x_nd, &order)?;
        let rows = ExpertRows { x_cd, offsets: order.offsets.clone() };
        Ok((rows, Gathered { weights_nk, order }))
    }

    fn combine(&self, y_cd: &Var, sent: Gathered, peers: &ExpertPeers) -> Result<Var> {
        let y_nd = ops::unpermute_tokens(y_cd, &sent.weights_nk, &sent.order)?;
        ops::reduce_scatter_rows(&y_nd, &peers.tokens, &peers.group)
    }
}
