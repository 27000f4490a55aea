//! Checkpoints that redistribute, and backward passes outside of the scopes of the forward pass.

use meshgrad_autograd::{
    Grads, Init, LocalOperand, LocalResult, Param, Tape, Var, checkpoint, local, ops,
};
use meshgrad_comm::{Collective, Local, Plan, Rank, Redistributor, check_logs};
use meshgrad_mesh::{Mesh, Placement, Sharding};
use meshgrad_runtime::{DType, Device, Error, Result, Tensor, ops as runtime};

use crate::parts::part;
use crate::redistribution::recorder::{Deviation, Executed, Recorder, logged};
use crate::redistribution::{near, on_one_device, whole};

/// How a rank computes gradients.
#[derive(Clone, Copy, PartialEq)]
struct How {
    checkpointed: bool,
    /// Whether the backward pass runs inside of `with_mesh` and `with_redistribution`.
    inside: bool,
}

/// A rank of a mesh.
struct On<'a> {
    rank: &'a dyn Rank,
    mesh: &'a Mesh,
    redistributor: Redistributor,
}

/// Runs `body` on the rank, or on a single one.
fn run<T>(on: Option<&On<'_>>, body: impl FnOnce() -> Result<T>) -> Result<T> {
    match on {
        Some(on) => on.redistributor.run_on(on.mesh, body),
        None => body(),
    }
}

/// A column-parallel layer, a body of `local` and a row-parallel layer, with constants.
fn block(x: &Var, [w1, w2]: &[Param; 2], mesh: &Mesh) -> Result<Var> {
    let whole = [("tp", Placement::Replicate)];
    let constant = |value| {
        let constant = runtime::full(x.value().device(), &[], DType::F32, value)?;
        Ok::<_, Error>(Var::constant(constant))
    };
    let inner = ops::linear(&ops::redistribute(x, &whole)?, &w1.var()?)?;
    let inner = ops::mul(&inner, &constant(0.5)?)?;
    let shards = [("dp", Placement::shard(0)), ("tp", Placement::shard(1))];
    let shape = inner.value().global_shape();
    let [inner] = local(
        [LocalOperand::new(&inner, mesh, &shards)],
        [LocalResult::new(mesh, &shards, &shape)],
        |[x]| Ok([ops::silu(&ops::add(&x, &constant(1.0)?)?)?]),
    )?;
    ops::redistribute(&ops::linear(&inner, &w2.var()?)?, &whole)
}

/// The gradients of x, which is sharded over dp, and of w1 and w2, which are sharded over tp.
fn gradients(on: Option<&On<'_>>, how: How) -> Result<Vec<Tensor>> {
    let device = on.map_or_else(Device::cpu, |on| on.rank.device().clone());
    let mesh = match on {
        Some(on) => on.mesh.clone(),
        None => Mesh::new(&[1, 1], &["dp", "tp"]).unwrap(),
    };
    let own = |axis, dim, shape: &[usize]| {
        let sharding = Sharding::new(&mesh, [(axis, Placement::shard(dim))], shape).unwrap();
        on.map(|on| (sharding, on.rank.rank()))
    };
    let params = [("w1", [5, 4], 0), ("w2", [4, 5], 1)].map(|(name, shape, dim)| {
        let w = Param::new(name, shape, Init::Normal { std: 0.5 });
        if let Some((sharding, rank)) = own("tp", dim, &shape) {
            w.shard(&sharding, rank).unwrap();
        }
        w.materialize(&device, 7).unwrap();
        w
    });
    let x = runtime::affine(&whole(&device, &[3, 4]), 0.1, -0.5)?;
    let x = match own("dp", 0, &[3, 4]) {
        Some((rows, rank)) => part(&x, &rows, rank),
        None => x,
    };

    let forward = || {
        let x = Var::input(x);
        let (params, mesh) = (params.clone(), mesh.clone());
        let y = match how.checkpointed {
            true => checkpoint([&x], move |[x]| block(&x, &params, &mesh))?,
            false => block(&x, &params, &mesh)?,
        };
        Ok((x, y))
    };
    let ((x, y), tape) = run(on, || Tape::record(forward))?;
    let mut grads = Grads::new(&params)?;
    let backward = || {
        let (dx, weights) = tape.backward_inputs(&[(&y, y.value().clone())], &[&x])?;
        weights.run(&mut grads)?;
        Ok(dx)
    };
    let mut gradients = run(on.filter(|_| how.inside), backward)?;
    for w in &params {
        let reduce = || ops::redistribute(&grads.get(w)?, [("dp", Placement::Replicate)]);
        gradients.push(run(on, reduce)?);
    }
    Ok(gradients)
}

const MESH: [usize; 2] = [2, 3];

fn on_ranks(rank: &dyn Rank, how: How) -> Result<Vec<Tensor>> {
    let on = On {
        rank,
        mesh: &Mesh::new(&MESH, &["dp", "tp"]).unwrap(),
        redistributor: Redistributor::new(rank),
    };
    gradients(Some(&on), how)
}

/// Recomputed blocks redistribute and create constants as they did in the forward pass.
#[test]
fn backward_outside_of_the_scopes_gives_the_same_gradients() {
    let results = |checkpointed, inside| {
        let how = How { checkpointed, inside };
        let results = Local::run(6, |rank| on_ranks(rank, how)).unwrap();
        on_one_device(&results)
    };
    let values = |results: &[Vec<Tensor>]| -> Vec<Vec<f32>> {
        let all = results.iter().flatten();
        all.map(|x| x.local().to_vec().unwrap()).collect()
    };
    let plain = results(false, true);
    let expected = gradients(None, How { checkpointed: false, inside: true }).unwrap();
    for (at, expected) in expected.iter().enumerate() {
        let parts: Vec<Tensor> = plain.iter().map(|of_rank| of_rank[at].clone()).collect();
        assert!(near(&parts, expected), "gradient {at}");
    }
    for inside in [true, false] {
        assert_eq!(values(&results(true, inside)), values(&plain), "{inside}");
    }
}

/// The redistributions of a recomputed block are executed and planned again, wherever the backward
/// pass runs.
#[test]
fn recomputed_communication_is_counted() {
    let executed = |checkpointed, inside| -> Vec<Vec<Executed>> {
        let how = How { checkpointed, inside };
        let executed = Local::run(6, |rank| -> Result<_> {
            let recorder = Recorder::default();
            on_ranks(&recorder.on(rank, Deviation::None), how)?;
            Ok(recorder.take())
        });
        let plan = Plan::new(6).unwrap();
        let logs = plan.trace_all(|rank| on_ranks(rank, how).map(drop)).unwrap();
        check_logs(&logs).unwrap();
        let executed = executed.unwrap();
        assert_eq!(logs.iter().map(logged).collect::<Vec<_>>(), executed);
        executed
    };
    let reductions = |executed: &[Vec<Executed>]| {
        let is_reduction =
            |call: &&Executed| call.request.fingerprint.collective == Collective::AllReduce;
        executed[0].iter().filter(is_reduction).count()
    };
    let plain = executed(false, true);
    let recomputed = executed(true, true);
    assert_eq!(executed(true, false), recomputed);
    // The result of the row-parallel layer is reduced twice.
    assert_eq!(reductions(&recomputed), reductions(&plain) + 1);
}
