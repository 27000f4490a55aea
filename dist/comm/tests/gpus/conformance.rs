//! The conformance suite on GPUs, for all dtypes.

use std::sync::Arc;

use meshgrad_comm::{Communicator, Local, LocalRank, Rank, conformance};
use meshgrad_mesh::{Group, Hosts, LinkCosts};
use meshgrad_runtime::{Device, Result};

use super::{STREAMS, gpu, gpus, in_each_order};

fn check(
    local: &Local,
    counts: &[usize],
    connect: impl Fn(&LocalRank) -> Result<Arc<dyn Communicator>> + Sync,
) {
    let results = local.launch(|rank| {
        let comm = connect(rank).map_err(|error| error.to_string())?;
        conformance::check(&comm, counts).map_err(|error| error.to_string())
    });
    results.unwrap_or_else(|error| panic!("{local:?}: {error}"));
}

#[test]
fn worlds_of_gpus_conform() {
    in_each_order("conformance::worlds_of_gpus_conform", &STREAMS, || {
        for ranks in [1, 2, 3, 5, 8] {
            check(&gpus(ranks), &[0, 1, 7], |rank| rank.world());
        }
        check(&gpus(3), &[2049], |rank| rank.world());
    });
}

#[test]
fn messages_pass_collectives_that_wait() {
    in_each_order("conformance::messages_pass_collectives_that_wait", &STREAMS[..2], || {
        gpus(3).launch(|rank| conformance::check_control(rank)).unwrap();
    });
}

/// Strict mode, simulated time and links change when a collective completes, not its result.
#[test]
fn settings_do_not_change_results() {
    let test = "conformance::settings_do_not_change_results";
    in_each_order(test, &STREAMS[..2], || {
        let links = gpus(3).links(LinkCosts::default(), Hosts::Uniform(2));
        for local in [gpus(3).strict(true), gpus(3).simulated(1), links.strict(true).simulated(2)] {
            check(&local, &[0, 5], |rank| rank.world());
        }
    });
}

/// Each rank has a device of its own on one GPU.
#[test]
fn ranks_that_share_a_gpu_conform() {
    let test = "conformance::ranks_that_share_a_gpu_conform";
    in_each_order(test, &STREAMS[..2], || {
        let devices = || (0..3).map(|_| gpu(0)).collect();
        let local = Local::new(3).devices(devices());
        check(&local, &[5], |rank| rank.world());

        let mut mixed: Vec<Device> = devices();
        mixed[1] = Device::cpu();
        let refused = Local::new(3).devices(mixed).launch(|_| Ok::<_, String>(()));
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("cannot be devices of one world"), "{error}");
    });
}

/// Results are in the order of the group, not of the ranks.
#[test]
fn groups_in_another_order_conform() {
    let test = "conformance::groups_in_another_order_conform";
    in_each_order(test, &STREAMS[..2], || {
        let reversed = Group::new([2, 1, 0]).unwrap();
        check(&gpus(3), &[5], |rank| rank.connect("reversed", &reversed));
    });
}
