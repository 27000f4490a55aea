//! Dispatch by sending each row to its expert.

use meshgrad_autograd::{Operand, Result, Var, ops};
use meshgrad_collectives::Collectives;
use meshgrad_runtime::ops::{ExpertOrder, expert_order, expert_places, reshape};

use super::dispatch::{Dispatcher, ExpertPeers, ExpertRows, RoutedTokens};

/// Each rank sends every other rank the rows of its experts, in slots whose number does not depend on
/// data, and gets the results in the same slots. Rows inside an expert are in the order of (source rank,
/// token). Weights stay at the source, where a token's rows are added in the order of its choices, in
/// f32.
///
/// Legend: p = ranks x slots rows, of which those without a token are zero; s shards of an expert.
///
/// A rank sends 2 (g - 1) slots d elements in a group of g.
#[derive(Clone, Copy, Debug)]
pub struct AllToAll;

impl AllToAll {
    /// The bytes that this rank sends in a forward pass: to each other rank its slots, with their
    /// experts, and as many results.
    pub(super) fn sent_bytes(tokens: &RoutedTokens, peers: &ExpertPeers) -> usize {
        let row = tokens.x_nd.dtype().bytes(tokens.x_nd.shape()[1]);
        let experts = tokens.experts_nk.dtype().bytes(1);
        (peers.group.size() - 1) * peers.slots * (2 * row + experts)
    }
}

/// What [`AllToAll`] needs to combine.
pub struct Exchanged {
    weights_nk: Var,
    /// Of this rank's tokens in the slots.
    there: ExpertOrder,
    /// Of the rows that arrived.
    here: ExpertOrder,
}

impl Dispatcher for AllToAll {
    type Sent = Exchanged;

    fn dispatch(
        &self,
        tokens: RoutedTokens,
        peers: &ExpertPeers,
    ) -> Result<(ExpertRows, Exchanged)> {
        let RoutedTokens { x_nd, weights_nk, experts_nk, order } = tokens;
        let ExpertPeers { group, held, slots, .. } = peers;
        let (held, slots) = (*held, *slots);
        let places = expert_places(&experts_nk, &order, held, slots)?;
        let x_pd = ops::permute_tokens(&x_nd, &places.order)?;

        let experts_p1 = reshape(&places.experts, &[places.experts.elements(), 1])?;
        let rows = vec![slots; group.size()];
        let experts_p1 = for_shards(&experts_p1, peers)?;
        let experts_p1 = group.all_to_all_rows(&experts_p1, &rows, &rows)?;
        let x_pd = ops::all_to_all_rows(&for_shards(&x_pd, peers)?, &rows, &rows, group)?;

        // What has no token has the expert after those held, and gets no row.
        let here = expert_order(&experts_p1.wait()?, held + 1, 0, held)?;
        let x_cd = ops::permute_tokens(&x_pd, &here)?;
        let rows = ExpertRows { x_cd, offsets: here.offsets.clone() };
        Ok((rows, Exchanged { weights_nk, there: places.order, here }))
    }

    fn combine(&self, y_cd: &Var, sent: Exchanged, peers: &ExpertPeers) -> Result<Var> {
        let Exchanged { weights_nk, there, here } = sent;
        let rows = vec![peers.slots; peers.group.size()];
        let y_pd = ops::add_rows(y_cd, &here)?;
        let y_pd = ops::all_to_all_rows(&y_pd, &rows, &rows, &peers.group)?;
        ops::unpermute_tokens(&of_shards(&y_pd, peers)?, &weights_nk, &there)
    }
}

/// The slots for each rank, from those for each set of experts: its shards get the same rows.
fn for_shards<V: Operand>(x_pd: &V, peers: &ExpertPeers) -> Result<V> {
    let (shards, slots, width) = (peers.shards, peers.slots, x_pd.value().shape()[1]);
    if shards == 1 {
        return Ok(x_pd.clone());
    }
    let ranks = peers.ep_size();
    let x = ops::reshape(x_pd, &[ranks, 1, slots, width])?;
    let x = ops::broadcast_to(&x, &[ranks, shards, slots, width])?;
    ops::reshape(&x, &[ranks * shards * slots, width])
}

/// The sums over the shards.
fn of_shards(y_pd: &Var, peers: &ExpertPeers) -> Result<Var> {
    let (shards, slots, width) = (peers.shards, peers.slots, y_pd.shape()[1]);
    if shards == 1 {
        return Ok(y_pd.clone());
    }
    let ranks = peers.ep_size();
    let y = ops::sum(&ops::reshape(y_pd, &[ranks, shards, slots, width])?, &[1])?;
    ops::reshape(&y, &[ranks * slots, width])
}
