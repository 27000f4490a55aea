//! Experts on other ranks: what the dispatchers bring where, compared with one rank that has all experts
//! and all tokens.

mod fixture;
mod routers;
mod torch;

use meshgrad_autograd::{Grads, Module, Result, Tape, Var, ops as tracked};
use meshgrad_collectives::{Collectives, redistribute};
use meshgrad_comm::{Local, LocalRank, Plan, PlanRank, Rank, Redistributor};
use meshgrad_mesh::{Mesh, Placement};
use meshgrad_models::ModelPlan;
use meshgrad_models::moe::{
    AllGather, AllToAll, Dispatch, Dispatcher, ExpertPeers, ExpertRows, Moe, RoutedTokens,
};
use meshgrad_runtime::ops::ExpertOrder;
use meshgrad_runtime::{DType, Device, Key, Tensor, ops};

use crate::small::config;

/// 12 experts, two per token.
const TWELVE: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 53
    hidden_size = 10
    num_hidden_layers = 1
    num_attention_heads = 2
    num_key_value_heads = 2
    num_experts = 12
    num_experts_per_tok = 2
    moe_intermediate_size = 7
    norm_topk_prob = true
    initializer_range = 0.3
"#;

/// Which tokens choose which experts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Routing {
    Random,
    /// All tokens choose the same experts; the others are idle.
    Skewed,
    /// All experts are equally probable, so the first ones are chosen.
    Tied,
}

fn tokens(device: &Device, count: usize, routing: Routing) -> Result<Tensor> {
    let x = ops::normal(device, &[count, 10], DType::F32, Key::new(3), 0.0, 1.0)?;
    match routing {
        Routing::Random => Ok(x),
        Routing::Skewed => ops::affine(&x, 0.01, 1.0),
        Routing::Tied => ops::affine(&x, 0.0, 0.0),
    }
}

/// What a rank has after forward and backward, by name.
type Parts = Vec<(String, Vec<f32>)>;

/// The block's results and gradients for dy = y. `x` are a rank's tokens.
fn pass(moe: &Moe, x: Tensor) -> Result<Parts> {
    let mut grads = Grads::new(&moe.params())?;
    let ((x, y, counts), tape) = Tape::record(|| {
        let x = Var::input(x);
        let (y, routing) = moe.forward(&x)?;
        Ok((x, y, routing.counts))
    })?;
    let dy = tracked::affine(y.value(), 1.0, 0.5)?;
    let (dx, later) = tape.backward_inputs(&[(&y, dy)], &[&x])?;
    later.run(&mut grads)?;
    let mut parts = vec![
        ("y".to_owned(), y.value().local().to_vec()?),
        ("dx".to_owned(), dx[0].local().to_vec()?),
        ("counts".to_owned(), counts.local().to_vec()?),
    ];
    for (param, gradient) in grads.all()? {
        parts.push((param.name().to_owned(), gradient.local().to_vec()?));
    }
    Ok(parts)
}

fn block() -> Moe {
    config(TWELVE).moe(&"mlp".into())
}

fn on_one_rank(count: usize, routing: Routing, moe: &Moe) -> Parts {
    let device = Device::cpu();
    moe.materialize(&device, 1).unwrap();
    pass(moe, tokens(&device, count, routing).unwrap()).unwrap()
}

/// The parts of ranks that have `sizes` tokens, along axes of which the last shards the experts.
fn on_ranks(sizes: &[usize], routing: Routing, moe: &(dyn Fn() -> Moe + Sync)) -> Vec<Parts> {
    let count = sizes.iter().sum();
    let fill = |moe: &Moe, rank: &LocalRank| {
        moe.materialize(rank.device(), 1)?;
        tokens(rank.device(), count, routing)
    };
    on_ranks_with(sizes, moe, &fill)
}

/// As [`on_ranks`], where `fill` sets a rank's parameters and returns the tokens of all ranks.
fn on_ranks_with(
    sizes: &[usize],
    moe: &(dyn Fn() -> Moe + Sync),
    fill: &(dyn Fn(&Moe, &LocalRank) -> Result<Tensor> + Sync),
) -> Vec<Parts> {
    let ranks = sizes.len();
    let mesh = Mesh::new(&[ranks], &["dp"]).unwrap();
    let own = Mesh::new(&[ranks], &["ep"]).unwrap();
    let parts = Local::new(ranks).launch(|rank| {
        Redistributor::new(rank).run_on(&mesh, || {
            let moe = moe();
            ModelPlan::new(&mesh)
                .place_on(&own, "*.experts.*_proj", [("ep", Placement::shard(0))])
                .apply(&moe, rank.rank())?;
            let all = fill(&moe, rank)?;
            let rows = [("dp", Placement::ragged(0, sizes))];
            pass(&moe, redistribute(&all, rows)?)
        })
    });
    parts.unwrap()
}

/// What does not fit in memory is named, with its layer, ranks and rows.
#[test]
fn a_dispatch_without_memory_is_named() {
    if !Device::emulator_is_built() {
        println!("skipped: the emulator is not built");
        return;
    }
    let mut properties = Device::emulator(0).unwrap().properties().clone();
    properties.gpu.as_mut().unwrap().memory = 4 << 20;
    let small = Device::meta(&properties);
    let [mesh, own] = ["dp", "ep"].map(|axis| Mesh::new(&[4], &[axis]).unwrap());
    let failed = |count: usize| {
        let forward = |rank: &PlanRank| {
            Redistributor::new(rank).run_on(&mesh, || {
                let mut moe = block();
                moe.dispatch_by(Dispatch::AllToAll);
                ModelPlan::new(&mesh)
                    .place_on(&own, "*.experts.*_proj", [("ep", Placement::shard(0))])
                    .apply(&moe, rank.rank())?;
                moe.materialize(rank.device(), 1)?;
                let x = tokens(rank.device(), count, Routing::Random)?;
                let x = redistribute(&x.as_replicated()?, [("dp", Placement::shard(0))])?;
                moe.forward(&Var::constant(x)).map(drop)
            })
        };
        Plan::new(4).unwrap().like(&small).trace(1, forward).err().map(|error| error.to_string())
    };
    assert_eq!(failed(40), None);
    let error = failed(20_000).unwrap();
    let expected = "`mlp.experts.gate_up_proj`: a dispatch between 4 ranks, with at most 10000 rows from \
                    each to another; use smaller microbatches or more ranks, or let the rows adapt";
    assert!(error.contains(expected), "{error}");
}

/// Whether each rank has a term of a sum, of its own tokens.
fn is_summed(name: &str) -> bool {
    name == "counts" || name == "mlp.gate.weight" || name.contains(".shared_experts.")
}

/// The values that the ranks have together: their concatenation, or their sum.
fn together(name: &str, ranks: &[Parts]) -> Vec<f32> {
    let values = |parts: &Parts| {
        let found = parts.iter().find(|(own, _)| own == name);
        found.map(|(_, values)| values.clone()).unwrap()
    };
    let parts = ranks.iter().map(values);
    match is_summed(name) {
        true => {
            parts.reduce(|sum, part| sum.iter().zip(part).map(|(a, b)| a + b).collect()).unwrap()
        }
        false => parts.flatten().collect(),
    }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Uneven tokens, and ranks without any.
const SIZES: [&[usize]; 5] = [&[3, 8], &[5, 0, 8], &[4, 4, 1, 7], &[0, 0, 2], &[6, 2, 0, 1, 3, 2]];

const ROUTINGS: [Routing; 3] = [Routing::Random, Routing::Skewed, Routing::Tied];

/// Checks that ranks with `sizes` tokens have the results of one rank.
///
/// With `AllToAll`, an expert has all rows on one rank in the order of tokens, and each row comes back to
/// be added at its source: the bits of one rank. Sums over the ranks round; so do the results of
/// `AllGather`.
fn check_ranks(sizes: &[usize], routing: Routing, block: fn() -> Moe) {
    let one = on_one_rank(sizes.iter().sum(), routing, &block());
    for dispatch in [Dispatch::AllToAll, Dispatch::AllGather] {
        let moe = || {
            let mut moe = block();
            moe.dispatch_by(dispatch);
            moe
        };
        let ranks = on_ranks(sizes, routing, &moe);
        for (name, one) in &one {
            let is_exact = name == "counts" || (dispatch == Dispatch::AllToAll && !is_summed(name));
            let allowed = if is_exact { 0.0 } else { 2e-5 };
            let differs = largest_difference(&together(name, &ranks), one);
            assert!(differs <= allowed, "{dispatch:?} {sizes:?} {routing:?} {name}: {differs}");
        }
    }
}

#[test]
fn any_number_of_ranks_has_the_results_of_one() {
    for (sizes, routing) in SIZES.iter().flat_map(|sizes| ROUTINGS.map(|routing| (sizes, routing)))
    {
        check_ranks(sizes, routing, block);
    }
}

/// They can be used like one of a user, and then have the same bits.
#[test]
fn built_in_dispatchers_are_dispatchers() {
    let with = |change: fn(&mut Moe)| {
        let moe = || {
            let mut moe = block();
            // The sum of two does not depend on their order.
            moe.router.top_k = 3;
            change(&mut moe);
            moe
        };
        on_ranks(&[5, 0, 8], Routing::Random, &moe)
    };
    let [all_to_all, all_gather] =
        [with(|moe| moe.dispatch_with(AllToAll)), with(|moe| moe.dispatch_with(AllGather))];
    assert_eq!(all_to_all, with(|moe| moe.dispatch_by(Dispatch::AllToAll)));
    assert_eq!(all_gather, with(|moe| moe.dispatch_by(Dispatch::AllGather)));
    assert_ne!(all_to_all, all_gather);
}

/// A dispatcher of a user: every rank gets all rows, and sends each result back to where it came from.
#[derive(Clone, Copy)]
struct Broadcasting(Fault);

/// What a dispatcher can do wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Nothing,
    /// The first row of each rank does not arrive.
    DroppedRow,
    /// The results are in the order of another batch.
    StaleOrder,
    /// The ranks have each other's experts.
    SwappedExperts,
    /// Gradients of experts are those of a mean over ranks.
    ScaledGradient,
    /// Each rank sees only its own tokens.
    OwnTokensOnly,
}

impl Dispatcher for Broadcasting {
    type Sent = (Var, ExpertOrder);

    fn dispatch(
        &self,
        tokens: RoutedTokens,
        peers: &ExpertPeers,
    ) -> Result<(ExpertRows, Self::Sent)> {
        let (group, rows) = (&peers.group, &peers.tokens);
        let weights = tracked::all_gather_rows(&tokens.weights_nk, rows, group)?;
        let x = tracked::all_gather_rows(&tokens.x_nd, rows, group)?;
        let experts = group.all_gather_rows(&tokens.experts_nk, rows)?.wait()?;
        let first = match self.0 {
            Fault::SwappedExperts => peers.experts() - peers.held - peers.first_expert(),
            _ => peers.first_expert(),
        };
        let mut order = ops::expert_order(&experts, peers.experts(), first, peers.held)?;
        let mut x_cd = tracked::permute_tokens(&x, &order)?;
        match self.0 {
            Fault::ScaledGradient => {
                let scale = 1.0 / rows.len() as f64;
                let exact = Var::constant(x_cd.value().clone());
                let scaled = tracked::affine(&x_cd, scale, 0.0)?;
                x_cd = (&scaled + &tracked::affine(&exact, 1.0 - scale, 0.0)?)?;
            }
            Fault::DroppedRow => {
                let rows = ops::arange(x.value().device(), x_cd.shape()[0], DType::I64)?;
                let kept = ops::clamp(&ops::cast(&rows, DType::F32)?, 0.0, 1.0)?.unsqueeze(1)?;
                x_cd = (&x_cd * &Var::constant(kept.broadcast_to(&x_cd.shape()[..])?))?;
            }
            Fault::StaleOrder => {
                let slots = order.row_of_slot.elements();
                let stale: Vec<i32> = (0..slots as i32).rev().collect();
                let shape = *order.row_of_slot.shape();
                order.row_of_slot = Tensor::from_slice(x.value().device(), &shape, &stale)?;
            }
            _ => {}
        }
        let offsets = order.offsets.clone();
        Ok((ExpertRows { x_cd, offsets }, (weights, order)))
    }

    fn combine(&self, y_cd: &Var, sent: Self::Sent, peers: &ExpertPeers) -> Result<Var> {
        let y = tracked::unpermute_tokens(y_cd, &sent.0, &sent.1)?;
        match self.0 {
            Fault::OwnTokensOnly => {
                let before: usize = peers.tokens[..peers.group.index()].iter().sum();
                tracked::slice(&y, 0, before..before + peers.tokens[peers.group.index()])
            }
            _ => tracked::reduce_scatter_rows(&y, &peers.tokens, &peers.group),
        }
    }
}

/// A dispatcher of one's own is a type with two methods. Each of its faults is seen in a result.
#[test]
fn a_dispatcher_of_a_user_is_checked_like_the_others() {
    let sizes = [5, 2, 6];
    let one = on_one_rank(13, Routing::Random, &block());
    let differing = |fault: Fault| -> Vec<String> {
        let moe = || {
            let mut moe = block();
            moe.dispatch_with(Broadcasting(fault));
            moe
        };
        let ranks = on_ranks(&sizes, Routing::Random, &moe);
        let differs = |(name, one): &(String, Vec<f32>)| {
            (largest_difference(&together(name, &ranks), one) > 2e-5).then(|| name.clone())
        };
        one.iter().filter_map(differs).collect()
    };
    assert_eq!(differing(Fault::Nothing), [""; 0]);
    let (all, experts) = (["y", "dx"], ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]);
    for (fault, seen_in) in [
        (Fault::DroppedRow, &all[..]),
        (Fault::StaleOrder, &all[..1]),
        (Fault::SwappedExperts, &all[..]),
        (Fault::ScaledGradient, &all[1..]),
        (Fault::OwnTokensOnly, &experts[..]),
    ] {
        let found = differing(fault);
        for name in seen_in {
            assert!(
                found.iter().any(|it| it == name),
                "{fault:?} is not seen in {name}: {found:?}"
            );
        }
    }
}
