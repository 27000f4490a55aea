//! Redistribution plans, executed on simulated ranks and compared with torch's.

mod simulate;
mod torch;

use meshgrad_mesh::{
    Action, Error, Hosts, Link, LinkCosts, Mesh, Placement, Redistribution, Reduction, Sharding,
};
use simulate::{Tensor, inside};

const NAMES: [&str; 3] = ["a", "b", "c"];

fn mesh(sizes: &[usize]) -> Mesh {
    Mesh::new(sizes, &NAMES[..sizes.len()]).unwrap()
}

fn shard(dim: usize) -> Placement {
    Placement::shard(dim)
}

fn partial(reduction: Reduction) -> Placement {
    Placement::Partial(reduction)
}

/// A plan with two ranks per host and 4 bytes per element.
fn plan(from: &Sharding, to: &Sharding) -> Result<Redistribution, Error> {
    Redistribution::plan(from, to, 32, &Hosts::Uniform(2), &LinkCosts::default())
}

/// A plan with all ranks on one host.
fn plan_within(from: &Sharding, to: &Sharding) -> Redistribution {
    Redistribution::plan(from, to, 32, &Hosts::Uniform(64), &LinkCosts::default()).unwrap()
}

/// All distinct shardings: every placement on each axis, in every explicit order.
fn shardings(mesh: &Mesh, shape: &[usize], ragged: &[Placement]) -> Vec<Sharding> {
    let mut kinds = vec![Placement::Replicate, shard(0), shard(1)];
    kinds.extend([Reduction::Sum, Reduction::Max, Reduction::Avg].map(partial));
    kinds.extend_from_slice(ragged);

    let mut lists: Vec<Vec<(&str, Placement)>> = vec![Vec::new()];
    for axis in &NAMES[..mesh.axes().len()] {
        let longer = |list: &Vec<(&'static str, Placement)>| {
            let mut lists = Vec::new();
            for kind in &kinds {
                for at in 0..=list.len() {
                    let mut list = list.clone();
                    list.insert(at, (*axis, kind.clone()));
                    lists.push(list);
                }
            }
            lists
        };
        lists = lists.iter().flat_map(longer).collect();
    }
    let mut shardings: Vec<Sharding> = Vec::new();
    for list in lists {
        match Sharding::new(mesh, list, shape) {
            Ok(sharding) if !shardings.contains(&sharding) => shardings.push(sharding),
            _ => {}
        }
    }
    shardings
}

/// A network on which only bytes matter, so that small tensors get the plans of large ones.
const SLOW: LinkCosts = LinkCosts {
    launch_ns: 1,
    within: Link { latency_ns: 0, ns_per_mib: 1 << 30 },
    across: Link { latency_ns: 0, ns_per_mib: 1 << 33 },
};

/// A plan exists unless a partial axis changes its reduction. It ends at the target, where each
/// rank holds its region of the same global value.
fn check(from: &Sharding, to: &Sharding) {
    let changed = from.partials().into_iter().any(|(axis, held)| {
        matches!(to.placement(axis).unwrap(), Placement::Partial(target) if target != held)
    });
    for links in [LinkCosts::default(), SLOW] {
        match Redistribution::plan(from, to, 32, &Hosts::Uniform(2), &links) {
            Ok(plan) => {
                assert!(!changed, "{from:?} to {to:?}: {plan}");
                check_plan(from, to, &plan);
            }
            Err(error) => {
                let refused = error.to_string().contains("from partial(");
                assert!(changed && refused, "{error}");
            }
        }
    }
}

fn check_plan(from: &Sharding, to: &Sharding, plan: &Redistribution) {
    let mut at = from;
    for step in plan.steps() {
        assert_eq!(step.from(), at, "{plan}");
        at = step.to();
    }
    assert_eq!(at, to, "{plan}");

    let tensor = Tensor::at(from);
    let value = tensor.value(from);
    let moved = tensor.run(plan);
    moved.check_regions(to);
    assert_eq!(moved.value(to), value, "{from:?} to {to:?}: {plan}");
}

fn check_all(shardings: &[Sharding]) {
    for from in shardings {
        for to in shardings {
            check(from, to);
        }
    }
}

#[test]
fn all_pairs_on_one_axis_are_correct() {
    for ranks in [2, 3, 4] {
        for shape in [[1, 3], [3, 5], [5, 7], [7, 1], [8, 4]] {
            let mut sizes = vec![0; ranks];
            sizes[ranks - 1] = shape[0];
            let last = Placement::ragged(0, sizes.clone());
            sizes[0] = 1;
            sizes[ranks - 1] -= 1;
            let shardings =
                shardings(&mesh(&[ranks]), &shape, &[last, Placement::ragged(0, sizes)]);
            assert!(shardings.len() >= 7);
            check_all(&shardings);
        }
    }
}

#[test]
fn all_pairs_on_two_axes_are_correct() {
    for sizes in [[2, 2], [2, 3], [3, 2]] {
        for shape in [[1, 3], [5, 7]] {
            let shardings = shardings(&mesh(&sizes), &shape, &[]);
            assert_eq!(shardings.len(), 34);
            check_all(&shardings);
        }
    }
}

/// A scalar such as a loss, and a tensor with a dim that is never sharded.
#[test]
fn all_pairs_of_other_shapes_are_correct() {
    let scalars = shardings(&mesh(&[2, 3]), &[], &[]);
    assert_eq!(scalars.len(), 12);
    check_all(&scalars);
    check_all(&shardings(&mesh(&[2, 2]), &[1, 3, 4], &[]));
}

/// Ragged shards nested inside and outside of even shards and of other ragged shards.
#[test]
fn ragged_pairs_on_two_axes_are_correct() {
    let ragged = [Placement::ragged(0, [1, 5]), Placement::ragged(0, [0, 3])];
    let shardings = shardings(&mesh(&[2, 2]), &[6, 3], &ragged);
    let is_ragged = |sharding: &&Sharding| sharding.to_string().contains('+');
    assert_eq!(shardings.iter().filter(is_ragged).count(), 14);
    check_all(&shardings);
}

/// Blocks and both ends, nested inside and outside of even shards, on one and two axes.
#[test]
fn pairs_of_shards_of_several_ranges_are_correct() {
    let several = [Placement::in_blocks(0, 5), Placement::head_and_tail(0)];
    for ranks in [2, 3, 4] {
        check_all(&shardings(&mesh(&[ranks]), &[10, 3], &several));
    }
    let shardings = shardings(&mesh(&[2, 2]), &[10, 2], &several);
    let has_blocks = |sharding: &&Sharding| sharding.to_string().contains("blocks");
    assert!(shardings.iter().filter(has_blocks).count() > 10);
    check_all(&shardings);
}

/// Tests every 37th pair.
#[test]
fn pairs_on_three_axes_are_correct() {
    let shardings = shardings(&mesh(&[2, 2, 2]), &[5, 7], &[]);
    let pairs = shardings.iter().flat_map(|from| shardings.iter().map(move |to| (from, to)));
    let mut count = 0;
    for (from, to) in pairs.step_by(37) {
        check(from, to);
        count += 1;
    }
    assert!(count > 1000, "{count} pairs of {}", shardings.len());
}

/// The stated traffic is exactly what has to move, except for padding.
#[test]
fn predicted_traffic_equals_moved_bytes() {
    for (sizes, shape) in [([2, 2], [8, 8]), ([2, 3], [12, 12]), ([3, 2], [5, 7])] {
        let shardings = shardings(&mesh(&sizes), &shape, &[]);
        for (from, to) in
            shardings.iter().flat_map(|from| shardings.iter().map(move |to| (from, to)))
        {
            let Ok(plan) = plan(from, to) else { continue };
            for step in plan.steps() {
                let moved = match step.action() {
                    Action::AllGather | Action::AllToAll => missing(step.from(), step.to()),
                    _ => continue,
                };
                let stated = step.traffic().received;
                let padded = step.action() == Action::AllGather && shape == [5, 7];
                assert!(stated == moved || padded && stated > moved, "{step}: {moved}");
            }
        }
    }
}

/// The most bytes that a rank has to receive.
fn missing(from: &Sharding, to: &Sharding) -> u64 {
    let missing = |rank: usize| {
        let (before, after) = (inside(from, rank), inside(to, rank));
        let missing = before.iter().zip(&after).filter(|(before, after)| !**before && **after);
        4 * missing.count() as u64
    };
    (0..from.mesh().len()).map(missing).max().unwrap()
}

/// Plans are also never slower under the same cost model. torch's merged steps count for this only
/// if they send no more bytes than its separate steps.
#[test]
fn plans_send_no_more_than_torch() {
    let (mut fewer, mut count) = (0, 0);
    for torch in torch::plans() {
        let meshes: &[&[usize]] = match torch.from.len() {
            1 => &[&[2], &[3], &[4]],
            2 => &[&[2, 2], &[2, 3], &[3, 2]],
            _ => &[&[2, 2, 2]],
        };
        for sizes in meshes {
            for shape in [[1, 3], [5, 7], [24, 36], [2400, 3600]] {
                let mesh = mesh(sizes);
                let from = torch::sharding(&mesh, &torch.from, &shape);
                let to = torch::sharding(&mesh, &torch.to, &shape);
                let ours = plan_within(&from, &to);
                let plain = torch.cost(&mesh, &shape, false);
                let merged = torch.cost(&mesh, &shape, true);

                let least = plain.bytes.min(merged.bytes);
                let mut quickest = plain.ns;
                if merged.bytes <= plain.bytes {
                    quickest = quickest.min(merged.ns);
                }
                assert_no_more(&ours, least, quickest);
                fewer += usize::from(ours.bytes() < least);
                count += 1;
            }
        }
    }
    assert_eq!(count, 4928);
    assert!(fewer > 1000, "{fewer}");
}

#[test]
fn plans_for_explicit_orders_send_no_more_than_torch() {
    let (mut fewer, mut count) = (0, 0);
    for (sizes, shape, torch) in torch::ordered_plans() {
        let mesh = mesh(&sizes);
        let from = torch::sharding(&mesh, &torch.from, &shape);
        let to = torch::sharding(&mesh, &torch.to, &shape);
        let ours = plan_within(&from, &to);
        let theirs = torch.cost(&mesh, &shape, false);
        assert_no_more(&ours, theirs.bytes, theirs.ns);
        fewer += usize::from(ours.bytes() < theirs.bytes);
        count += 1;
    }
    assert_eq!(count, 324);
    assert!(fewer > 100, "{fewer}");
}

fn assert_no_more(ours: &Redistribution, bytes: u64, ns: u64) {
    let cost = (ours.bytes(), ours.ns());
    assert!(cost.0 <= bytes, "{bytes} bytes against {cost:?}\n{ours}");
    assert!(cost.1 <= ns, "{ns} ns against {cost:?}\n{ours}");
}

fn lines(plan: &Redistribution) -> Vec<String> {
    plan.to_string().lines().map(str::to_owned).collect()
}

fn on_two_axes(placements: [(&str, Placement); 2], shape: &[usize]) -> Sharding {
    let mesh = Mesh::new(&[2, 4], &["dp", "tp"]).unwrap();
    Sharding::new(&mesh, placements, shape).unwrap()
}

/// Over a slow network a sum is reduced within hosts first, so that only a quarter of it crosses
/// hosts.
#[test]
fn a_sum_is_reduced_within_hosts_first() {
    let sum = || partial(Reduction::Sum);
    let from = on_two_axes([("dp", sum()), ("tp", sum())], &[1 << 20, 8]);
    let to = Sharding::replicated(from.mesh(), from.shape()).unwrap();
    let across = Redistribution::plan(&from, &to, 32, &Hosts::Uniform(4), &LinkCosts::default());
    assert_eq!(
        lines(&across.unwrap()),
        [
            "reduce_scatter(sum) over tp: dp: partial(sum), tp: partial(sum) \
             -> dp: partial(sum), tp: shard(0) (25165824 bytes)",
            "all_reduce(sum) over dp: dp: partial(sum), tp: shard(0) \
             -> dp: replicate, tp: shard(0) (8388608 bytes)",
            "all_gather over tp: dp: replicate, tp: shard(0) \
             -> dp: replicate, tp: replicate (25165824 bytes)",
        ]
    );
    assert_eq!(
        lines(&plan_within(&from, &to)),
        ["all_reduce(sum) over dp, tp: dp: partial(sum), tp: partial(sum) \
          -> dp: replicate, tp: replicate (58720256 bytes)"]
    );
}

/// Changing the order of two axes takes one all_to_all instead of a gather.
#[test]
fn a_change_of_order_is_one_all_to_all() {
    let from = on_two_axes([("dp", shard(0)), ("tp", shard(0))], &[4096, 4096]);
    let to = on_two_axes([("tp", shard(0)), ("dp", shard(0))], &[4096, 4096]);
    assert_eq!(
        lines(&plan(&from, &to).unwrap()),
        ["all_to_all over dp, tp: dp: shard(0), tp: shard(0) \
          -> tp: shard(0), dp: shard(0) (8388608 bytes)"]
    );
}

/// The middle axis is scattered; the outer two are reduced in one collective.
#[test]
fn axes_that_are_not_adjacent_reduce_together() {
    let mesh = mesh(&[2, 2, 2]);
    let sum = |axis| (axis, partial(Reduction::Sum));
    let from = Sharding::new(&mesh, NAMES.map(sum), &[4096, 4096]).unwrap();
    let to = Sharding::new(&mesh, [("b", shard(0))], &[4096, 4096]).unwrap();
    assert_eq!(
        lines(&plan_within(&from, &to)),
        [
            "reduce_scatter(sum) over b: a: partial(sum), b: partial(sum), c: partial(sum) \
             -> a: partial(sum), b: shard(0), c: partial(sum) (33554432 bytes)",
            "all_reduce(sum) over a, c: a: partial(sum), b: shard(0), c: partial(sum) \
             -> a: replicate, b: shard(0), c: replicate (50331648 bytes)",
        ]
    );
}

#[test]
fn equal_shardings_need_no_steps() {
    for sharding in shardings(&mesh(&[2, 3]), &[5, 7], &[]) {
        let plan = plan(&sharding, &sharding).unwrap();
        assert_eq!(plan.to_string(), "nothing to do");
        assert_eq!((plan.bytes(), plan.ns()), (0, 0));
    }
}

/// The most axes for which all moves are searched, and more.
#[test]
fn pairs_on_many_axes_are_correct() {
    for names in
        [&["a", "b", "c", "d"][..], &["a", "b", "c", "d", "e"], &["a", "b", "c", "d", "e", "f"]]
    {
        let mesh = Mesh::new(&vec![2; names.len()], names).unwrap();
        let sharding = |placement: Placement| {
            let along = names.iter().map(|axis| (*axis, placement.clone()));
            Sharding::new(&mesh, along.collect::<Vec<_>>(), &[20, 5]).unwrap()
        };
        let backwards: Vec<_> = names.iter().rev().map(|axis| (*axis, shard(0))).collect();
        let backwards = Sharding::new(&mesh, backwards, &[20, 5]).unwrap();
        check(&sharding(shard(0)), &sharding(shard(1)));
        check(&sharding(shard(0)), &backwards);
        check(&backwards, &sharding(partial(Reduction::Sum)));
        check(&sharding(partial(Reduction::Sum)), &backwards);
        check(&sharding(shard(1)), &sharding(partial(Reduction::Avg)));
    }
}

/// With six axes too, a change of order or of the dim is one all_to_all if bytes count most, and a
/// sum is reduced within hosts first.
#[test]
fn six_axes_move_together() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let mesh = Mesh::new(&[2; 6], &names).unwrap();
    let on = |placement: Placement, names: &[&str]| {
        let along = names.iter().map(|axis| (*axis, placement.clone()));
        Sharding::new(&mesh, along.collect::<Vec<_>>(), &[1 << 12, 1 << 12]).unwrap()
    };
    let backwards = ["f", "e", "d", "c", "b", "a"];
    for to in [on(shard(0), &backwards), on(shard(1), &names)] {
        let from = on(shard(0), &names);
        let plan = Redistribution::plan(&from, &to, 32, &Hosts::Uniform(2), &SLOW).unwrap();
        assert_eq!(plan.steps().len(), 1, "{plan}");
        assert_eq!(plan.steps()[0].action(), Action::AllToAll);
    }

    let sum = on(partial(Reduction::Sum), &names);
    let whole = Sharding::replicated(&mesh, sum.shape()).unwrap();
    let hosts = Hosts::Uniform(8);
    let across = Redistribution::plan(&sum, &whole, 32, &hosts, &LinkCosts::default()).unwrap();
    let ends = [across.steps().first(), across.steps().last()].map(|step| {
        let step = step.unwrap();
        (step.action().to_string(), step.axes().collect::<Vec<_>>().join(" "))
    });
    let expected = ["reduce_scatter(sum)", "all_gather"];
    assert_eq!(ends, expected.map(|action| (action.to_owned(), "d e f".to_owned())), "{across}");
}

#[test]
fn impossible_redistributions_are_errors() {
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    let sharding = |placement| Sharding::new(&mesh, [("tp", placement)], &[4, 4]).unwrap();
    let error = |from: &Sharding, to: &Sharding| plan(from, to).unwrap_err().to_string();

    assert_eq!(
        error(&sharding(partial(Reduction::Sum)), &sharding(partial(Reduction::Max))),
        "cannot redistribute axis `tp` from partial(sum) to partial(max): redistribute to replicate \
         or shard first"
    );
    let reshaped = Sharding::new(&mesh, [("tp", shard(0))], &[16]).unwrap();
    assert_eq!(
        error(&sharding(shard(0)), &reshaped),
        "cannot redistribute from shape [4, 4] to [16]: reshape first"
    );
    let flat = Mesh::new(&[4], &["tp"]).unwrap();
    let elsewhere = Sharding::new(&flat, [("tp", shard(0))], &[4, 4]).unwrap();
    assert_eq!(
        error(&sharding(shard(0)), &elsewhere),
        "cannot redistribute from mesh dp 2 x tp 2 of ranks [0, 1, 2, 3] to mesh tp 4 of ranks \
         [0, 1, 2, 3]: transfer it between the meshes, or state both shardings on one mesh, from \
         which these can be derived by select, split and flatten"
    );
}
