//! Messages of homes that do not fit.

use meshgrad_autograd::{Grads, Init, Module, Param};
use meshgrad_comm::{Local, Redistributor};
use meshgrad_data_parallel::{Home, Homes};
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

fn settled(homes: impl Fn(Homes) -> Homes + Sync, home: Home) -> String {
    message(|rank, mesh| homes(Homes::new(rank, mesh, home.clone())).settle(&Chain::new(2, 4)))
}

#[test]
fn messages_name_the_unit_and_the_way_out() {
    let unit = |name: &'static str| move |homes: Homes| homes.unit(name, Home::fsdp(["dp"]));
    let sharded = message(|rank, mesh| {
        let model = Chain::new(1, 4);
        let rows = Sharding::new(mesh, [("tp", Placement::shard(0))], &[4, 4])?;
        model.layers[0].weight.shard(&rows, rank.rank())?;
        Homes::new(rank, mesh, Home::fsdp(["dp", "tp"])).settle(&model)
    });
    let twice = message(|rank, mesh| {
        let model = Chain::new(1, 4);
        let homes = Homes::new(rank, mesh, Home::fsdp(["dp"]));
        homes.settle(&model)?;
        homes.settle(&model)
    });
    let not_partial = message(|rank, mesh| {
        let w = Param::new("w", [4, 4], Init::Ones);
        Homes::new(rank, mesh, Home::fsdp(["dp"])).settle(&w)?;
        w.materialize(rank.device(), 0)?;
        let x = ops::full(rank.device(), &[2, 4], DType::F32, 1.0)?;
        let x = meshgrad_autograd::Var::constant(x);
        let (y, tape) =
            meshgrad_autograd::Tape::record(|| meshgrad_autograd::ops::linear(&x, &w.var()?))?;
        let mut grads = Grads::new(&w.params())?;
        let dy = y.value().clone();
        tape.backward(&[(&y, dy)], &mut grads)
    });
    let no_clear = message(|rank, mesh| {
        let model = Chain::new(1, 4);
        Homes::new(rank, mesh, Home::fsdp(["dp"])).settle(&model)?;
        model.materialize(rank.device(), 0)?;
        let mut grads = Grads::new(&model.params())?;
        model.step(rank.device(), ("dp", 4), &mut grads)?;
        grads.all()?;
        model.step(rank.device(), ("dp", 4), &mut grads).map(drop)
    });
    let value = message(|rank, mesh| {
        let model = Chain::new(1, 4);
        Homes::new(rank, mesh, Home::fsdp(["dp"])).settle(&model)?;
        model.layers[0].weight.value().map(drop)
    });
    let written = message(|rank, mesh| {
        let model = Chain::new(1, 4);
        Homes::new(rank, mesh, Home::zero1(["dp"])).settle(&model)?;
        model.materialize(rank.device(), 0)?;
        model.layers[0].weight.var()?;
        if let Some(home) = model.layers[0].weight.home() {
            ops::fill_into(home.value(), 2.0)?;
        }
        model.layers[0].weight.var().map(drop)
    });
    let tied = |homes: Homes| homes.tied("layers.0", Home::fsdp(["dp"]), &[0, 1]);
    let messages = [
        ("axis twice", settled(|homes| homes, Home::hsdp(["dp"], ["dp"]))),
        ("unknown axis", settled(|homes| homes, Home::fsdp(["pd"]))),
        ("no module", settled(unit("layer.*"), Home::fsdp(["dp"]))),
        ("pattern", settled(unit("layers.[0"), Home::fsdp(["dp"]))),
        ("no stages", settled(tied, Home::fsdp(["dp"]))),
        ("axis in use", sharded),
        ("second home", twice),
        ("not partial", not_partial),
        ("no clear", no_clear),
        ("value", value),
        ("written", written),
    ];
    let text = messages.map(|(name, message)| format!("{name}: {message}"));
    insta::assert_snapshot!(text.join("\n\n"));
}
