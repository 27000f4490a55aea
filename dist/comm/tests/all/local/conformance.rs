//! Every check, on worlds of several sizes, for all dtypes.

use std::sync::Arc;

use meshgrad_comm::{Communicator, Local, LocalRank, Rank, conformance};
use meshgrad_mesh::{Channel, Group, Hosts, LinkCosts};
use meshgrad_runtime::{DType, Result};

fn run(
    ranks: usize,
    counts: &[usize],
    connect: impl Fn(&LocalRank) -> Result<Arc<dyn Communicator>> + Sync,
) {
    let results = Local::run(ranks, |rank| {
        let comm = connect(rank).map_err(|error| error.to_string())?;
        conformance::check(&comm, counts).map_err(|error| error.to_string())
    });
    results.unwrap_or_else(|error| panic!("{ranks} ranks: {error}"));
}

#[test]
fn worlds_conform() {
    for ranks in [1, 2, 3, 5, 8] {
        run(ranks, &[0, 1, 7, 2049], |rank| rank.world());
    }
}

#[test]
fn a_world_of_64_ranks_conforms() {
    run(64, &[0, 3], |rank| rank.world());
}

/// Several threads work on collectives of this size.
#[test]
fn large_collectives_conform() {
    let large = 90_001;
    let results = Local::new(3).threads(8).launch(|rank| {
        let comm = rank.world().map_err(|error| error.to_string())?;
        let checks = conformance::checks().into_iter();
        let mut some = checks.filter(|check| [DType::F32, DType::BF16].contains(&check.dtype()));
        let checked = some.try_for_each(|check| check.run(&comm, large));
        checked.map_err(|error| error.to_string())
    });
    results.unwrap();
}

/// Strict mode, simulated time and links change when a collective completes, not its result.
#[test]
fn settings_do_not_change_results() {
    let local = Local::new(3).threads(1);
    let links = local.clone().links(LinkCosts::default(), Hosts::Uniform(2));
    let settings = [
        local.clone().strict(true),
        local.clone().simulated(1),
        links.clone(),
        links.strict(true).simulated(2),
    ];
    for local in settings {
        let results = local.launch(|rank| {
            let comm = rank.world().map_err(|error| error.to_string())?;
            conformance::check(&comm, &[0, 5]).map_err(|error| error.to_string())
        });
        results.unwrap_or_else(|error| panic!("{local:?}: {error}"));
    }
}

/// Results are in the order of the group, not of the ranks.
#[test]
fn groups_in_another_order_conform() {
    let reversed = Group::new([4, 3, 2, 1, 0]).unwrap();
    run(5, &[1, 5], |rank| rank.connect("reversed", &reversed));
}

/// Communicators on other channels are separate, and may be used in another order on each rank.
#[test]
fn channels_are_independent() {
    let all = Group::new([0, 1, 2]).unwrap();
    let results = Local::run(3, |rank| -> Result<(), String> {
        let connect = |channel| rank.connect("own", &all.clone().with_channel(channel));
        let pair = [Channel::Gather, Channel::Reduce].map(connect);
        let [gather, reduce] = pair.map(|comm| comm.map_err(|error| error.to_string()));
        let (gather, reduce) = (gather?, reduce?);
        let (first, second) = match rank.rank() {
            1 => (&reduce, &gather),
            _ => (&gather, &reduce),
        };
        let check = |comm: &dyn Communicator| {
            use meshgrad_comm::Collectives;
            comm.barrier().map_err(|error| error.to_string())
        };
        let pending = (check(first)?, check(second)?);
        let waited = pending.1.wait().and(pending.0.wait());
        waited.map_err(|error| error.to_string())
    });
    results.unwrap();
}
