//! Why collectives that ranks wait in cannot complete.

use std::time::Duration;

use meshgrad_collectives::{CallSite, CommError, Wait};
use meshgrad_mesh::Group;

use crate::hang::{Graph, Stuck};

/// A collective that ranks wait in.
pub(crate) struct Open {
    pub(crate) group: Group,
    pub(crate) stuck: Stuck,
    /// The calls of members that have started it.
    pub(crate) calls: Vec<CallSite>,
    /// The missing ranks that do not have the communicator.
    pub(crate) not_joined: Vec<usize>,
}

/// A verdict, and the indices of the collectives that cause it.
pub(crate) type Found = (CommError, Vec<usize>);

/// The stuck collectives, to build the graph of their dependencies.
pub(crate) fn stuck(open: &[Open]) -> Vec<Stuck> {
    open.iter().map(|open| open.stuck.clone()).collect()
}

/// The ranks that wait for each other in the collectives `among`.
pub(crate) fn order_inversion(graph: &Graph<'_>, open: &[Open], among: &[usize]) -> Option<Found> {
    let cycle = graph.smallest_cycle(among)?;
    let causes = cycle.iter().map(|step| step.stuck).collect();
    let waits = cycle.iter().filter_map(|step| {
        let of_rank = |call: &&CallSite| call.rank == step.rank;
        let open = &open[step.stuck];
        Some(Wait {
            group: open.group.clone(),
            call: open.calls.iter().find(of_rank)?.clone(),
            waits_for: step.waits_for,
        })
    });
    let cycle = waits.collect();
    Some((CommError::OrderInversion { cycle }, causes))
}

/// Missing ranks that do not wait, in the first collective of `among` that lacks only such ranks.
pub(crate) fn absent(open: &[Open], among: &[usize], limit: Duration) -> Option<Found> {
    let waits = |rank: &usize| open.iter().any(|open| open.stuck.waiting.contains(rank));
    // No rank is missing while a late one ends the collective, or while transfers take long.
    let is_cause = |at: &&usize| {
        let missing = &open[**at].stuck.missing;
        !missing.is_empty() && !missing.iter().any(waits)
    };
    let cause = *among.iter().find(is_cause)?;
    let open = &open[cause];
    let (group, call) = (open.group.clone(), open.calls.first()?.clone());
    let error = match open.not_joined.is_empty() {
        true => {
            CommError::Timeout { group, call, missing: open.stuck.missing.clone(), waited: limit }
        }
        false => CommError::BootstrapStuck { group, call, missing: open.not_joined.clone() },
    };
    Some((error, vec![cause]))
}
