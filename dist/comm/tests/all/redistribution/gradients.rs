//! Gradients of redistributions.

use std::sync::Arc;

use meshgrad_autograd::{Grads, Init, Param, Tape, Var, ops};
use meshgrad_collectives::{Redistribute, with_redistribution};
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::{Mesh, Placement, Reduction, Sharding};
use meshgrad_runtime::{Device, Result, Tensor, ops as runtime};

use crate::parts::{assemble, part};
use crate::redistribution::{near, on_one_device, pairs, whole};

/// The gradient of a redistribution is the gradient of its result, with the operand's shards.
#[test]
fn gradients_of_every_pair_of_shardings() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let pairs = pairs(&mesh, &[7, 5], 3);
    for partial_axis in [None, Some("tp")] {
        let results = Local::run(6, |rank| gradients(rank, &pairs, partial_axis)).unwrap();
        let results = on_one_device(&results);
        for (at, [from, to]) in pairs.iter().enumerate() {
            let what = format!("the gradient of {from} -> {to}");
            let parts: Vec<Tensor> = results.iter().map(|result| result[at].clone()).collect();
            let sharding = parts[0].sharding().unwrap();
            assert_eq!(sharding, &from.without_partials(), "{what}");
            let expected = whole(parts[0].device(), &[7, 5]);
            let values = |x: &Tensor| x.to_vec::<f32>().unwrap();
            assert_eq!(values(&assemble(&parts, &what)), values(&expected), "{what}");
        }
    }
}

/// The gradients of each pair, of results whose gradient is partial along `partial_axis` where that
/// axis does not shard the result.
fn gradients(
    rank: &dyn Rank,
    pairs: &[[Sharding; 2]],
    partial_axis: Option<&str>,
) -> Result<Vec<Tensor>> {
    let redistributor = Arc::new(Redistributor::new(rank));
    let each = pairs.iter().map(|[from, to]| {
        let x = part(&whole(rank.device(), from.shape()), from, rank.rank());
        let ((x, y), tape) = with_redistribution(redistributor.clone(), || {
            Tape::record(|| {
                let x = Var::input(x);
                let y = ops::redistribute(&x, named(to))?;
                Ok((x, y))
            })
        })?;
        assert_eq!(y.value().sharding(), Some(to));
        let of_dy = with_partial(&to.without_partials(), partial_axis);
        let dy = part(&whole(rank.device(), to.shape()), &of_dy, rank.rank());
        let (mut dx, _) = tape.backward_inputs(&[(&y, dy)], &[&x])?;
        Ok(dx.remove(0))
    });
    each.collect()
}

pub(crate) fn named(sharding: &Sharding) -> Vec<(String, Placement)> {
    let placements = sharding.placements().into_iter();
    placements.map(|(axis, at)| (axis.to_owned(), at)).collect()
}

fn with_partial(sharding: &Sharding, axis: Option<&str>) -> Sharding {
    let mut placements = named(sharding);
    for (name, at) in &mut placements {
        if Some(name.as_str()) == axis && *at == Placement::Replicate {
            *at = Placement::Partial(Reduction::Sum);
        }
    }
    Sharding::new(sharding.mesh(), &placements, sharding.shape()).unwrap()
}

/// The gradients of x, and of the weights and biases of a two-layer network, on one rank of `mesh`:
/// the batch is sharded over dp, w1 and its bias by rows and w2 by columns over tp; the bias of w2
/// is replicated.
pub(crate) fn two_layers(rank: Option<(&dyn Rank, &Mesh)>) -> Result<[Tensor; 5]> {
    let device = rank.map_or_else(Device::cpu, |(rank, _)| rank.device().clone());
    let params: [(&str, &[usize], _); 4] = [
        ("w1", &[6, 4], Placement::shard(0)),
        ("b1", &[6], Placement::shard(0)),
        ("w2", &[4, 6], Placement::shard(1)),
        ("b2", &[4], Placement::Replicate),
    ];
    let params = params.map(|(name, shape, placement)| {
        let init = Init::Normal { std: 0.5 };
        let w = match *shape {
            [outputs, inputs] => Param::new(name, [outputs, inputs], init),
            _ => Param::new(name, [shape[0]], init),
        };
        if let Some((rank, mesh)) = rank {
            let sharding = Sharding::new(mesh, [("tp", placement)], shape).unwrap();
            w.shard(&sharding, rank.rank()).unwrap();
        }
        w.materialize(&device, 9).unwrap();
        w
    });
    let x = runtime::affine(&whole(&device, &[5, 4]), 0.05, -0.5)?;
    let x = match rank {
        None => x,
        Some((rank, mesh)) => {
            let sharding = Sharding::new(mesh, [("dp", Placement::shard(0))], &[5, 4]).unwrap();
            part(&x, &sharding, rank.rank())
        }
    };

    let [w1, b1, w2, b2] = &params;
    let ((x, y), tape) = Tape::record(|| {
        let x = Var::input(x);
        let whole = [("tp", Placement::Replicate)];
        let inner = ops::linear(&ops::redistribute(&x, &whole)?, &w1.var()?)?;
        let inner = ops::silu(&ops::add_bias(&inner, &b1.var()?)?)?;
        let y = ops::add_bias(&ops::linear(&inner, &w2.var()?)?, &b2.var()?)?;
        let y = ops::redistribute(&y, &whole)?;
        Ok((x, y))
    })?;
    let dy = y.value().clone();
    let mut grads = Grads::new(&params)?;
    let (mut dx, weights) = tape.backward_inputs(&[(&y, dy)], &[&x])?;
    weights.run(&mut grads)?;
    let mut reduced = |w: &Param| ops::redistribute(&grads.get(w)?, [("dp", Placement::Replicate)]);
    let [dw1, db1, dw2, db2] = [reduced(w1)?, reduced(b1)?, reduced(w2)?, reduced(b2)?];
    Ok([dx.remove(0), dw1, db1, dw2, db2])
}

/// A column-parallel and a row-parallel layer, data-parallel too, have the gradients of one rank.
#[test]
fn two_parallel_layers_have_the_gradients_of_one_rank() {
    let expected = two_layers(None).unwrap();
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    for fault in [Fault::None, Fault::Dropped, Fault::Scaled] {
        let results = Local::run(6, |rank| {
            let rank = RewiredRank::faulty(rank, fault);
            let redistributor: Arc<dyn Redistribute> = Arc::new(Redistributor::new(&rank));
            with_redistribution(redistributor, || two_layers(Some((&rank, &mesh))).map(Vec::from))
        })
        .unwrap();
        let results = on_one_device(&results);
        let of = |at: usize| -> Vec<Tensor> { results.iter().map(|it| it[at].clone()).collect() };
        let all_near = std::panic::catch_unwind(|| {
            expected.iter().enumerate().all(|(at, expected)| near(&of(at), expected))
        });
        assert_eq!(all_near.unwrap_or(false), fault == Fault::None, "{fault:?}");
    }
}

/// The gradient of a maximum over ranks depends on which of them has it.
#[test]
fn a_partial_maximum_is_not_tracked() {
    let mesh = Mesh::new(&[2], &["tp"]).unwrap();
    let partial = [("tp", Placement::Partial(Reduction::Max))];
    let partial = Sharding::new(&mesh, partial, &[4]).unwrap();
    Local::run(2, |rank| -> Result<()> {
        let x = whole(rank.device(), &[4]).with_sharding(&partial, rank.rank())?;
        let redistributor = Arc::new(Redistributor::new(rank));
        let recorded = |var: fn(Tensor) -> Var| {
            let reduce = || ops::redistribute(&var(x.clone()), [("tp", Placement::Replicate)]);
            with_redistribution(redistributor.clone(), || Tape::record(reduce))
        };
        recorded(Var::constant)?;
        let error = recorded(Var::input).err().unwrap().to_string();
        assert!(error.contains(" depends on all ranks: compute the maximum of"), "{error}");
        Ok(())
    })
    .unwrap();
}
