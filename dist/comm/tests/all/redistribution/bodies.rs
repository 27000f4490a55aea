//! Bodies of `local` that communicate: experts on one mesh, tokens on another.

use std::sync::Arc;

use meshgrad_autograd::{Grads, Init, LocalOperand, LocalResult, Param, Tape, Var, local, ops};
use meshgrad_collectives::{Redistribute, communicator, with_redistribution};
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::{Mesh, Placement, Sharding};
use meshgrad_runtime::{Device, Result, Tensor, ops as runtime, with_mesh};

use crate::parts::part;
use crate::redistribution::{near, on_one_device, whole};

const TOKENS: usize = 13;
const EXPERTS: usize = 7;
const FEATURES: usize = 4;

/// The meshes, this rank's number, and how it communicates.
struct Ranks<'a> {
    rank: usize,
    device: Device,
    tokens: &'a Mesh,
    experts: &'a Mesh,
    /// The number of tokens of each rank.
    rows: Vec<usize>,
}

impl<'a> Ranks<'a> {
    fn new(rank: &dyn Rank, tokens: &'a Mesh, experts: &'a Mesh) -> Result<Ranks<'a>> {
        let sharding = sharded(tokens, &["dp", "tp"], &[TOKENS, FEATURES]);
        let rows = (0..rank.world_size()).map(|rank| sharding.local_shape(rank).unwrap()[0]);
        Ok(Ranks {
            rank: rank.rank(),
            device: rank.device().clone(),
            tokens,
            experts,
            rows: rows.collect(),
        })
    }

    /// The tokens of all ranks.
    fn gather(&self, x: &Var) -> Result<Var> {
        ops::all_gather_rows(x, &self.rows, &communicator(self.tokens, ["dp", "tp"])?)
    }

    /// This rank's tokens of the sum over ranks.
    fn scatter(&self, x: &Var) -> Result<Var> {
        ops::reduce_scatter_rows(x, &self.rows, &communicator(self.tokens, ["dp", "tp"])?)
    }
}

/// Dim 0 sharded over the axes, the outermost first.
fn sharded(mesh: &Mesh, axes: &[&str], shape: &[usize]) -> Sharding {
    let placements: Vec<_> = axes.iter().map(|axis| (*axis, Placement::shard(0))).collect();
    Sharding::new(mesh, placements, shape).unwrap()
}

/// The sum over experts of silu(scale(x) w[expert]), and the gradients of x, w and scale.
fn experts(ranks: Option<&Ranks<'_>>) -> Result<Vec<Tensor>> {
    let device = ranks.map_or_else(Device::cpu, |ranks| ranks.device.clone());
    let w = Param::new("w", [EXPERTS, FEATURES, FEATURES], Init::Normal { std: 0.5 });
    let scale = Param::new("scale", [FEATURES], Init::Normal { std: 0.5 });
    let mut x = runtime::affine(&whole(&device, &[TOKENS, FEATURES]), 0.02, -0.5)?;
    if let Some(ranks) = ranks {
        w.shard(&sharded(ranks.experts, &["ep"], w.shape()), ranks.rank)?;
        scale.shard(&Sharding::replicated(ranks.tokens, scale.shape())?, ranks.rank)?;
        x = part(&x, &sharded(ranks.tokens, &["dp", "tp"], x.shape()), ranks.rank);
    }
    w.materialize(&device, 1)?;
    scale.materialize(&device, 2)?;

    let one = Mesh::new(&[1, 1], &["dp", "tp"]).unwrap();
    let experts_of_one = Mesh::new(&[1], &["ep"]).unwrap();
    let (tokens, experts) =
        ranks.map_or((&one, &experts_of_one), |ranks| (ranks.tokens, ranks.experts));
    let over_tokens = ["dp", "tp"].map(|axis| (axis, Placement::shard(0)));
    let ((x, y), tape) = Tape::record(|| {
        let x = Var::input(x);
        let [y] = local(
            [
                LocalOperand::new(&x, tokens, &over_tokens),
                LocalOperand::new(&w.var()?, experts, [("ep", Placement::shard(0))]),
                LocalOperand::new::<&str>(&scale.var()?, tokens, [])
                    .partial_gradient("dp")
                    .partial_gradient("tp"),
            ],
            [LocalResult::new(tokens, &over_tokens, &[TOKENS, FEATURES])],
            |[x, w, scale]| {
                let x = ops::mul(&x, &scale)?;
                let all = ranks.map_or(Ok(x.clone()), |ranks| ranks.gather(&x))?;
                // Also on a rank without experts, the result depends on the tokens.
                let mut sum = ops::affine(&all, 0.0, 0.0)?;
                for expert in 0..w.shape()[0] {
                    let own = ops::slice(&w, 0, expert..expert + 1)?;
                    let own = ops::reshape(&own, &[FEATURES, FEATURES])?;
                    sum = ops::add(&sum, &ops::silu(&ops::linear(&all, &own)?)?)?;
                }
                Ok([ranks.map_or(Ok(sum.clone()), |ranks| ranks.scatter(&sum))?])
            },
        )?;
        Ok((x, y))
    })?;

    let dy = y.value().clone();
    let mut grads = Grads::new(&[w.clone(), scale.clone()])?;
    let (mut results, weights) = tape.backward_inputs(&[(&y, dy)], &[&x])?;
    weights.run(&mut grads)?;
    results.push(y.into_value());
    results.push(grads.get(&w)?);
    let over_ranks = ["dp", "tp"].map(|axis| (axis, Placement::Replicate));
    results.push(ops::redistribute(&grads.get(&scale)?, over_ranks)?);
    Ok(results)
}

#[test]
fn experts_of_another_mesh_have_the_gradients_of_one_rank() {
    let expected = experts(None).unwrap();
    let tokens = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let on_experts = Mesh::new(&[6], &["ep"]).unwrap();
    for fault in Fault::ALL.into_iter().chain([Fault::None]) {
        let results = Local::run(6, |rank| {
            let rank = RewiredRank::faulty(rank, fault);
            let redistributor: Arc<dyn Redistribute> = Arc::new(Redistributor::new(&rank));
            let ranks = Ranks::new(&rank, &tokens, &on_experts)?;
            with_redistribution(redistributor, || {
                with_mesh(&tokens, rank.rank(), || experts(Some(&ranks)))
            })
        });
        if let Err(error) = &results {
            eprintln!("{fault:?} {error}");
        }
        let all_near = results.is_ok_and(|results| {
            let results = on_one_device(&results);
            let of = |at: usize| results.iter().map(|it| it[at].clone()).collect::<Vec<_>>();
            let compare =
                || expected.iter().enumerate().all(|(at, expected)| near(&of(at), expected));
            std::panic::catch_unwind(compare).unwrap_or(false)
        });
        assert_eq!(all_near, fault == Fault::None, "{fault:?}");
    }
}

/// Among ranks, operands of which none has a sharding are not taken for those of a single rank.
#[test]
fn unsharded_operands_among_ranks_are_errors() {
    let mesh = Mesh::new(&[2], &["tp"]).unwrap();
    Local::run(2, |rank| -> Result<()> {
        let x = Var::constant(whole(rank.device(), &[3]));
        let doubled = || {
            let operand = LocalOperand::new::<&str>(&x, &mesh, []);
            let result = LocalResult::new::<&str>(&mesh, [], &[3]);
            local([operand], [result], |[x]| Ok([ops::affine(&x, 2.0, 0.0)?]))
        };
        doubled()?;
        let redistributor = Arc::new(Redistributor::new(rank));
        let error = with_redistribution(redistributor, doubled).err().unwrap().to_string();
        assert!(error.starts_with("local: f32[3] on "), "{error}");
        assert!(error.contains("with_sharding") && error.contains("single rank"), "{error}");
        Ok(())
    })
    .unwrap();
}
