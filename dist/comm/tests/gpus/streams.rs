//! What only streams have: the host does not wait, and memory is kept until the work is done.

use std::time::Duration;

use meshgrad_comm::{Collectives, FailedRank, LocalRank, Rank, Reduction, Verdict};
use meshgrad_mesh::Mesh;
use meshgrad_runtime::{
    DType, Error, ErrorKind, Kind, Result, Shape, Tensor, UninitTensor, ops, with_stream,
};

use super::{STREAMS, gpus, in_each_order, is_real};

fn full(rank: &LocalRank, count: usize, value: f64) -> Result<Tensor> {
    ops::full(rank.device(), &[count], DType::F32, value)
}

/// The host enqueues a kernel, the collective and another kernel without waiting.
#[test]
fn the_host_does_not_wait() {
    in_each_order("streams::the_host_does_not_wait", &STREAMS, || {
        let results = gpus(3).launch(|rank| {
            let world = rank.world()?;
            let waits = rank.device().waits();
            let x = full(rank, 300, 1.0)?;
            let sum = world.all_reduce(&x, Reduction::Sum)?.wait()?;
            let all = world.all_gather(&ops::add(&sum, &x)?)?.wait()?;
            let doubled = ops::add(&all, &all)?;
            assert_eq!(rank.device().waits(), waits);
            assert_eq!(doubled.to_vec::<f32>()?, [8.0; 900]);
            assert_eq!(rank.device().waits(), waits + 1);
            Ok::<_, Error>(())
        });
        results.unwrap();
    });
}

/// Operands and results may be dropped at any time, even before other members start.
#[test]
fn memory_is_kept_until_the_work_is_done() {
    let test = "streams::memory_is_kept_until_the_work_is_done";
    in_each_order(test, &STREAMS, || {
        let results = gpus(3).launch(|rank| {
            let world = rank.world()?;
            let live = rank.device().memory_stats().live;
            for round in 0..20 {
                let x = full(rank, 100, (round * (rank.rank() + 1)) as f64)?;
                let pending = world.all_reduce(&x, Reduction::Sum)?;
                drop(x);
                let other = full(rank, 100, -1.0)?; // would overwrite memory that is freed too early
                if (round + rank.rank()).is_multiple_of(3) {
                    drop(pending);
                } else {
                    let sum = pending.wait()?.to_vec::<f32>()?;
                    assert_eq!(sum, [(6 * round) as f32; 100]);
                }
                drop(other);
            }
            world.barrier()?.wait()?;
            assert_eq!(rank.device().memory_stats().live, live);
            Ok::<_, Error>(())
        });
        results.unwrap();
    });
}

/// The thread of the last member waits for the GPU of one that has dropped its `Pending`.
#[test]
fn the_host_waits_for_a_dropped_pending() {
    let test = "streams::the_host_waits_for_a_dropped_pending";
    in_each_order(test, &STREAMS[..2], || {
        let results = gpus(2).launch(|rank| {
            let world = rank.world()?;
            let x = full(rank, 100, 1.0)?;
            let waits = rank.device().waits();
            let other = 1 - rank.rank();
            if rank.rank() == 0 {
                drop(world.all_reduce(&x, Reduction::Sum)?);
                world.send(&x, other)?.wait()?; // rank 1 starts after this
                world.recv(&[100], DType::F32, other)?.wait()?;
            } else {
                world.recv(&[100], DType::F32, other)?.wait()?;
                let sum = world.all_reduce(&x, Reduction::Sum)?.wait()?;
                world.send(&sum, other)?.wait()?;
            }
            let expected = u64::from(rank.rank() == 0);
            assert_eq!(rank.device().waits() - waits, expected);
            Ok::<_, Error>(())
        });
        results.unwrap();
    });
}

/// A collective of one rank is a copy, which a graph can contain.
#[test]
fn a_world_of_one_can_be_captured() {
    let test = "streams::a_world_of_one_can_be_captured";
    in_each_order(test, &STREAMS[..1], || {
        let results = gpus(1).launch(|rank| {
            let (world, x) = (rank.world()?, full(rank, 5, 3.0)?);
            let into = Tensor::zeros(rank.device(), &[5], DType::F32, Kind::Cache)?;
            let mut graph = rank.device().capture(|| {
                let sum = world.all_reduce(&x, Reduction::Mean)?.wait()?;
                world.all_gather_into(&sum, &into)?.wait().map(drop)
            })?;
            graph.launch()?;
            drop(graph);
            assert_eq!(into.to_vec::<f32>()?, [3.0; 5]);
            Ok::<_, Error>(())
        });
        results.unwrap();
    });
}

#[test]
fn collectives_cannot_be_captured() {
    let test = "streams::collectives_cannot_be_captured";
    in_each_order(test, &STREAMS[..1], || {
        let results = gpus(2).launch(|rank| {
            let world = rank.world()?;
            let x = full(rank, 5, 1.0)?;
            let captured = || world.all_reduce(&x, Reduction::Sum).map(drop);
            let error = rank.device().capture(captured).err().unwrap().to_string();
            let expected =
                "all_reduce of [0, 1] during Device::capture: the transport of this group";
            assert!(error.contains(expected), "{error}");
            let sum = world.all_reduce(&x, Reduction::Sum)?.wait()?;
            assert_eq!(sum.to_vec::<f32>()?, [2.0; 5]);
            Ok::<_, Error>(())
        });
        results.unwrap();
    });
}

/// All members get the error of the device that fails. The others can be used afterwards.
#[test]
fn a_device_error_is_returned_to_all_members() {
    let test = "streams::a_device_error_is_returned_to_all_members";
    if is_real() {
        println!("skipped: only the emulator reports reads of what was never written");
        return;
    }
    in_each_order(test, &STREAMS[..1], || {
        let results = gpus(3).launch(|rank| {
            let device = rank.device();
            let waits = device.waits();
            let x = match rank.rank() {
                // The reduction on the root compares what was never written.
                2 => UninitTensor::new(device, Shape::new(&[5])?, DType::F64)?.finish(),
                _ => ops::full(device, &[5], DType::F64, 1.0)?,
            };
            let largest = rank.world()?.reduce(&x, Reduction::Max, 1)?.wait();
            let error = largest.map(drop).unwrap_err();
            assert!(error.to_string().contains(" could not launch `"), "{error}");
            if rank.rank() != 1 {
                assert_eq!(device.waits(), waits);
                assert_eq!(full(rank, 5, 2.0)?.to_vec::<f32>()?, [2.0; 5]);
            }
            Ok::<_, Error>(())
        });
        results.unwrap();
    });
}

#[test]
fn a_buffer_is_busy_until_the_wait() {
    let test = "streams::a_buffer_is_busy_until_the_wait";
    in_each_order(test, &STREAMS[..2], || {
        let results = gpus(2).launch(|rank| {
            let world = rank.world()?;
            let x = Tensor::zeros(rank.device(), &[5], DType::F32, Kind::Gradient)?;
            ops::fill_into(&x, 2.0)?;
            let pending = world.all_reduce_in_place(&x, Reduction::Sum)?;
            let busy = ops::fill_into(&x, 1.0);
            assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
            let again = world.all_reduce_in_place(&x, Reduction::Sum);
            assert_eq!(again.map(drop).unwrap_err().kind(), ErrorKind::Busy);
            pending.wait()?;
            assert_eq!(x.to_vec::<f32>()?, [4.0; 5]);
            ops::fill_into(&x, 1.0)
        });
        results.unwrap();
    });
}

/// Collectives use the current stream, inside a stream scope and outside of any.
#[test]
fn collectives_follow_the_current_stream() {
    let test = "streams::collectives_follow_the_current_stream";
    in_each_order(test, &STREAMS, || {
        let results = gpus(2).launch(|rank| {
            let world = rank.world()?;
            let side = rank.device().stream()?;
            let pending = with_stream(&side, || {
                let x = full(rank, 1000, rank.rank() as f64 + 1.0)?;
                let sum = world.all_reduce(&x, Reduction::Sum)?.wait()?;
                drop(world.all_reduce(&x, Reduction::Max)?);
                ops::add(&sum, &x)
            })?;
            let values = pending.wait()?.to_vec::<f32>()?;
            assert_eq!(values, [4.0 + rank.rank() as f32; 1000]);

            // The result is of the outer stream, and is waited for and dropped on the inner one.
            let x = full(rank, 1000, 1.0)?;
            let sum = world.all_reduce(&x, Reduction::Sum)?;
            let twice = with_stream(&side, || ops::add(&sum.wait()?, &x))?;
            let other = full(rank, 1000, -1.0)?;
            assert_eq!(twice.wait()?.to_vec::<f32>()?, [3.0; 1000]);
            drop(other);
            Ok::<_, Error>(())
        });
        results.unwrap();
    });
}

/// Groups that overlap, several collectives in flight, results of one as operands of another.
#[test]
fn groups_overlap() {
    in_each_order("streams::groups_overlap", &STREAMS, || {
        let mesh = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
        let results = gpus(4).launch(|rank| {
            let connect = |axis: &str| {
                let group = mesh.group([axis], rank.rank())?;
                rank.connect(axis, &group.expect("a member"))
            };
            let (dp, tp) = (connect("dp")?, connect("tp")?);
            for round in 0..5 {
                let own = full(rank, 70, (rank.rank() + round) as f64)?;
                let of_tp = tp.all_reduce(&own, Reduction::Sum)?;
                let of_dp = dp.all_gather(&own)?;
                let both = dp.all_reduce(&of_tp.wait()?, Reduction::Sum)?;
                let rows = of_dp.wait()?.to_vec::<f32>()?;
                let column = rank.rank() % 2;
                assert_eq!(rows[..70], [(column + round) as f32; 70]);
                assert_eq!(rows[70..], [(column + 2 + round) as f32; 70]);
                let sum = both.wait()?.to_vec::<f32>()?;
                assert_eq!(sum, [(6 + 4 * round) as f32; 70]);
            }
            Ok::<_, Error>(())
        });
        results.unwrap();
    });
}

/// Tests verdicts on a missing rank, a mismatch and a rank that failed. A verdict frees what was
/// lent, and the same devices can join another world.
#[test]
fn verdicts_are_the_same_as_on_cpu_devices() {
    let test = "streams::verdicts_are_the_same_as_on_cpu_devices";
    in_each_order(test, &STREAMS[..2], || {
        let local = gpus(3).simulated(1).deadline(Duration::from_secs(10));
        let results = local.launch(|rank| {
            let live = rank.device().memory_stats().live;
            let x = full(rank, 5, 1.0)?;
            let world = rank.world()?;
            if rank.rank() == 2 {
                rank.clock().sleep(Duration::from_secs(3600));
                return Ok(());
            }
            let error = world.all_reduce(&x, Reduction::Sum)?.wait().unwrap_err();
            assert_eq!(Verdict::of(&error), Some(Verdict::MissingRank), "{error}");
            drop(x);
            assert_eq!(rank.device().memory_stats().live, live);
            Ok::<_, Error>(())
        });
        results.unwrap();

        let results = local.launch(|rank| {
            let x = full(rank, 5 + rank.rank() / 2, 1.0)?;
            let sum = rank.world()?.all_reduce(&x, Reduction::Sum);
            let error = sum.and_then(|sum| sum.wait()).unwrap_err();
            assert_eq!(Verdict::of(&error), Some(Verdict::Mismatch), "{error}");
            Ok::<_, Error>(())
        });
        results.unwrap();

        let results = local.launch(|rank| {
            let world = rank.world()?;
            let x = full(rank, 5, 1.0)?;
            match rank.rank() {
                1 => Err(Error::new(ErrorKind::Invalid, "as planned")),
                _ => world.all_reduce(&x, Reduction::Sum)?.wait().map(drop),
            }
        });
        let error = results.unwrap_err();
        assert_eq!(error.to_string(), "rank 1: as planned");
        assert!(error.details::<FailedRank>().is_some());

        let results = local.launch(|rank| {
            let x = full(rank, 5, 1.0)?;
            let sum = rank.world()?.all_reduce(&x, Reduction::Sum)?.wait()?;
            assert_eq!(sum.to_vec::<f32>()?, [3.0; 5]);
            Ok::<_, Error>(())
        });
        results.unwrap();
    });
}
