//! The transport over NCCL: the emulator's between emulated GPUs, or NVIDIA's between real ones.

use std::sync::Arc;
use std::time::Duration;

use meshgrad_collectives::{Collective, Operands, Output, Request};
use meshgrad_comm::{
    Collectives, CommError, Communicator, FailedRank, Local, NcclRank, Rank, Reduction, conformance,
};
use meshgrad_mesh::{Group, GroupOptions};
use meshgrad_runtime::{DType, Device, Error, ErrorKind, Pending, Result, Tensor, ops};

use super::{GPUS, STREAMS, gpu, in_each_order_with, is_real};

/// Wrong collectives wait without end, as those of NCCL.
const HANGS: [(&str, &str); 2] =
    [("MESHGRAD_EMULATOR_HANGS", "1"), ("MESHGRAD_EMULATOR_NCCL", "2.19")];
/// A GPU has room for one collective at a time.
const NO_ROOM: [(&str, &str); 1] = [("MESHGRAD_EMULATOR_RESIDENT", "1")];
/// Communicators have streams of their own.
const IN_ORDER: [(&str, &str); 1] = [("NCCL_LAUNCH_ORDER_IMPLICIT", "1")];
/// The memory of graphs is kept until there is no other, which would be more than the host has.
const GRAPHS: [(&str, &str); 2] = [IN_ORDER[0], ("MESHGRAD_EMULATOR_MEMORY", "64MiB")];
/// When ranks are missing.
const SOON: Duration = Duration::from_millis(500);

/// The most ranks: with real GPUs one for each, or two if NCCL is told to allow that; none without NCCL.
fn most_ranks() -> usize {
    match is_real() {
        false => GPUS,
        true if !NcclRank::is_installed() => 0,
        true => {
            let shares = std::env::var_os("NCCL_MULTI_RANK_GPU_ENABLE").is_some();
            Device::cuda_count().unwrap() * if shares { 2 } else { 1 }
        }
    }
}

/// Runs a test that needs `ranks` in each order of streams, if there are as many.
fn in_each_order(
    ranks: usize,
    with: &[(&str, &str)],
    test: &str,
    orders: &[&str],
    body: impl FnOnce(),
) {
    match ranks <= most_ranks() {
        true => in_each_order_with(with, test, orders, body),
        false => println!("skipped: {test} needs NCCL, and a GPU for each of {ranks} ranks"),
    }
}

/// Runs `body` on ranks whose tensors travel over NCCL.
fn over_nccl<T: Send>(
    ranks: usize,
    body: impl Fn(NcclRank<'_>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    Local::new(ranks).launch(|rank| body(NcclRank::new(rank, gpu(rank.rank()))?))
}

/// Runs the conformance suite.
fn check(communicator: &dyn Communicator, is_tree: bool, counts: &[usize]) -> Result<()> {
    let checks = conformance::checks_over_nccl(is_tree);
    let mut all = checks.iter().flat_map(|check| counts.iter().map(move |count| (check, count)));
    all.try_for_each(|(check, count)| check.run(communicator, *count))
}

#[test]
fn worlds_conform() {
    in_each_order(1, &NO_ROOM, "nccl::worlds_conform", &STREAMS, || {
        for ranks in [1, 2, 3, 5, 8].into_iter().filter(|it| *it <= most_ranks()) {
            let checked = over_nccl(ranks, |rank| check(&*rank.world()?, false, &[0, 1, 7]));
            checked.unwrap_or_else(|error| panic!("{ranks} ranks: {error:#}"));
        }
    });
}

#[test]
fn sums_in_the_order_of_a_tree_conform() {
    in_each_order(2, &IN_ORDER, "nccl::sums_in_the_order_of_a_tree_conform", &STREAMS, || {
        for ranks in [2, 3, 4].into_iter().filter(|it| *it <= most_ranks()) {
            let checked =
                over_nccl(ranks, |rank| check(&*rank.tree(true).world()?, true, &[0, 1, 7]));
            checked.unwrap_or_else(|error| panic!("{ranks} ranks: {error:#}"));
        }
    });
}

/// Calls collectives in graphs.
struct InGraphs(Arc<dyn Communicator>);

impl Communicator for InGraphs {
    fn group(&self) -> &Group {
        self.0.group()
    }

    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn index(&self) -> usize {
        self.0.index()
    }

    fn device(&self) -> &Device {
        self.0.device()
    }

    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        Ok(self.start_fused(vec![(request, operands)])?.remove(0))
    }

    fn start_fused(&self, calls: Vec<(Request, Operands)>) -> Result<Vec<Pending<Option<Tensor>>>> {
        if calls.iter().any(|(it, _)| it.fingerprint.collective == Collective::Barrier) {
            return self.0.start_fused(calls);
        }
        let is_new = |(_, it): &(Request, Operands)| matches!(it.output, Output::New(_));
        let is_new: Vec<bool> = calls.iter().map(is_new).collect();
        let mut graph = self.device().capture(|| {
            let started = self.0.start_fused(calls)?.into_iter();
            started.map(Pending::wait).collect::<Result<Vec<_>>>()
        })?;
        graph.launch()?;
        let results = graph.results().iter().zip(is_new);
        let kept = results.map(|(it, is_new)| {
            let kept = it.as_ref().map(|it| if is_new { ops::copy(it) } else { Ok(it.clone()) });
            let kept = kept.transpose()?;
            Ok(Pending::by_host(move || Ok(kept)))
        });
        kept.collect()
    }
}

#[test]
fn collectives_in_graphs_conform() {
    in_each_order(1, &GRAPHS, "nccl::collectives_in_graphs_conform", &STREAMS, || {
        let ranks = most_ranks().min(3);
        let rotated: Vec<usize> = (0..ranks).map(|at| (at + 1) % ranks).collect();
        let group = Group::new(rotated).unwrap();
        let checked = over_nccl(ranks, |rank| {
            let communicator = rank.connect("in graphs", &group)?;
            let x = ones(&rank, 4)?;
            let early = || communicator.all_reduce(&x, Reduction::Sum)?.wait();
            let early = rank.device().capture(early).err().expect("it has not run before");
            let expected = "all_reduce during Device::capture: NCCL may allocate";
            assert!(early.to_string().contains(expected), "{early}");
            check(&*communicator, false, &[0, 1, 7])?;
            check(&InGraphs(communicator), false, &[0, 1, 7])
        });
        checked.unwrap();
    });
}

/// Results are in the order of the group, not of the ranks.
#[test]
fn groups_in_another_order_conform() {
    in_each_order(3, &IN_ORDER, "nccl::groups_in_another_order_conform", &STREAMS[..2], || {
        let reversed = Group::new([2, 1, 0]).unwrap();
        let check = |rank: NcclRank<'_>| {
            let (memory, rank) = (rank.memory(), rank.strict(true));
            let communicator = rank.connect("reversed", &reversed)?;
            check(&*communicator, false, &[5])?;
            memory()
        };
        // Of the first communicator of each GPU: the memory of an earlier one may be freed late.
        let memory = over_nccl(3, check).unwrap();
        assert!(memory.iter().all(|it| *it > 1 << 20), "{memory:?}");
    });
}

/// Control channels pass collectives that wait.
#[test]
fn messages_pass_collectives_that_wait() {
    in_each_order(3, &NO_ROOM, "nccl::messages_pass_collectives_that_wait", &STREAMS[..2], || {
        over_nccl(3, |rank| conformance::check_control(&rank)).unwrap();
    });
}

/// The errors of all ranks, which do not end the world.
fn errors(local: &Local, body: impl Fn(&NcclRank<'_>) -> Result<()> + Sync) -> Vec<Error> {
    let ended = local.launch(|rank| {
        let rank = NcclRank::new(rank, gpu(rank.rank()))?;
        Ok::<_, Error>(body(&rank).expect_err("it fails"))
    });
    ended.unwrap()
}

/// The same verdict of all ranks.
fn verdict(local: &Local, body: impl Fn(&NcclRank<'_>) -> Result<()> + Sync) -> CommError {
    let errors = errors(local, body);
    let verdicts: Vec<_> = errors.iter().map(|it| it.details::<CommError>().cloned()).collect();
    assert!(verdicts.iter().all(|it| *it == verdicts[0]), "{errors:?}");
    verdicts[0].clone().unwrap_or_else(|| panic!("{}", errors[0]))
}

fn ones(rank: &NcclRank<'_>, count: usize) -> Result<Tensor> {
    ops::full(rank.device(), &[count], DType::F32, 1.0)
}

/// Sums, and reads the sum.
pub(super) fn sum(rank: &NcclRank<'_>, over: &dyn Communicator, count: usize) -> Result<()> {
    let sum = over.all_reduce(&ones(rank, count)?, Reduction::Sum)?.wait()?;
    sum.to_vec::<f32>().map(drop)
}

#[test]
fn ranks_that_call_different_collectives_get_the_verdict() {
    let test = "nccl::ranks_that_call_different_collectives_get_the_verdict";
    in_each_order(3, &HANGS, test, &STREAMS[..2], || {
        let counts = |rank: &NcclRank<'_>| if rank.rank() == 1 { 5 } else { 4 };
        let found = verdict(&Local::new(3), |rank| sum(rank, &*rank.world()?, counts(rank)));
        let CommError::Mismatch { first, second, .. } = &found else {
            panic!("{found}");
        };
        let calls = [&first.call[..], &second.call];
        assert!(calls.contains(&"all_reduce(f32 x 5, sum)"), "{found}");
        assert!(calls.contains(&"all_reduce(f32 x 4, sum)"), "{found}");
        assert!(first.at.file().ends_with("nccl.rs"), "{found}");
    });
}

/// NCCL would add what does not belong together: each graph has the same sum.
#[test]
fn ranks_that_launch_different_graphs_get_the_verdict() {
    let test = "nccl::ranks_that_launch_different_graphs_get_the_verdict";
    in_each_order(3, &HANGS, test, &STREAMS[..2], || {
        let found = verdict(&Local::new(3), |rank| {
            let (world, x) = (rank.world()?, ones(rank, 4)?);
            sum(rank, &*world, 4)?;
            let capture = || rank.device().capture(|| world.all_reduce(&x, Reduction::Sum)?.wait());
            let mut graphs = [capture()?, capture()?];
            if rank.rank() == 1 {
                graphs.reverse();
            }
            graphs.iter_mut().try_for_each(|it| it.launch())?;
            world.barrier()?.wait()
        });
        let CommError::Mismatch { first, second, .. } = &found else {
            panic!("{found}");
        };
        let mut calls = [&first.call[..], &second.call];
        calls.sort();
        assert_eq!(calls, ["graph(0)", "graph(1)"], "{found}");
    });
}

#[test]
fn a_rank_that_does_not_call_is_named() {
    in_each_order(3, &HANGS, "nccl::a_rank_that_does_not_call_is_named", &STREAMS[..2], || {
        let ended = Local::new(3).deadline(SOON).launch(|base| {
            let rank = NcclRank::new(base, gpu(base.rank()))?;
            let world = rank.world()?;
            sum(&rank, &*world, 4)?;
            let ended = match rank.rank() {
                2 => {
                    std::thread::sleep(4 * SOON);
                    Ok(())
                }
                _ => sum(&rank, &*world, 4),
            };
            Ok::<_, Error>(ended)
        });
        let ended = ended.unwrap();
        for error in &ended[..2] {
            let error = error.as_ref().expect_err("rank 2 is missing");
            let Some(CommError::Timeout { call, missing, .. }) = error.details() else {
                panic!("{error}");
            };
            assert_eq!((&missing[..], call.number), (&[2][..], 2)); // after the id and the first sum
        }
    });
}

/// Each rank reads the sum of one group before it calls the other.
#[test]
fn ranks_that_wait_for_each_other_get_the_verdict() {
    let test = "nccl::ranks_that_wait_for_each_other_get_the_verdict";
    in_each_order(2, &HANGS, test, &STREAMS[..2], || {
        let found = verdict(&Local::new(2).deadline(SOON), |rank| {
            let groups = [Group::new([0, 1])?, Group::new([1, 0])?];
            let [a, b] = groups.map(|group| rank.connect("pair", &group));
            let (a, b) = (a?, b?);
            let order = if rank.rank() == 0 { [&a, &b] } else { [&b, &a] };
            order.into_iter().try_for_each(|group| sum(rank, &**group, 4))
        });
        assert!(matches!(found, CommError::OrderInversion { .. }), "{found}");
    });
}

/// All ranks called the same, but NCCL waits: opposite messages are not in one group.
#[test]
fn a_collective_that_nccl_does_not_finish_is_an_error() {
    let test = "nccl::a_collective_that_nccl_does_not_finish_is_an_error";
    in_each_order(2, &HANGS, test, &STREAMS[..2], || {
        let errors = errors(&Local::new(2), |rank| {
            let mut options = GroupOptions::default();
            options.timeout = Some(SOON);
            let pair = rank.connect("pair", &Group::new([0, 1])?.with_options(options))?;
            let (x, other) = (ones(rank, 3)?, 1 - rank.rank());
            let sent = pair.send(&x, other)?;
            let received = pair.recv(&[3], DType::F32, other)?;
            received.wait()?.to_vec::<f32>()?;
            sent.wait()
        });
        for error in errors {
            let message = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Stuck, "{message}");
            assert!(message.contains("send(f32 x 3) of [0, 1]"), "{message}");
            assert!(message.contains("all members called it, but NCCL did not"), "{message}");
        }
    });
}

/// After a failure nothing of the GPU can be read: what was enqueued later has used other values.
#[test]
fn a_rank_that_fails_ends_the_others() {
    in_each_order(3, &HANGS, "nccl::a_rank_that_fails_ends_the_others", &STREAMS[..2], || {
        for panics in [false, true] {
            let failed = Local::new(3).launch(|base| {
                let rank = NcclRank::new(base, gpu(base.rank()))?;
                let (world, x) = (rank.world()?, ones(&rank, 2)?);
                sum(&rank, &*world, 4)?;
                if rank.rank() == 1 {
                    assert!(!panics, "as planned");
                    return Err(Error::new(ErrorKind::Invalid, "as planned"));
                }
                let error = sum(&rank, &*world, 4).unwrap_err();
                assert_eq!(error.details::<FailedRank>().map(|it| it.rank), Some(1), "{error}");
                assert_eq!(x.to_vec::<f32>().unwrap_err(), error);
                assert_eq!(world.barrier().unwrap_err(), error);
                Ok(())
            });
            let failed = failed.unwrap_err();
            assert_eq!(failed.details::<FailedRank>().map(|it| it.rank), Some(1), "{failed}");
        }
    });
}

#[test]
fn messages_arrive_when_a_collective_has_failed() {
    let test = "nccl::messages_arrive_when_a_collective_has_failed";
    in_each_order(3, &HANGS, test, &STREAMS[..1], || {
        over_nccl(3, |rank| conformance::check_control_after_failure(&rank)).unwrap();
    });
}
