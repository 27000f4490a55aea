//! A vocabulary that is sharded in the embedding and in the loss, with a tied table.

use std::sync::Arc;

use meshgrad_autograd::{Grads, Init, Param, Tape, Var, ops};
use meshgrad_collectives::with_redistribution;
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::{Mesh, Placement, Sharding};
use meshgrad_runtime::{Device, Result, Tensor, ops as runtime};

use crate::parts::{assemble, assert_near, part};
use crate::redistribution::on_one_device;

const TOKENS: usize = 7;
const FEATURES: usize = 6;
const IGNORED: i64 = -100;

/// Ids of every shard, and labels, of which two are ignored.
fn ids(device: &Device, classes: usize) -> [Tensor; 2] {
    let id = |at: usize, by: usize| ((at * by + 3) % classes) as i64;
    let inputs: Vec<i64> = (0..TOKENS).map(|at| id(at, 11)).collect();
    let mut labels: Vec<i64> = (0..TOKENS).map(|at| id(at, 17)).collect();
    (labels[1], labels[4]) = (IGNORED, IGNORED);
    [inputs, labels].map(|ids| Tensor::from_slice(device, &[TOKENS], &ids).unwrap())
}

/// The loss, and the gradients of x and of the table, of
/// loss = cross_entropy(embedding(table, ids) + x, table).
fn train(rank: Option<(&dyn Rank, &Mesh)>, classes: usize) -> Result<[Tensor; 3]> {
    let device = rank.map_or_else(Device::cpu, |(rank, _)| rank.device().clone());
    let shape = [classes, FEATURES];
    let table = Param::new("table", shape, Init::Normal { std: 0.5 });
    let sharded = |x: &Tensor, placements: &[(&str, Placement)]| match rank {
        None => x.clone(),
        Some((rank, mesh)) => {
            let placements: Vec<_> =
                placements.iter().filter(|(axis, _)| mesh.axis(axis).is_ok()).cloned().collect();
            let sharding = Sharding::new(mesh, placements, x.shape()).unwrap();
            part(x, &sharding, rank.rank())
        }
    };
    if let Some((rank, mesh)) = rank {
        let sharding = Sharding::new(mesh, [("tp", Placement::shard(0))], &shape).unwrap();
        table.shard(&sharding, rank.rank())?;
    }
    table.materialize(&device, 9)?;
    let rows = [("dp", Placement::shard(0))];
    let values: Vec<f32> = (0..TOKENS * FEATURES).map(|at| (at as f32).sin()).collect();
    let x = Tensor::from_slice(&device, &[TOKENS, FEATURES], &values)?;
    let x = sharded(&x, &rows);
    let [ids, labels] = ids(&device, classes).map(|ids| sharded(&ids, &rows));

    let whole = [("tp", Placement::Replicate)];
    let ((x, loss), tape) = Tape::record(|| {
        let x = Var::input(x);
        let table = table.var()?;
        let embedded = ops::redistribute(&ops::embedding(&table, &ids)?, &whole)?;
        let hidden = ops::redistribute(&ops::add(&embedded, &x)?, &whole)?;
        let (loss, _) = ops::linear_cross_entropy(&hidden, &table, &labels, IGNORED)?;
        Ok((x, loss))
    })?;
    let one = sharded(&Tensor::scalar(&device, 1.0f32)?, &[]);
    let mut grads = Grads::new(std::slice::from_ref(&table))?;
    let (mut dx, weights) = tape.backward_inputs(&[(&loss, one)], &[&x])?;
    weights.run(&mut grads)?;
    let (dx, dtable) = (dx.remove(0), grads.get(&table)?);
    if rank.is_some() {
        assert_eq!(dtable.sharding().unwrap().placement("tp"), Ok(Placement::shard(0)));
    }
    Ok([loss.into_value(), dx, dtable])
}

/// The results of all ranks of `mesh` equal those of one rank, with uneven and empty shards.
fn check(mesh: &Mesh, classes: usize, fault: Fault) {
    let results = Local::run(mesh.ranks().len(), |rank| {
        let rank = RewiredRank::faulty(rank, fault);
        with_redistribution(Arc::new(Redistributor::new(&rank)), || {
            train(Some((&rank, mesh)), classes).map(Vec::from)
        })
    });
    let results = on_one_device(&results.unwrap());
    for (at, expected) in train(None, classes).unwrap().iter().enumerate() {
        let parts: Vec<Tensor> = results.iter().map(|it| it[at].clone()).collect();
        let what = format!("{classes} classes on {mesh}: result {at}");
        let actual = runtime::to_device(&assemble(&parts, &what), expected.device()).unwrap();
        assert_near(&actual, expected, 1e-5, &what);
    }
}

#[test]
fn a_sharded_vocabulary_has_the_loss_and_gradients_of_one_rank() {
    for ranks in [2, 3, 4] {
        let mesh = Mesh::new(&[ranks], &["tp"]).unwrap();
        for classes in [50, 5] {
            check(&mesh, classes, Fault::None);
        }
    }
    check(&Mesh::new(&[2, 3], &["dp", "tp"]).unwrap(), 50, Fault::None);
    check(&Mesh::new(&[3, 2], &["tp", "dp"]).unwrap(), 50, Fault::None);
}

#[test]
fn faults_in_a_sharded_vocabulary_are_found() {
    let mesh = Mesh::new(&[3], &["tp"]).unwrap();
    for fault in [Fault::Dropped, Fault::Scaled] {
        let checked = std::panic::catch_unwind(|| check(&mesh, 50, fault));
        assert!(checked.is_err(), "{fault:?}");
    }
}
