//! Redistributions that run while the rank does other work.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use meshgrad_collectives::{
    Operands, Redistribute, Request, start_redistribute, with_redistribution,
};
use meshgrad_comm::{
    Communicator, FailedRank, GroupConnector, Local, LocalRank, Plan, Rank, Redistributor,
    check_logs,
};
use meshgrad_mesh::{Group, Hosts, Link, LinkCosts, Mesh, Placement, Reduction, Sharding};
use meshgrad_runtime::{DType, Device, Error, ErrorKind, Kind, Pending, Result, Tensor};

use meshgrad_comm::conformance::RewiredRank;

use crate::parts::part;
use crate::redistribution::{check, on_one_device, pairs, whole};

fn mesh() -> Mesh {
    Mesh::new(&[2, 2], &["dp", "tp"]).unwrap()
}

/// A pair of shardings whose plan has two collectives.
fn two_collectives() -> [Sharding; 2] {
    let from = [("dp", Placement::shard(0)), ("tp", Placement::Partial(Reduction::Sum))];
    let from = Sharding::new(&mesh(), from, &[6, 4]).unwrap();
    let to = Sharding::replicated(&mesh(), &[6, 4]).unwrap();
    let links = LinkCosts::default();
    let plan = meshgrad_mesh::Redistribution::plan(&from, &to, 32, &Hosts::Uniform(4), &links);
    assert_eq!(plan.unwrap().steps().len(), 2);
    [from, to]
}

/// A pair of shardings whose plan has one collective.
fn one_collective() -> [Sharding; 2] {
    let from = Sharding::new(&mesh(), [("tp", Placement::shard(0))], &[6, 4]).unwrap();
    let to = Sharding::replicated(&mesh(), &[6, 4]).unwrap();
    [from, to]
}

fn start(
    redistributor: &Redistributor,
    rank: &dyn Rank,
    [from, to]: &[Sharding; 2],
) -> Result<Pending<Tensor>> {
    let x = part(&whole(rank.device(), from.shape()), from, rank.rank());
    redistributor.start(&x, to)
}

/// Many are started before the first is waited for, in another order.
#[test]
fn started_redistributions_have_the_results_of_others() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let pairs = pairs(&mesh, &[7, 5], 7);
    let results = Local::run(6, |rank| -> Result<Vec<Tensor>> {
        let redistributor = Redistributor::new(rank);
        let started = pairs.iter().map(|pair| start(&redistributor, rank, pair));
        let started: Vec<Pending<Tensor>> = started.collect::<Result<_>>()?;
        let mut results = Vec::new();
        for pending in started.into_iter().rev() {
            results.push(pending.wait()?);
        }
        results.reverse();
        Ok(results)
    });
    check(&pairs, &on_one_device(&results.unwrap()));
}

/// Ranks that are in two meshes start more redistributions than those in one.
#[test]
fn started_redistributions_on_overlapping_meshes() {
    let meshes = [[0, 1, 2, 3], [2, 3, 4, 5]];
    let meshes = meshes.map(|ranks| Mesh::from_ranks(&ranks, &[2, 2], &["dp", "tp"]).unwrap());
    let placements = [("dp", Placement::shard(0)), ("tp", Placement::Partial(Reduction::Sum))];
    Local::run(6, |rank| -> Result<()> {
        let redistributor = Redistributor::new(rank);
        let mut started = Vec::new();
        for at in [0, 1, 0, 0, 1, 1, 0] {
            let mesh = &meshes[at];
            if mesh.contains(rank.rank()) {
                let from = Sharding::new(mesh, &placements, &[6, 4]).unwrap();
                let to = Sharding::replicated(mesh, &[6, 4]).unwrap();
                started.push(start(&redistributor, rank, &[from, to])?);
            }
        }
        let expected = whole(rank.device(), &[6, 4]).to_vec::<f32>()?;
        for pending in started {
            assert_eq!(pending.wait()?.to_vec::<f32>()?, expected);
        }
        Ok(())
    })
    .unwrap();
}

/// Holds back the results of a rank's collectives until the rank has started two and allows it.
#[derive(Default)]
struct Gate {
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut (usize, bool))) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn pass(&self) -> Result<()> {
        let state = self.state.lock().unwrap();
        let is_closed = |state: &mut (usize, bool)| state.0 < 2 || !state.1;
        let limit = Duration::from_secs(60);
        let (_state, waited) = self.changed.wait_timeout_while(state, limit, is_closed).unwrap();
        match waited.timed_out() {
            true => {
                let problem = "the redistributions do not overlap";
                Err(Error::new(ErrorKind::Invalid, problem))
            }
            false => Ok(()),
        }
    }
}

struct Gated<T> {
    inner: T,
    gate: Arc<Gate>,
}

impl GroupConnector for Gated<Arc<dyn GroupConnector>> {
    fn connect(&self, name: &str, group: &Group) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(Gated { inner: self.inner.connect(name, group)?, gate: self.gate.clone() }))
    }
}

impl Communicator for Gated<Arc<dyn Communicator>> {
    fn group(&self) -> &Group {
        self.inner.group()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn index(&self) -> usize {
        self.inner.index()
    }

    fn device(&self) -> &Device {
        self.inner.device()
    }

    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        let pending = self.inner.start(request, operands)?;
        self.gate.change(|(started, _)| *started += 1);
        let gate = self.gate.clone();
        Ok(Pending::by_host(move || {
            gate.pass()?;
            pending.wait()
        }))
    }
}

/// No collective of a rank completes before the rank has started two redistributions and goes on:
/// so starting one does not wait, and the first collective of the second one does not wait for the
/// first one.
#[test]
fn started_redistributions_overlap() {
    for pairs in [
        [two_collectives(), two_collectives()],
        [one_collective(), two_collectives()],
        [one_collective(), one_collective()],
    ] {
        let links = LinkCosts { launch_ns: 1_000_000, ..LinkCosts::default() };
        let local = Local::new(4).threads(1).links(links, Hosts::Uniform(4));
        let results = local.launch(|rank| -> Result<Vec<Tensor>> {
            let gate = Arc::new(Gate::default());
            let connector = Gated { inner: rank.connector(), gate: gate.clone() };
            let connector = Arc::new(connector);
            let rank = RewiredRank::new(rank, connector);
            let redistributor = Redistributor::new(&rank);
            let one = start(&redistributor, &rank, &pairs[0])?;
            let other = start(&redistributor, &rank, &pairs[1])?;
            gate.change(|(_, is_open)| *is_open = true);
            let other = other.wait()?;
            Ok(vec![one.wait()?, other])
        });
        check(&pairs, &on_one_device(&results.unwrap()));
    }
}

/// 1 us per launch, 1 us and 1 ms per MiB.
const LINKS: LinkCosts = LinkCosts {
    launch_ns: 1_000,
    within: Link { latency_ns: 1_000, ns_per_mib: 1_000_000 },
    across: Link { latency_ns: 1_000, ns_per_mib: 1_000_000 },
};

/// The simulated time until an all_gather of 1 MiB per rank and a computation are complete.
fn simulated(main: impl Fn(&LocalRank, &Tensor) -> Result<()> + Sync) -> Duration {
    let local = Local::new(2).threads(1).links(LINKS, Hosts::Uniform(2)).simulated(1);
    let times = local.launch(|rank| {
        let mesh = Mesh::new(&[2], &["tp"]).unwrap();
        let rows = Sharding::new(&mesh, [("tp", Placement::shard(0))], &[1 << 19]).unwrap();
        let x = Tensor::zeros(rank.device(), &[1 << 18], DType::F32, Kind::Value)?;
        let x = x.with_sharding(&rows, rank.rank())?;
        with_redistribution(Arc::new(Redistributor::new(rank)), || main(rank, &x))?;
        Ok::<_, Error>(rank.clock().now())
    });
    times.unwrap()[0]
}

/// The time of a redistribution is hidden by a computation of the same length.
#[test]
fn computation_hides_a_started_redistribution() {
    let whole = [("tp", Placement::Replicate)];
    let compute = Duration::from_micros(1_002);
    let overlapped = simulated(|rank, x| {
        let started = start_redistribute(x, &whole)?;
        rank.clock().sleep(compute);
        started.wait().map(drop)
    });
    let serial = simulated(|rank, x| {
        start_redistribute(x, &whole)?.wait()?;
        rank.clock().sleep(compute);
        Ok(())
    });
    assert_eq!((overlapped, serial), (compute, 2 * compute));
}

/// In simulated time and with `Plan`.
#[test]
fn plans_of_several_collectives_run_when_they_are_waited_for() {
    let pairs = [two_collectives(), two_collectives()];
    let run = |rank: &dyn Rank| -> Result<Vec<Tensor>> {
        let redistributor = Redistributor::new(rank);
        let started = pairs.iter().map(|pair| start(&redistributor, rank, pair));
        let started: Vec<Pending<Tensor>> = started.collect::<Result<_>>()?;
        started.into_iter().map(Pending::wait).collect()
    };
    let results = Local::new(4).threads(1).simulated(3).launch(|rank| run(rank));
    check(&pairs, &on_one_device(&results.unwrap()));

    let logs = Plan::new(4).unwrap().trace_all(|rank| {
        let redistributor = Redistributor::new(rank);
        for [from, to] in &pairs {
            let shape = from.local_shape(rank.rank()).unwrap();
            let x = Tensor::zeros(rank.device(), &shape, DType::F32, Kind::Value)?;
            redistributor.start(&x.with_sharding(from, rank.rank())?, to)?.wait()?;
        }
        Ok::<_, Error>(())
    });
    assert_eq!(check_logs(&logs.unwrap()).unwrap().collectives, 8);
}

/// A rank that drops the result of a single collective has still taken part.
#[test]
fn a_dropped_result_does_not_stop_other_ranks() {
    let pair = one_collective();
    let results = Local::run(4, |rank| -> Result<Option<Tensor>> {
        let redistributor = Redistributor::new(rank);
        let pending = start(&redistributor, rank, &pair)?;
        match rank.rank() % 2 {
            0 => Ok(None),
            _ => pending.wait().map(Some),
        }
    });
    for (rank, result) in results.unwrap().into_iter().enumerate() {
        let expected = whole(&Device::cpu(), &[6, 4]).to_vec::<f32>().unwrap();
        assert_eq!(result.is_some(), rank % 2 == 1);
        if let Some(result) = result {
            assert_eq!(result.to_vec::<f32>().unwrap(), expected);
        }
    }
}

/// The error of a rank that fails reaches the ranks that need it. The others may have finished
/// before.
#[test]
fn errors_are_returned_by_wait() {
    let cases = [(one_collective(), &[2][..]), (two_collectives(), &[0, 1, 2])];
    for (pair, needing) in cases {
        let errors = Mutex::new(BTreeMap::new());
        let result = Local::run(4, |rank| -> Result<()> {
            if rank.rank() == 3 {
                return Err(Error::new(ErrorKind::Invalid, "as planned"));
            }
            let redistributor = Redistributor::new(rank);
            let result = start(&redistributor, rank, &pair).and_then(Pending::wait);
            if let Err(error) = &result {
                errors.lock().unwrap().insert(rank.rank(), error.clone());
            }
            result.map(drop)
        });
        assert!(result.is_err());
        let errors = errors.into_inner().unwrap();
        let is_blamed = |error: &Error| {
            let failed = error.details::<FailedRank>();
            failed.is_some_and(|failed| failed.rank == 3)
        };
        assert!(errors.values().all(is_blamed), "{errors:?}");
        let needing = needing.iter().all(|rank| errors.contains_key(rank));
        assert!(needing, "{errors:?}");
    }
}
