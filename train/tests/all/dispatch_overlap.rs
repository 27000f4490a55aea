//! Computation hides the dispatch of tokens to experts, in simulated time.

use std::sync::Arc;
use std::time::Duration;

use meshgrad_autograd::{Grads, Module, Tape, Var};
use meshgrad_collectives::redistribute;
use meshgrad_comm::conformance::RewiredRank;
use meshgrad_comm::{Local, LocalRank, Rank, Redistributor, TracedRank};
use meshgrad_mesh::{Channel, Hosts, Link, LinkCosts, Mesh, Placement};
use meshgrad_models::ModelPlan;
use meshgrad_models::moe::Dispatch;
use meshgrad_pipeline::Named;
use meshgrad_runtime::{DType, Key, Result, ops};
use meshgrad_train::pipeline::Cut;

use crate::homes::paced::{Pace, PacedConnector};
use crate::matrix::cases::Case;
use crate::matrix::{batch, divided};
use crate::small::{self, Axes};

const RANKS: usize = 3;
pub(crate) const PER_FLOP: Duration = Duration::from_nanos(2);
const LINK: Link = Link { latency_ns: 1_000, ns_per_mib: 40_000_000 };
const LINKS: LinkCosts = LinkCosts { launch_ns: 1_000, within: LINK, across: LINK };

const BLOCK: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 53
    hidden_size = 32
    num_hidden_layers = 1
    num_attention_heads = 4
    num_key_value_heads = 4
    num_experts = 6
    num_experts_per_tok = 2
    moe_intermediate_size = 8
"#;

pub(crate) fn local(ranks: usize) -> Local {
    Local::new(ranks).threads(1).links(LINKS, Hosts::Uniform(ranks)).simulated(1)
}

/// What a forward and a backward pass take longer than their computation, and that computation.
fn pass(rank: &LocalRank, dispatch: Dispatch, shared: bool) -> Result<[Duration; 2]> {
    let pace = Pace::new(rank, PER_FLOP);
    let connector = PacedConnector { inner: rank.connector(), pace: pace.clone() };
    let paced = RewiredRank::new(rank, Arc::new(connector));
    let (mesh, experts) = (Mesh::new(&[RANKS], &["dp"])?, Mesh::new(&[RANKS], &["ep"])?);
    Redistributor::new(&paced).run_on(&mesh, || {
        let mut moe = small::config(BLOCK).moe(&"mlp".into());
        if shared {
            moe = moe.shared_experts(2);
        }
        moe.dispatch_by(dispatch);
        ModelPlan::new(&mesh)
            .place_on(&experts, "*.experts.*_proj", [("ep", Placement::shard(0))])
            .apply(&moe, rank.rank())?;
        moe.materialize(rank.device(), 1)?;
        let x = ops::normal(rank.device(), &[24 * RANKS, 32], DType::F32, Key::new(3), 0.0, 1.0)?;
        let x = redistribute(&x, [("dp", Placement::shard(0))])?;
        let mut grads = Grads::new(&moe.params())?;

        pace.catch_up();
        let (start, before) = (rank.clock().now(), rank.device().work().flops);
        let ((x, y), tape) = Tape::record(|| {
            let x = Var::input(x);
            let (y, _) = moe.forward(&x)?;
            Ok((x, y))
        })?;
        tape.backward_with(&[(&y, y.value().clone())], &[&x], &mut grads)?;
        pace.catch_up();
        let computed = pace.time(rank.device().work().flops - before);
        Ok([rank.clock().now() - start - computed, computed])
    })
}

/// The computation of shared experts is beside the dispatch, forward and backward.
#[test]
fn shared_experts_hide_the_dispatch() {
    for dispatch in [Dispatch::AllToAll, Dispatch::AllGather] {
        let [alone, beside] = [false, true].map(|shared| {
            let times = local(RANKS).launch(|rank| pass(rank, dispatch, shared)).unwrap();
            times.into_iter().max().unwrap()
        });
        let (hidden, shared) = (alone[0] - beside[0], beside[1] - alone[1]);
        println!("{dispatch:?}: {shared:?} of shared experts hide {hidden:?} of {:?}", alone[0]);
        assert!(hidden * 10 >= shared * 8, "{dispatch:?}: {hidden:?} of {shared:?}");
    }
}

/// Four sparse layers.
const LAYERS: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 53
    hidden_size = 32
    num_hidden_layers = 4
    num_attention_heads = 4
    num_key_value_heads = 4
    num_experts = 4
    num_experts_per_tok = 2
    moe_intermediate_size = 32
"#;

/// The time that a rank waits in a step for collectives of its passes.
fn waits(schedule: Named) -> Duration {
    let sizes: &[usize] = &[1, 1, 1, 1];
    // Over two axes, all ranks have equally many rows.
    const MESH: Axes = &[("pp", 2), ("rep", 2), ("dp", 2)];
    let case = Case::new(LAYERS, MESH, schedule, sizes).apart(&[("copies", 2), ("ep", 2)]);
    let all = case.mesh();
    let waits = local(all.len()).launch(|rank| {
        let traced = TracedRank::new(rank);
        let (inner, pace) = (traced.connector(), Pace::new(rank, PER_FLOP));
        let paced = RewiredRank::new(rank, Arc::new(PacedConnector { inner, pace }));
        let cut = Cut::new(&all, "pp", rank.rank(), schedule, sizes)?;
        Redistributor::new(&paced).run_on(&cut.stage_mesh()?, || {
            let mut trainer = divided(&case, &paced, &cut)?;
            let batches = (0..24).map(|at| batch(&case, rank.device(), at, true));
            let batches: Vec<_> = batches.collect::<meshgrad_train::Result<_>>()?;
            let recording = traced.record()?;
            trainer.step(1, batches.into_iter().map(Ok))?.wait(&trainer.model)?;
            let collectives = recording.finish().collectives.into_iter();
            let of_passes = collectives.filter(|span| span.group.channel() == Channel::Main);
            let waits = of_passes.filter_map(|span| Some(span.wait?.duration()));
            Ok::<Duration, meshgrad_train::Error>(waits.sum())
        })
    });
    waits.unwrap().into_iter().max().unwrap()
}

/// In the pairs of DualPipeV, the dispatch of a pass is beside the computation of another. ZBV has the same
/// stages on the same ranks, and no pairs.
#[test]
fn pairs_hide_the_dispatch() {
    let [pairs, none] = [Named::DualPipeV, Named::Zbv].map(waits);
    println!("waits of {pairs:?} in pairs, {none:?} without");
    assert!(pairs * 2 <= none, "{pairs:?} and {none:?}");
}
