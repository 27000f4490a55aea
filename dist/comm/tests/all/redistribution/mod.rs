//! Redistributions on the ranks of a world: the values after any plan are those of the global
//! tensor, and planted faults are found.

mod bodies;
mod checkpoints;
mod chunks;
mod gradients;
mod norm;
mod planned;
mod programs;
mod recorder;
mod started;
mod strict;
mod transfers;
mod vocabulary;

use std::sync::Arc;

use approx::relative_eq;
use meshgrad_collectives::{Redistribute, full_concat, redistribute, with_redistribution};
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::{Mesh, Placement, Reduction, Sharding};
use meshgrad_runtime::{Device, Error, Result, Tensor, ops};

use recorder::{Deviation, Recorder};

use crate::parts::{assemble, part};

/// Distinct small integers, so that sums are exact in f32.
fn whole(device: &Device, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..count).map(|at| at as f32 + 1.0).collect();
    Tensor::from_slice(device, shape, &numbers).unwrap()
}

/// Every sharding of a tensor on a mesh, with both orders of two axes on one dim, ragged shards and
/// partial sums; on one axis, also shards of several ranges.
fn shardings(mesh: &Mesh, shape: &[usize]) -> Vec<Sharding> {
    let mut lists: Vec<Vec<(String, Placement)>> = vec![Vec::new()];
    for axis in mesh.axes() {
        let mut placements = vec![Placement::Replicate, Placement::Partial(Reduction::Sum)];
        placements.extend((0..shape.len()).map(Placement::shard));
        let mut sizes = vec![0; axis.size()];
        sizes[axis.size() - 1] = shape[0];
        placements.push(Placement::ragged(0, sizes));
        let last = shape.len() - 1;
        if mesh.axes().len() == 1 {
            placements.push(Placement::head_and_tail(0));
            placements.push(Placement::in_blocks(last, 2));
        }
        let longer = |list: &Vec<(String, Placement)>| {
            let mut longer = Vec::new();
            for placement in &placements {
                let next = (axis.name().to_owned(), placement.clone());
                let mut after = list.clone();
                after.push(next.clone());
                longer.push(after);
                let mut before = list.clone();
                before.insert(0, next);
                longer.push(before);
            }
            longer
        };
        lists = lists.iter().flat_map(longer).collect();
    }
    let mut shardings: Vec<Sharding> = Vec::new();
    for list in lists {
        // Ragged shards and blocks cannot always be nested.
        if let Ok(sharding) = Sharding::new(mesh, &list, shape)
            && !shardings.contains(&sharding)
        {
            shardings.push(sharding);
        }
    }
    shardings
}

/// Every `step`th pair of shardings, at which a rank redistributes a tensor.
fn pairs(mesh: &Mesh, shape: &[usize], step: usize) -> Vec<[Sharding; 2]> {
    let all = shardings(mesh, shape);
    let pairs = all.iter().flat_map(|from| all.iter().map(move |to| [from.clone(), to.clone()]));
    pairs.step_by(step).collect()
}

/// What a rank has of each pair's target.
fn redistributed(rank: &dyn Rank, pairs: &[[Sharding; 2]]) -> Result<Vec<Tensor>> {
    let redistributor = Redistributor::new(rank);
    let each = pairs.iter().map(|[from, to]| {
        let x = part(&whole(rank.device(), from.shape()), from, rank.rank());
        redistributor.redistribute(&x, to)
    });
    each.collect()
}

/// Asserts that the ranks' parts of each pair are those of the whole.
fn check(pairs: &[[Sharding; 2]], results: &[Vec<Tensor>]) {
    for (at, [from, to]) in pairs.iter().enumerate() {
        let what = format!("{from} -> {to} of {:?}", to.shape());
        let parts: Vec<Tensor> = results.iter().map(|result| result[at].clone()).collect();
        assert_eq!(parts[0].sharding(), Some(to), "{what}");
        let actual = assemble(&parts, &what);
        let expected = whole(actual.device(), to.shape());
        assert_eq!(actual.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap(), "{what}");
    }
}

/// The ranks' results on one device, so that they can be compared.
fn on_one_device(results: &[Vec<Tensor>]) -> Vec<Vec<Tensor>> {
    let device = Device::cpu();
    let moved = |x: &Tensor| ops::to_device(x, &device).unwrap();
    let all = results.iter();
    all.map(|parts| parts.iter().map(moved).collect()).collect()
}

fn check_mesh(mesh: &Mesh, shape: &[usize], step: usize) -> usize {
    let pairs = pairs(mesh, shape, step);
    let results = Local::run(mesh.ranks().len(), |rank| redistributed(rank, &pairs)).unwrap();
    check(&pairs, &on_one_device(&results));
    pairs.len()
}

/// Values of every sharding, also partial maxima, are concatenated whole.
#[test]
fn values_of_any_sharding_are_concatenated() {
    let (mesh, shape) = (Mesh::new(&[2, 3], &["dp", "tp"]).unwrap(), [7, 5]);
    let of_values = shardings(&mesh, &shape);
    let maximum = |whole: &Tensor, rank: usize, tp: Placement| {
        let own = part(whole, &Sharding::new(&mesh, [("tp", tp.clone())], &shape)?, rank).local();
        let share = ops::affine(&own, 1.0, if rank < 3 { 0.0 } else { -99.0 })?;
        let placements = [("dp", Placement::Partial(Reduction::Max)), ("tp", tp)];
        share.with_sharding(&Sharding::new(&mesh, placements, &shape)?, rank)
    };
    let results = Local::run(6, |rank| {
        let (whole, rank_number) = (whole(rank.device(), &shape), rank.rank());
        let mut values: Vec<Tensor> =
            of_values.iter().map(|sharding| part(&whole, sharding, rank_number)).collect();
        for tp in [Placement::Replicate, Placement::shard(0)] {
            values.push(maximum(&whole, rank_number, tp)?);
        }
        Redistributor::new(rank).run_on(&mesh, || {
            let all = full_concat(&values.iter().collect::<Vec<_>>())?;
            Ok::<_, Error>((all.local().to_vec::<f32>()?, whole.to_vec::<f32>()?))
        })
    });
    for (actual, whole) in results.unwrap() {
        assert_eq!(actual, whole.repeat(of_values.len() + 2));
    }
}

#[test]
fn every_pair_of_shardings_on_one_axis() {
    for ranks in [2, 3, 5] {
        let mesh = Mesh::new(&[ranks], &["tp"]).unwrap();
        for shape in [&[7, 4][..], &[2, 5], &[0, 3], &[6]] {
            check_mesh(&mesh, shape, 1);
        }
    }
}

#[test]
fn every_pair_of_shardings_on_two_axes() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    assert!(check_mesh(&mesh, &[7, 5], 1) > 500);
}

/// Shards of several ranges inside and outside of others, to and from each other.
#[test]
fn pairs_of_shards_of_several_ranges_on_two_axes() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let (ends, blocks, rows) =
        (Placement::head_and_tail(0), Placement::in_blocks(0, 5), Placement::shard(0));
    let (columns, whole) = (Placement::shard(1), Placement::Replicate);
    let sum = Placement::Partial(Reduction::Sum);
    let list = [
        [("dp", &rows), ("tp", &ends)],
        [("tp", &blocks), ("dp", &rows)],
        [("tp", &blocks), ("dp", &ends)],
        [("dp", &ends), ("tp", &ends)],
        [("dp", &blocks), ("tp", &columns)],
        [("dp", &sum), ("tp", &ends)],
        [("dp", &blocks), ("tp", &sum)],
        [("dp", &whole), ("tp", &rows)],
        [("dp", &whole), ("tp", &whole)],
    ];
    let sharding = |placements: &[(&str, &Placement); 2]| {
        let placements = placements.map(|(axis, placement)| (axis, placement.clone()));
        Sharding::new(&mesh, placements, &[10, 3]).unwrap()
    };
    let all: Vec<Sharding> = list.iter().map(sharding).collect();
    let pairs = all.iter().flat_map(|from| {
        let pair = |to: &Sharding| [from.clone(), to.clone()];
        all.iter().map(pair)
    });
    let pairs: Vec<[Sharding; 2]> = pairs.collect();
    let results = Local::run(6, |rank| redistributed(rank, &pairs)).unwrap();
    check(&pairs, &on_one_device(&results));
}

#[test]
fn pairs_of_shardings_on_three_axes() {
    let mesh = Mesh::new(&[2, 2, 2], &["pp", "dp", "tp"]).unwrap();
    assert!(check_mesh(&mesh, &[9, 3], 29) > 500);
}

/// Named axes change, the others stay, and new shards are inside existing ones.
#[test]
fn axes_that_are_not_named_keep_their_placements() {
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    let texts = Local::run(4, |rank| -> Result<_> {
        let from = Sharding::new(&mesh, [("tp", Placement::shard(0))], &[8, 2]).unwrap();
        let x = part(&whole(rank.device(), &[8, 2]), &from, rank.rank());
        with_redistribution(Arc::new(Redistributor::new(rank)), || {
            let x = redistribute(&x, [("dp", Placement::shard(0))])?;
            let both = x.sharding().unwrap().axes_of_dim(0).join(" ");
            let x = redistribute(&x, [("tp", Placement::Replicate)])?;
            let same = redistribute(&x, [("dp", Placement::shard(0))])?;
            assert_eq!(same.storage_id(), x.storage_id());
            Ok(format!("{both}, then {}", x.sharding().unwrap()))
        })
    })
    .unwrap();
    assert_eq!(texts[0], "tp dp, then dp: shard(0), tp: replicate");
}

/// The same source gives a rank its shard of what every rank has whole, without communication, and a
/// single rank the whole.
#[test]
fn shards_of_replicated_tensors_send_nothing() {
    let mesh = Mesh::new(&[3], &["tp"]).unwrap();
    let shard = |device: &Device| -> Result<Tensor> {
        let x = whole(device, &[4, 2]).as_replicated()?;
        redistribute(&x, [("tp", Placement::shard(0))])
    };
    let parts = Local::run(3, |rank| -> Result<_> {
        let recorder = Recorder::default();
        let redistributor = Redistributor::new(&recorder.on(rank, Deviation::None));
        let part = redistributor.run_on(&mesh, || shard(rank.device()))?;
        assert_eq!(recorder.take(), []);
        Ok(vec![part])
    });
    let parts: Vec<Tensor> = on_one_device(&parts.unwrap()).concat();
    assert_eq!(parts[2].shape().to_vec(), [0, 2]);
    let alone = shard(&Device::cpu()).unwrap();
    let values = |x: &Tensor| x.to_vec::<f32>().unwrap();
    assert_eq!(values(&assemble(&parts, "the shards")), values(&alone));

    let outside = Mesh::from_ranks(&[1, 2], &[2], &["tp"]).unwrap();
    let refused =
        Local::run(1, |rank| Redistributor::new(rank).run_on(&outside, || shard(rank.device())));
    assert!(refused.unwrap_err().to_string().contains("not in the mesh"));
}

#[test]
fn invalid_redistributions_are_errors() {
    let mesh = Mesh::new(&[2], &["tp"]).unwrap();
    Local::run(2, |rank| -> Result<_> {
        let redistributor = Arc::new(Redistributor::new(rank));
        let sharding = Sharding::new(&mesh, [("tp", Placement::shard(0))], &[4]).unwrap();
        let x = part(&whole(rank.device(), &[4]), &sharding, rank.rank());
        let message = |x: &Tensor, placements: &[(&str, Placement)]| {
            let moved = with_redistribution(redistributor.clone(), || redistribute(x, placements));
            moved.unwrap_err().to_string()
        };
        assert!(message(&x, &[("dp", Placement::Replicate)]).contains("`dp`"));
        assert!(message(&x, &[("tp", Placement::shard(1))]).contains("dim 1"));
        let other = part(&whole(rank.device(), &[4]), &sharding, 1 - rank.rank());
        message(&other, &[("tp", Placement::Replicate)]);
        assert!(message(&x.local(), &[("tp", Placement::Replicate)]).contains("no sharding"));
        let alone = redistribute(&x.local(), [("tp", Placement::Replicate)])?;
        assert_eq!(alone.storage_id(), x.storage_id());

        let longer = Sharding::replicated(&mesh, &[5]).unwrap();
        assert!(redistributor.redistribute(&x, &longer).is_err());
        assert!(redistributor.redistribute(&x.local(), &sharding).is_err());
        let outside = redistribute(&x, [("tp", Placement::Replicate)]).unwrap_err();
        assert!(outside.to_string().contains("with_redistribution"), "{outside}");
        Ok(())
    })
    .unwrap();
}

/// Whether the ranks' parts together are near `expected`, in f32.
fn near(parts: &[Tensor], expected: &Tensor) -> bool {
    let actual = assemble(parts, "the result").to_vec::<f32>().unwrap();
    let expected = expected.to_vec::<f32>().unwrap();
    relative_eq!(actual[..], expected[..], epsilon = 1e-5, max_relative = 1e-5)
}

/// Each fault is found in a redistribution that communicates.
#[test]
fn planted_faults_are_found() {
    let mesh = Mesh::new(&[3], &["tp"]).unwrap();
    let even = |placement: Placement| Sharding::new(&mesh, [("tp", placement)], &[6, 3]).unwrap();
    let (rows, columns) = (even(Placement::shard(0)), even(Placement::shard(1)));
    let (partial, replicated) =
        (even(Placement::Partial(Reduction::Sum)), even(Placement::Replicate));
    let pairs = [
        [rows.clone(), replicated.clone()],
        [rows.clone(), columns],
        [partial.clone(), rows],
        [partial, replicated],
    ];
    for fault in Fault::ALL {
        for pair in &pairs {
            let pair = std::slice::from_ref(pair);
            let results =
                Local::run(3, |rank| redistributed(&RewiredRank::faulty(rank, fault), pair));
            let Ok(results) = results else { continue };
            let results = on_one_device(&results);
            let checked = std::panic::catch_unwind(|| check(pair, &results));
            // A sum does not depend on the order of its terms.
            let is_sum = pair[0][0].partials().len() == 1 && pair[0][1].is_replicated();
            assert_eq!(checked.is_err(), !(is_sum && fault == Fault::Swapped), "{fault:?}");
        }
    }
}
