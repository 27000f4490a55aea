//! Memory, computation and communication.

use meshgrad_autograd::{Grads, Module, Param};
use meshgrad_comm::{Collective, Local, Plan, Rank, Redistributor};
use meshgrad_data_parallel::{DataParallel, Reshard, Strategy};
use meshgrad_mesh::Mesh;
use meshgrad_runtime::{Device, Error, Result, ops};

use crate::chain::Chain;

const WIDTH: usize = 64;
const LAYERS: usize = 4;
const ROWS: usize = 6;
const RANKS: usize = 3;

/// What a step costs, after a first one.
#[derive(Debug)]
struct Costs {
    flops: u64,
    peak: usize,
    saved: usize,
}

fn on_rank(rank: &dyn Rank, home: &Strategy) -> Result<Costs> {
    let mesh = Mesh::new(&[RANKS], &["dp"])?;
    Redistributor::new(rank).run_on(&mesh, || {
        let model = Chain::new(LAYERS, WIDTH);
        let homes = DataParallel::new(rank, &mesh, home.clone()).unit("layers.*", home.clone());
        homes.apply(&model)?;
        model.materialize(rank.device(), 1)?;
        let mut grads = Grads::new(&model.params())?;
        let device = rank.device();
        model.step(device, ("dp", ROWS), &mut grads)?;
        let before = device.work().flops;
        let saved = model.step(device, ("dp", ROWS), &mut grads)?;
        Ok(Costs { flops: device.work().flops - before, peak: device.memory_stats().peak, saved })
    })
}

fn on_ranks(home: &Strategy) -> Vec<Costs> {
    let local = Local::new(RANKS).threads(1);
    local.launch(|rank| on_rank(rank, home)).unwrap()
}

/// The gathers of two steps on a rank.
fn gathers(home: &Strategy) -> usize {
    let plan = Plan::new(RANKS).unwrap();
    let log = plan.trace(0, |rank| on_rank(rank, home).map(drop)).unwrap();
    assert!(log.calls().all(|call| call.bytes == MATRIX as u64));
    let kinds = log.calls().map(|call| call.request.fingerprint.collective);
    kinds.filter(|kind| *kind == Collective::AllGather).count()
}

fn homes() -> Vec<Strategy> {
    vec![
        Strategy::replicate(["dp"]),
        Strategy::zero1(["dp"]),
        Strategy::fsdp(["dp"]),
        Strategy::fsdp(["dp"]).reshard(Reshard::AfterBackward),
    ]
}

const MATRIX: usize = 4 * WIDTH * WIDTH;

/// The parameters, their gradients, two gathered layers at a time, and two whole gradients.
#[test]
fn fully_sharded_layers_are_gathered_two_at_a_time() {
    let fsdp = on_ranks(&Strategy::fsdp(["dp"]));
    let replicated = on_ranks(&Strategy::replicate(["dp"]));
    for (fsdp, replicated) in fsdp.iter().zip(&replicated) {
        let kept = 2 * LAYERS * MATRIX / RANKS;
        let activations = 2 * (LAYERS + 2) * 4 * WIDTH * ROWS.div_ceil(RANKS);
        assert!(fsdp.peak <= kept + 4 * MATRIX + activations, "{fsdp:?}");
        assert!(replicated.peak >= 2 * LAYERS * MATRIX, "{replicated:?}");
        // A tape keeps no gathered weight.
        assert_eq!(fsdp.saved, replicated.saved);
        assert_eq!(fsdp.flops, replicated.flops);
    }
}

/// Per step: a layer is gathered in forward and in backward, and its gradient is scattered once. Each
/// moves the whole matrix. The last layer stays for backward, and so does the one before once its use
/// is expected. Nothing needs the input's gradient, so backward does not gather the first.
#[test]
fn bytes_are_those_of_the_layers() {
    let of_fsdp = gathers(&Strategy::fsdp(["dp"]));
    assert_eq!(of_fsdp, (2 * LAYERS - 2) + (2 * LAYERS - 3));
    // Nothing was updated, so the second step gathers nothing.
    assert_eq!(gathers(&Strategy::zero1(["dp"])), LAYERS);
}

/// New values reach ranks that have no rows to write.
#[test]
fn ranks_without_rows_gather_new_values() {
    let mesh = Mesh::new(&[RANKS], &["dp"]).unwrap();
    for home in homes() {
        let values = Local::run(RANKS, |rank| {
            Redistributor::new(rank).run_on(&mesh, || {
                let w = Param::new("w", [1, 4], meshgrad_autograd::Init::Ones);
                DataParallel::new(rank, &mesh, home.clone()).apply(&w)?;
                w.materialize(rank.device(), 0)?;
                w.var()?;
                let own = w.home().filter(|home| !home.kept().rows().is_empty());
                if let Some(own) = own {
                    ops::fill_into(own.value(), 2.0)?;
                }
                w.rows_written();
                w.var()?.value().to_vec::<f32>()
            })
        });
        assert_eq!(values.unwrap(), [[2.0; 4]; RANKS], "{home:?}");
    }
}

/// A parameter that is set while it has a home has the rows of the value.
#[test]
fn values_move_to_the_rows_of_each_rank() {
    let mesh = Mesh::new(&[RANKS], &["dp"]).unwrap();
    let whole = Local::run(RANKS, |rank| {
        Redistributor::new(rank).run_on(&mesh, || {
            let make = || Param::new("w", [5, 4], meshgrad_autograd::Init::Normal { std: 1.0 });
            let (before, after, set) = (make(), make(), make());
            let homes = DataParallel::new(rank, &mesh, Strategy::fsdp(["dp"]));
            before.materialize(rank.device(), 3)?;
            set.materialize(rank.device(), 4)?;
            homes.apply(&before)?;
            homes.apply(&after)?;
            homes.apply(&set)?;
            after.materialize(rank.device(), 3)?;
            set.set(before.var()?.value())?;
            let values = [&before, &after, &set].map(|param| param.var()?.value().to_vec::<f32>());
            let [before, after, set] = values;
            let before = before?;
            assert_eq!(before, after?);
            assert_eq!(before, set?);
            Ok::<_, Error>(before)
        })
    });
    let alone = Param::new("w", [5, 4], meshgrad_autograd::Init::Normal { std: 1.0 });
    alone.materialize(&Device::cpu(), 3).unwrap();
    let alone = alone.value().unwrap().to_vec::<f32>().unwrap();
    assert!(whole.unwrap().iter().all(|values| *values == alone));
}
