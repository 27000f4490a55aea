//! The conformance suite, planted faults, and the registry.

use std::num::NonZeroUsize;
use std::time::Duration;

use meshgrad_comm::conformance::{self, Fault, Faulty};
use meshgrad_comm::{Collectives, Rank, Reduction};
use meshgrad_mesh::{Channel, Group, Mesh};
use meshgrad_runtime::{DType, Kind, Tensor};

use crate::tcp::worlds::{DEADLINE, run};

/// The larger counts take two rounds of an all_reduce, from 3 ranks on.
#[test]
fn worlds_conform() {
    for ranks in [1, 2, 3, 5] {
        run(ranks, DEADLINE, |world| {
            let all = world.world().unwrap();
            conformance::check(&*all, &[0, 1, 7, 2049, 9001]).unwrap();
        });
    }
}

/// Large operands are sent from their own memory, so they can be written again after `wait` only.
#[test]
fn large_operands_are_lent_until_they_are_sent() {
    run(3, DEADLINE, |world| {
        let all = world.world().unwrap();
        let x = Tensor::zeros(world.device(), &[50_000], DType::F32, Kind::Cache).unwrap();
        for round in 0..30u8 {
            x.write::<f32>("fill").unwrap().fill(round.into());
            let pending = all.all_reduce(&x, Reduction::Sum).unwrap();
            assert!(x.write::<f32>("fill").is_err());
            let sum = pending.wait().unwrap().to_vec::<f32>().unwrap();
            assert!(sum.iter().all(|sum| *sum == 3.0 * f32::from(round)));
        }
    });
}

#[test]
fn groups_in_another_order_conform() {
    let group = Group::new([3, 0, 2]).unwrap();
    run(4, DEADLINE, |world| {
        if world.rank() != 1 {
            let comm = world.connect("reordered", &group).unwrap();
            conformance::check(&*comm, &[1, 5]).unwrap();
        }
    });
}

#[test]
fn every_check_detects_every_fault() {
    let checks = conformance::checks();
    for check in checks.iter().filter(|check| check.dtype() == DType::F32) {
        for fault in [Fault::None].into_iter().chain(Fault::ALL) {
            if fault != Fault::None && !fault.is_detected_by(check) {
                continue;
            }
            let all = run(3, Duration::from_secs(20), |world| {
                let group = Group::new([0, 1, 2]).unwrap();
                let order = Group::new(fault.order(group.ranks())).unwrap();
                let inner = world.connect("faulty", &order).unwrap();
                let checked = check.run(&Faulty::new(fault, group, inner), 257);
                checked.map_err(|error| error.to_string())
            });
            // With members swapped, the root of the transport is a rank that passes no tensor.
            let detects = |problem: &String| {
                problem.contains("differs") || problem.contains("but the call needs")
            };
            let differs = |one: &Result<(), String>| one.as_ref().is_err_and(detects);
            match fault {
                Fault::None => assert_eq!(all, [Ok(()), Ok(()), Ok(())]),
                _ => {
                    assert!(all.iter().any(differs), "{} accepts {fault:?}: {all:?}", check.name())
                }
            }
        }
    }
}

/// Plans are compared over the control plane, and groups of a mesh sum over their axes, on two
/// channels at a time.
#[test]
fn plans_are_compared_and_groups_sum_over_their_axes() {
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    run(4, DEADLINE, |world| {
        let rank = world.rank();
        let group = |axis| mesh.group([axis], rank).unwrap().unwrap();
        let registry = world.registry();
        let handles: Vec<_> = ["dp", "tp"]
            .map(|axis| registry.share(axis, &group(axis)).unwrap().handle())
            .into_iter()
            .flatten()
            .collect();
        let plan = registry.plan().with_mesh(&mesh);
        let agreed = plan.agree(&mut world.exchange()).unwrap();
        registry.materialize(&agreed, NonZeroUsize::MIN).unwrap();
        while !registry.poll(Duration::ZERO).is_idle() {}
        assert!(handles.iter().all(|handle| handle.get().is_some()));

        let x = Tensor::scalar(world.device(), rank as f32).unwrap();
        let dp = world.connect("dp", &group("dp")).unwrap();
        let other = group("tp").with_channel(Channel::Reduce);
        let tp = world.connect("tp", &other).unwrap();
        let pending = tp.all_reduce(&x, Reduction::Sum).unwrap();
        let over_dp = dp.all_reduce(&x, Reduction::Sum).unwrap().wait().unwrap();
        let over_tp = pending.wait().unwrap();
        assert_eq!(over_dp.item::<f32>(), Ok((2 * (rank % 2) + 2) as f32));
        assert_eq!(over_tp.item::<f32>(), Ok((4 * (rank / 2) + 1) as f32));
    });
}

#[test]
fn plans_that_differ_are_an_error_on_all_ranks() {
    let errors = run(3, DEADLINE, |world| {
        let ranks = match world.rank() {
            2 => vec![1, 0, 2],
            _ => vec![0, 1, 2],
        };
        let group = Group::new(ranks).unwrap();
        let _handle = world.registry().share("actor", &group).unwrap();
        let agreed = world.registry().plan().agree(&mut world.exchange());
        agreed.unwrap_err().to_string()
    });
    assert!(errors[0].contains("rank 2 does not"), "{}", errors[0]);
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}

/// The threads of a world end with it, and the next world is independent.
#[test]
fn a_process_can_join_worlds_one_after_another() {
    for round in 0..5 {
        let sums = run(3, DEADLINE, |world| {
            let x = Tensor::scalar(world.device(), (world.rank() + round) as i64).unwrap();
            let sum = world.world().unwrap().all_reduce(&x, Reduction::Sum);
            sum.unwrap().wait().unwrap().item::<i64>().unwrap()
        });
        assert_eq!(sums, [3 + 3 * round as i64; 3]);
    }
}
