//! Memory, computation and communication.

use std::sync::{Arc, Mutex};

use meshgrad_autograd::{Grads, Module, Param};
use meshgrad_comm::{Collective, Local, Plan, Rank, Redistributor};
use meshgrad_data_parallel::{Home, Homes, Reshard};
use meshgrad_mesh::Mesh;
use meshgrad_runtime::{Device, Error, Result, ops};

use crate::chain::Chain;

const WIDTH: usize = 64;
const LAYERS: usize = 4;
const ROWS: usize = 6;
const RANKS: usize = 3;

/// What a step costs, after a first one.
#[derive(Debug, PartialEq)]
struct Costs {
    flops: u64,
    peak: usize,
    saved: usize,
}

fn on_rank(rank: &dyn Rank, home: &Home, frozen: Option<usize>) -> Result<Costs> {
    let mesh = Mesh::new(&[RANKS], &["dp"]).map_err(Error::other)?;
    Redistributor::new(rank).run_on(&mesh, || {
        let model = Chain::new(LAYERS, WIDTH);
        if let Some(frozen) = frozen {
            model.layers[frozen].weight.freeze();
        }
        let homes = Homes::new(rank, &mesh, home.clone()).unit("layers.*", home.clone());
        homes.settle(&model)?;
        model.materialize(rank.device(), 1)?;
        let mut grads = Grads::new(&model.trained())?;
        let device = rank.device();
        model.step(device, ("dp", ROWS), &mut grads)?;
        let before = device.work().flops;
        let saved = model.step(device, ("dp", ROWS), &mut grads)?;
        Ok(Costs {
            flops: device.work().flops - before,
            peak: device.memory_stats().peak,
            saved,
        })
    })
}

fn on_ranks(home: &Home, frozen: Option<usize>) -> Vec<Costs> {
    let local = Local::new(RANKS).threads(1);
    local.launch(|rank| on_rank(rank, home, frozen)).unwrap()
}

/// The same on one rank without data, with the bytes of each kind of collective.
fn planned(home: &Home, frozen: Option<usize>, rank: usize) -> (Costs, Vec<(Collective, u64)>) {
    let costs = Arc::new(Mutex::new(None));
    let plan = Plan::new(RANKS)
        .unwrap()
        .like(&Device::cpu_with_threads(1).unwrap());
    let log = plan.trace(rank, |rank| {
        *costs.lock().unwrap() = Some(on_rank(rank, home, frozen)?);
        Ok::<_, Error>(())
    });
    let costs = costs.lock().unwrap().take().unwrap();
    let log = log.unwrap();
    let calls = log
        .calls()
        .map(|call| (call.request.fingerprint.collective, call.bytes));
    (costs, calls.collect())
}

fn homes() -> Vec<Home> {
    vec![
        Home::replicate(["dp"]),
        Home::zero1(["dp"]),
        Home::fsdp(["dp"]),
        Home::fsdp(["dp"]).reshard(Reshard::AfterBackward),
    ]
}

#[test]
fn memory_and_work_are_those_of_a_run_without_data() {
    for home in homes() {
        for (rank, costs) in on_ranks(&home, None).into_iter().enumerate() {
            assert_eq!(costs, planned(&home, None, rank).0, "{home:?}, rank {rank}");
        }
    }
}

const MATRIX: usize = 4 * WIDTH * WIDTH;

/// The parameters, their gradients, two gathered layers at a time, and two whole gradients.
#[test]
fn fully_sharded_layers_are_gathered_two_at_a_time() {
    let fsdp = on_ranks(&Home::fsdp(["dp"]), None);
    let replicated = on_ranks(&Home::replicate(["dp"]), None);
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

#[test]
fn a_frozen_layer_costs_no_gradient_and_no_reduction() {
    let home = Home::fsdp(["dp"]);
    let product = |rank: usize| {
        let rows = ROWS / RANKS;
        assert!(rank < RANKS);
        (2 * rows * WIDTH * WIDTH) as u64
    };
    for rank in 0..RANKS {
        let (all, sent_by_all) = planned(&home, None, rank);
        let (frozen, sent) = planned(&home, Some(1), rank);
        assert_eq!(all.flops - frozen.flops, product(rank));
        let count = |calls: &[(Collective, u64)], of: Collective| {
            calls.iter().filter(|(kind, _)| *kind == of).count()
        };
        let gathers = |calls: &[_]| count(calls, Collective::AllGather);
        let scatters = |calls: &[_]| count(calls, Collective::ReduceScatter);
        assert_eq!(gathers(&sent), gathers(&sent_by_all));
        // Two steps.
        assert_eq!(scatters(&sent_by_all), 2 * LAYERS);
        assert_eq!(scatters(&sent), 2 * (LAYERS - 1));
    }
}

/// Per step: a layer is gathered in forward and in backward, and its gradient is scattered once. Each
/// moves the whole matrix. The last layer stays for backward, and so does the one before once its use
/// is expected. Nothing needs the input's gradient, so backward does not gather the first.
#[test]
fn bytes_are_those_of_the_layers() {
    let (_, calls) = planned(&Home::fsdp(["dp"]), None, 0);
    assert!(
        calls.iter().all(|(_, bytes)| *bytes == MATRIX as u64),
        "{calls:?}"
    );
    let gathers = calls
        .iter()
        .filter(|(kind, _)| *kind == Collective::AllGather);
    assert_eq!(gathers.count(), (2 * LAYERS - 2) + (2 * LAYERS - 3));

    let (_, calls) = planned(&Home::zero1(["dp"]), None, 0);
    let gathers = calls
        .iter()
        .filter(|(kind, _)| *kind == Collective::AllGather);
    // Nothing was updated, so the second step gathers nothing.
    assert_eq!(gathers.count(), LAYERS);
}

/// New values reach ranks that have no rows to write.
#[test]
fn ranks_without_rows_gather_new_values() {
    let mesh = Mesh::new(&[RANKS], &["dp"]).unwrap();
    for home in homes() {
        let values = Local::run(RANKS, |rank| {
            Redistributor::new(rank).run_on(&mesh, || {
                let w = Param::new("w", [1, 4], meshgrad_autograd::Init::Ones);
                Homes::new(rank, &mesh, home.clone()).settle(&w)?;
                w.materialize(rank.device(), 0)?;
                w.var()?;
                let own = w.home().filter(|home| !home.rows().is_empty());
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
            let homes = Homes::new(rank, &mesh, Home::fsdp(["dp"]));
            before.materialize(rank.device(), 3)?;
            set.materialize(rank.device(), 4)?;
            homes.settle(&before)?;
            homes.settle(&after)?;
            homes.settle(&set)?;
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
