//! Prefetching hides the communication of Qwen3 behind its computation, in simulated time.

use std::sync::Arc;
use std::time::Duration;

use meshgrad_comm::conformance::RewiredRank;
use meshgrad_comm::{Local, LocalRank, Rank, Redistributor};
use meshgrad_data_parallel::Strategy;
use meshgrad_mesh::{Hosts, Link, LinkCosts};

use crate::homes::cases::{Case, DP3, fsdp, replicate};
use crate::homes::paced::{Pace, PacedConnector};
use crate::homes::step::{PASSES, Result, divided, optimizer, passes};

/// Many layers and a small vocabulary. What surrounds the layers, whose first gather nothing can
/// hide, has a small part of the parameters, as in large models.
const MODEL: &str = r#"
    model_type = "qwen3"
    vocab_size = 32
    hidden_size = 32
    intermediate_size = 96
    num_hidden_layers = 24
    num_attention_heads = 4
    num_key_value_heads = 2
    head_dim = 8
    tie_word_embeddings = true
"#;

/// As [`MODEL`], with a table of the size of ten layers.
const LARGE_TABLE: &str = r#"
    model_type = "qwen3"
    vocab_size = 4000
    hidden_size = 32
    intermediate_size = 96
    num_hidden_layers = 24
    num_attention_heads = 4
    num_key_value_heads = 2
    head_dim = 8
    tie_word_embeddings = true
"#;

/// A rank computes a layer's forward pass in about twice the time of its gather.
const PER_FLOP: Duration = Duration::from_nanos(2);
const LINK: Link = Link { latency_ns: 1_000, ns_per_mib: 10_000_000 };

/// The time that a step, after two others, takes longer than its computation.
fn exposed(case: &Case, rank: &LocalRank) -> Result<Duration> {
    let pace = Pace::new(rank, PER_FLOP);
    let connector = PacedConnector { inner: rank.connector(), pace: pace.clone() };
    let paced = RewiredRank::new(rank, Arc::new(connector));
    let (clock, device) = (rank.clock(), rank.device());
    Redistributor::new(&paced).run_on(&case.mesh(), || {
        let model = divided(case, &paced)?;
        let mut optimizer = optimizer(case, &model, device)?;
        let mut times = Vec::new();
        for step in 0..4 {
            pace.catch_up();
            let (start, before) = (clock.now(), device.work().flops);
            let (_, weight) = passes(case, &model, optimizer.grads(), device, step)?;
            optimizer.step(&weight, step as u64 + 1, 0.01)?;
            pace.catch_up();
            let computed = pace.time(device.work().flops - before);
            times.push(clock.now() - start - computed);
        }
        assert_eq!(times[2], times[3]);
        Ok(times[3])
    })
}

/// On the slowest rank.
fn exposed_of(case: &Case) -> Duration {
    let costs = LinkCosts { launch_ns: 1_000, within: LINK, across: LINK };
    let ranks = case.mesh().len();
    let local = Local::new(ranks).threads(1).links(costs, Hosts::Uniform(ranks)).simulated(1);
    let times = local.launch(|rank| exposed(case, rank)).unwrap();
    times.into_iter().max().unwrap()
}

#[test]
fn prefetching_hides_nine_tenths_of_the_communication() {
    let case = Case::new("fsdp", MODEL, DP3, fsdp).even();
    for case in [case, case.checkpointed()] {
        let (with, without) = (exposed_of(&case), exposed_of(&case.prefetch(0)));
        println!("exposed per step: {with:?} with prefetching, {without:?} without");
        assert!(with * 10 <= without, "{with:?} and {without:?}");
    }
}

fn table_once_per_step() -> [Strategy; 2] {
    [Strategy::fsdp(["dp"]), Strategy::zero1(["dp"])]
}

/// The table is used first and last, where nothing hides its communication. Gathering it once per
/// step, and not for each use, exposes less.
#[test]
fn a_large_table_is_gathered_once_per_step() {
    let [each_use, once] = [fsdp, table_once_per_step].map(|homes| {
        let case = Case::new("large table", LARGE_TABLE, DP3, homes).even();
        let (with, without) = (exposed_of(&case), exposed_of(&case.prefetch(0)));
        println!("exposed per step: {with:?} with prefetching, {without:?} without");
        with
    });
    assert!(once * 2 < each_use, "{once:?} and {each_use:?}");
}

/// A loop that announces nothing reduces beside each backward pass. If it announces more passes than it runs, the
/// reductions start when gradients are read, and nothing hides them.
#[test]
fn reductions_of_a_plain_loop_overlap() {
    let case = Case::new("replicated", MODEL, DP3, replicate).even();
    let (plain, late) =
        (exposed_of(&case.expecting(None)), exposed_of(&case.expecting(Some(PASSES + 1))));
    println!(
        "exposed per step: {plain:?} if nothing is announced, {late:?} if too many passes are"
    );
    assert!(plain * 4 <= late, "{plain:?} and {late:?}");
}
