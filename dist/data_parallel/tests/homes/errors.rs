//! Messages of homes that do not fit.

use meshgrad_autograd::{Grads, Init, Module, Param};
use meshgrad_comm::{Local, Redistributor};
use meshgrad_data_parallel::{DataParallel, Strategy};
use meshgrad_mesh::{Mesh, Placement, Sharding};
use meshgrad_runtime::{DType, Error, Result, ops};

use crate::chain::Chain;

/// The message of rank 0 of a mesh of 2 x 2 ranks.
fn message(body: impl Fn(&dyn meshgrad_comm::Rank, &Mesh) -> Result<()> + Sync) -> String {
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    let messages = Local::run(4, |rank| {
        let result = Redistributor::new(rank).run_on(&mesh, || body(rank, &mesh));
        Ok::<_, Error>(result.err().map(|error| error.to_string()))
    });
    messages.unwrap().swap_remove(0).unwrap()
}

fn settled(homes: impl Fn(DataParallel) -> DataParallel + Sync, home: Strategy) -> String {
    message(|rank, mesh| {
        homes(DataParallel::new(rank, mesh, home.clone())).apply(&Chain::new(2, 4))
    })
}

#[test]
fn messages_name_the_unit_and_the_way_out() {
    let unit =
        |name: &'static str| move |homes: DataParallel| homes.unit(name, Strategy::fsdp(["dp"]));
    let sharded = message(|rank, mesh| {
        let model = Chain::new(1, 4);
        let rows = Sharding::new(mesh, [("tp", Placement::shard(0))], &[4, 4])?;
        model.layers[0].weight.shard(&rows, rank.rank())?;
        DataParallel::new(rank, mesh, Strategy::fsdp(["dp", "tp"])).apply(&model)
    });
    let twice = message(|rank, mesh| {
        let model = Chain::new(1, 4);
        let homes = DataParallel::new(rank, mesh, Strategy::fsdp(["dp"]));
        homes.apply(&model)?;
        homes.apply(&model)
    });
    let not_partial = message(|rank, mesh| {
        let w = Param::new("w", [4, 4], Init::Ones);
        DataParallel::new(rank, mesh, Strategy::fsdp(["dp"])).apply(&w)?;
        w.materialize(rank.device(), 0)?;
        let x = ops::full(rank.device(), &[2, 4], DType::F32, 1.0)?;
        let x = meshgrad_autograd::Var::constant(x);
        let (y, tape) =
            meshgrad_autograd::Tape::record(|| meshgrad_autograd::ops::linear(&x, &w.var()?))?;
        let mut grads = Grads::new(&w.params())?;
        let dy = y.value().clone();
        tape.backward_from(&[(&y, dy)], &mut grads)
    });
    let no_clear = message(|rank, mesh| {
        let model = Chain::new(1, 4);
        DataParallel::new(rank, mesh, Strategy::fsdp(["dp"])).apply(&model)?;
        model.materialize(rank.device(), 0)?;
        let mut grads = Grads::new(&model.params())?;
        model.step(rank.device(), ("dp", 4), &mut grads)?;
        grads.all()?;
        model.step(rank.device(), ("dp", 4), &mut grads).map(drop)
    });
    let value = message(|rank, mesh| {
        let model = Chain::new(1, 4);
        DataParallel::new(rank, mesh, Strategy::fsdp(["dp"])).apply(&model)?;
        model.layers[0].weight.value().map(drop)
    });
    let written = message(|rank, mesh| {
        let model = Chain::new(1, 4);
        DataParallel::new(rank, mesh, Strategy::zero1(["dp"])).apply(&model)?;
        model.materialize(rank.device(), 0)?;
        model.layers[0].weight.var()?;
        if let Some(home) = model.layers[0].weight.home() {
            ops::fill_into(home.value(), 2.0)?;
        }
        model.layers[0].weight.var().map(drop)
    });
    let other_mesh = message(|rank, mesh| {
        let model = Chain::new(1, 4);
        let experts = Mesh::new(&[4], &["ep"])?;
        let rows = Sharding::new(&experts, [("ep", Placement::shard(0))], &[4, 4])?;
        model.layers[0].weight.shard(&rows, rank.rank())?;
        DataParallel::new(rank, mesh, Strategy::fsdp(["dp"])).apply(&model)
    });
    let mesh = |ranks: &'static [usize], axis: &'static str| {
        move |homes: DataParallel| {
            let mesh = Mesh::from_ranks(ranks, &[ranks.len()], &["ep"]).unwrap();
            homes.mesh(&mesh, [axis], [""; 0])
        }
    };
    let tied = |homes: DataParallel| homes.tied("layers.0", Strategy::fsdp(["dp"]), &[0, 1]);
    let messages = [
        ("axis twice", settled(|homes| homes, Strategy::hsdp(["dp"], ["dp"]))),
        ("unknown axis", settled(|homes| homes, Strategy::fsdp(["pd"]))),
        ("no module", settled(unit("layer.*"), Strategy::fsdp(["dp"]))),
        ("pattern", settled(unit("layers.[0"), Strategy::fsdp(["dp"]))),
        ("no stages", settled(tied, Strategy::fsdp(["dp"]))),
        ("axis in use", sharded),
        ("another mesh", other_mesh),
        ("other ranks", settled(mesh(&[0, 1, 3], "ep"), Strategy::fsdp(["dp"]))),
        ("axis of a mesh", settled(mesh(&[0, 1, 2, 3], "edp"), Strategy::fsdp(["dp"]))),
        ("second home", twice),
        ("not partial", not_partial),
        ("no clear", no_clear),
        ("value", value),
        ("written", written),
    ];
    let text = messages.map(|(name, message)| format!("{name}: {message}"));
    insta::assert_snapshot!(text.join("\n\n"));
}
