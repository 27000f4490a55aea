//! Prefetching hides the communication of a chain behind its computation, in simulated time.

use std::time::Duration;

use meshgrad_autograd::{Grads, Module};
use meshgrad_comm::{Local, Redistributor};
use meshgrad_data_parallel::{Home, Homes};
use meshgrad_mesh::{Hosts, Link, LinkCosts, Mesh};
use meshgrad_runtime::Error;

use crate::chain::Chain;

const LAYERS: usize = 16;
const RANKS: usize = 3;
/// Of a layer, forward and backward each.
const COMPUTE: Duration = Duration::from_millis(2);

/// The time that a step, after the first two, takes longer than its computation, on the slowest
/// rank.
fn exposed(home: fn() -> Home, prefetch: usize) -> Duration {
    // A gather of a layer, 36 KiB, takes about half as long as its computation.
    let within = Link {
        latency_ns: 1_000,
        ns_per_mib: 40_000_000,
    };
    let costs = LinkCosts {
        launch_ns: 1_000,
        within,
        across: within,
    };
    let mesh = Mesh::new(&[RANKS], &["dp"]).unwrap();
    let local = Local::new(RANKS)
        .threads(1)
        .links(costs, Hosts::Uniform(RANKS))
        .simulated(1);
    let times = local.launch(|rank| {
        Redistributor::new(rank).run_on(&mesh, || {
            let model = Chain::new(LAYERS, 96);
            let homes = Homes::new(rank, &mesh, home()).unit("layers.*", home());
            homes.prefetch(prefetch).settle(&model)?;
            model.materialize(rank.device(), 1)?;
            let mut grads = Grads::new(&model.params())?;
            let clock = rank.clock().clone();
            let mut times = Vec::new();
            for _ in 0..4 {
                let start = clock.now();
                let clock = clock.clone();
                let work = move || clock.sleep(COMPUTE);
                model.step(rank.device(), ("dp", 6), &mut grads, work)?;
                times.push(rank.clock().now() - start);
            }
            assert_eq!(times[2], times[3]);
            Ok::<_, Error>(times[3])
        })
    });
    let slowest = times.unwrap().into_iter().max().unwrap();
    slowest - COMPUTE * 2 * LAYERS as u32
}

#[test]
fn prefetching_hides_nine_tenths_of_the_communication() {
    let fsdp = || Home::fsdp(["dp"]);
    let (with, without) = (exposed(fsdp, 1), exposed(fsdp, 0));
    println!("exposed per step: {with:?} with prefetching, {without:?} without");
    assert!(with * 10 <= without, "{with:?} and {without:?}");
}
