//! Why collectives that ranks wait in cannot complete.

use std::time::Duration;

use meshgrad_collectives::{CallSite, CommError, Wait};
use meshgrad_mesh::{Channel, Group};

use crate::hang::{Graph, Stuck};

/// After this time, ranks are asked why a message of a control channel has not arrived, since they may
/// wait for each other. Ranks that are only late still have the rest of its limit.
const CONTROL_LOOK: Duration = Duration::from_secs(10);

/// The time after which ranks are asked why a collective of `group` with this limit is not complete.
pub(crate) fn first_look(group: &Group, limit: Duration) -> Duration {
    match is_control(group) {
        true => limit.min(CONTROL_LOOK),
        false => limit,
    }
}

/// Whether `group` is that of a control channel.
pub(crate) fn is_control(group: &Group) -> bool {
    matches!(group.channel(), Channel::Control(_))
}

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

/// The collectives that fail because of `causes`: these, and all that depend on them. If one of the
/// causes is a collective of tensors, messages of control channels do not fail: its members can still
/// tell each other.
pub(crate) fn failing(graph: &Graph<'_>, open: &[Open], causes: &[usize]) -> Vec<usize> {
    let spares_control = causes.iter().any(|cause| !is_control(&open[*cause].group));
    let mut failing = graph.dependents(causes);
    failing.retain(|at| !(spares_control && is_control(&open[*at].group)));
    failing
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
