//! Where a tensor is, against torch and against counting.

use std::ops::Range;

use meshgrad_mesh::{Mesh, Placement, Reduction, Sharding, ShardingError};

const SUM: Placement = Placement::Partial(Reduction::Sum);
const MAX: Placement = Placement::Partial(Reduction::Max);
const AVG: Placement = Placement::Partial(Reduction::Avg);

const NAMES: [&str; 3] = ["a", "b", "c"];

fn mesh(sizes: &[usize]) -> Mesh {
    Mesh::new(sizes, &NAMES[..sizes.len()]).unwrap()
}

fn shard(dim: usize) -> Placement {
    Placement::shard(dim)
}

fn numbers(text: &str, sign: char) -> Vec<usize> {
    text.split(sign)
        .map(|number| number.parse().unwrap())
        .collect()
}

/// `T0` on an axis is torch's way to say that the next one shards first.
fn placed(mesh: &Mesh, names: &str, shape: &[usize]) -> Sharding {
    let placements = names.split(' ').zip(NAMES).map(|(name, axis)| {
        let placement = match name {
            "R" => Placement::Replicate,
            "S1" => shard(1),
            _ => shard(0),
        };
        (axis, placement)
    });
    let mut placements: Vec<_> = placements.collect();
    if names.starts_with('T') {
        placements.reverse();
    }
    Sharding::new(mesh, placements, shape).unwrap()
}

/// `5x2 on 2 as S0: 3x2@0,0 2x2@3,0`, the boxes by rank.
#[test]
fn boxes_are_those_of_torch() {
    let lines = include_str!("golden/torch-boxes.txt").lines();
    let mut count = 0;
    for line in lines {
        let (head, boxes) = line.split_once(": ").unwrap();
        let (shape, rest) = head.split_once(" on ").unwrap();
        let (sizes, names) = rest.split_once(" as ").unwrap();
        let mesh = mesh(&numbers(sizes, 'x'));
        let place = placed(&mesh, names, &numbers(shape, 'x'));
        for (rank, text) in boxes.split(' ').enumerate() {
            let (local, offsets) = text.split_once('@').unwrap();
            assert_eq!(place.local_shape(rank), Some(numbers(local, 'x')), "{line}");
            let starts: Vec<usize> = starts(&place, rank);
            assert_eq!(starts, numbers(offsets, ','), "{line}: rank {rank}");
            count += 1;
        }
    }
    assert_eq!(count, 497);
}

fn starts(place: &Sharding, rank: usize) -> Vec<usize> {
    let region = place.region(rank).unwrap();
    region.iter().map(|range| range.start as usize).collect()
}

/// Places of every kind on meshes of one to three axes, in all explicit orders.
fn places() -> Vec<Sharding> {
    let mut places = Vec::new();
    for sizes in [&[4][..], &[2, 3], &[3, 2], &[1, 4], &[2, 2, 2]] {
        let mesh = mesh(sizes);
        for shape in [[1, 3], [5, 7], [8, 0], [7, 1]] {
            for choice in 0..4usize.pow(sizes.len() as u32) {
                places.extend(orders(&mesh, choice, &shape));
            }
        }
    }
    places
}

fn orders(mesh: &Mesh, choice: usize, shape: &[usize]) -> Vec<Sharding> {
    let kinds = [Placement::Replicate, shard(0), shard(1), SUM];
    let placements: Vec<(&str, Placement)> = (0..mesh.shape().len())
        .map(|at| (NAMES[at], kinds[choice >> (2 * at) & 3].clone()))
        .collect();
    let rotated = (0..placements.len()).map(|by| {
        let mut rotated = placements.clone();
        rotated.rotate_left(by);
        rotated
    });
    let mut all: Vec<_> = rotated.collect();
    all.push(placements.into_iter().rev().collect());
    all.into_iter()
        .map(|placements| Sharding::new(mesh, placements, shape).unwrap())
        .collect()
}

/// Ranks that differ on sharding axes only have together every element once.
#[test]
fn boxes_tile_the_tensor() {
    for place in places() {
        let sharding: Vec<&str> = (0..2).flat_map(|dim| place.axes_of_dim(dim)).collect();
        for group in place.mesh().groups(&sharding).unwrap() {
            let mut owners = vec![0; place.shape().iter().product()];
            for rank in group.ranks() {
                for at in elements(&place.region(*rank).unwrap(), place.shape()) {
                    owners[at] += 1;
                }
            }
            assert!(
                owners.iter().all(|count| *count == 1),
                "{place:?}: {owners:?}"
            );
        }
    }
}

fn elements(region: &[Range<u64>], shape: &[usize]) -> Vec<usize> {
    let (rows, columns) = (region[0].clone(), region[1].clone());
    let row = |row: u64| {
        columns
            .clone()
            .map(move |column| row as usize * shape[1] + column as usize)
    };
    rows.flat_map(row).collect()
}

#[test]
fn local_shapes_are_those_of_the_boxes() {
    for place in places() {
        let mut largest = vec![0; 2];
        for rank in place.mesh().ranks() {
            let region = place.region(rank).unwrap();
            let extents: Vec<usize> = region
                .iter()
                .map(|range| (range.end - range.start) as usize)
                .collect();
            assert_eq!(place.local_shape(rank).unwrap(), extents, "{place:?}");
            for (dim, range) in region.iter().enumerate() {
                let end = place.shape()[dim] as u64;
                assert!(
                    !range.is_empty() || *range == (end..end),
                    "{place:?}: {range:?}"
                );
                largest[dim] = extents[dim].max(largest[dim]);
            }
        }
        assert_eq!(place.largest_local_shape(), largest, "{place:?}");
        assert_eq!(place.region(64), None);
        assert_eq!(place.local_shape(64), None);
    }
}

/// What a place says of itself makes it again.
#[test]
fn placements_make_the_same_place() {
    for place in places() {
        let again = Sharding::new(place.mesh(), place.placements(), place.shape()).unwrap();
        assert_eq!(again, place);
        for (axis, placement) in place.placements() {
            assert_eq!(place.placement(axis).unwrap(), placement);
        }
    }
}

#[test]
fn order_matters_on_one_dim_only() {
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    let place =
        |placements: [(&str, Placement); 2]| Sharding::new(&mesh, placements, &[8, 8]).unwrap();

    let dp_first = place([("dp", shard(0)), ("tp", shard(0))]);
    let tp_first = place([("tp", shard(0)), ("dp", shard(0))]);
    assert_ne!(dp_first, tp_first);
    assert_eq!(starts(&dp_first, 1), [2, 0]);
    assert_eq!(starts(&tp_first, 1), [4, 0]);
    assert_eq!(tp_first.to_string(), "tp: shard(0), dp: shard(0)");
    assert_eq!(tp_first.axes_of_dim(0), ["tp", "dp"]);

    assert_eq!(
        place([("dp", shard(0)), ("tp", shard(1))]),
        place([("tp", shard(1)), ("dp", shard(0))])
    );
    assert_eq!(
        place([("tp", SUM), ("dp", shard(0))]).to_string(),
        "dp: shard(0), tp: partial(sum)"
    );
}

/// What is written in several ways is one place.
#[test]
fn a_place_has_one_form() {
    let mesh = Mesh::new(&[2, 1, 3], &["dp", "cp", "tp"]).unwrap();
    let place =
        |placements: &[(&str, Placement)]| Sharding::new(&mesh, placements, &[6, 7]).unwrap();
    let plain = place(&[]);
    assert!(plain.is_replicated());
    assert_eq!(
        plain.to_string(),
        "dp: replicate, cp: replicate, tp: replicate"
    );
    for alone in [shard(0), SUM, MAX, Placement::ragged(1, [7])] {
        assert_eq!(place(&[("cp", alone)]), plain);
    }
    assert_eq!(place(&[("cp", SUM), ("dp", MAX)]), place(&[("dp", MAX)]));
    assert_eq!(
        place(&[("tp", Placement::ragged(1, [3, 3, 1]))]),
        place(&[("tp", shard(1))])
    );
    assert_ne!(
        place(&[("tp", Placement::ragged(1, [3, 2, 2]))]),
        place(&[("tp", shard(1))])
    );
    assert_eq!(
        place(&[("dp", SUM), ("tp", AVG)]).partials(),
        [("dp", Reduction::Sum), ("tp", Reduction::Avg)]
    );
    let no_axes: [(&str, Placement); 0] = [];
    let single = Sharding::new(&Mesh::new(&[], &[]).unwrap(), no_axes, &[2]).unwrap();
    assert_eq!(single.to_string(), "on one rank");
    assert_eq!(single.local_shape(0), Some(vec![2]));
}

/// Ragged sizes go to the ranks of an axis as they are named, inside of what is shard before.
#[test]
fn ragged_sizes_are_those_given() {
    let mesh = mesh(&[2, 3]);
    let ragged = Placement::ragged(0, [0, 1, 3]);
    let rows = |place: &Sharding| -> Vec<Range<u64>> {
        (0..6)
            .map(|rank| place.region(rank).unwrap()[0].clone())
            .collect()
    };
    let inner = Sharding::new(&mesh, [("a", shard(0)), ("b", ragged.clone())], &[8]).unwrap();
    assert_eq!(rows(&inner), [8..8, 0..1, 1..4, 8..8, 4..5, 5..8]);
    assert_eq!(inner.to_string(), "a: shard(0), b: shard(0: 0 + 1 + 3)");
    let outer = Sharding::new(&mesh, [("b", ragged), ("a", shard(0))], &[4]).unwrap();
    assert_eq!(rows(&outer), [4..4, 0..1, 1..3, 4..4, 4..4, 3..4]);
}

/// Coordinates count, not ranks: an axis of a mesh in another order, and parallel instances.
#[test]
fn boxes_follow_the_mesh() {
    let listed = Mesh::from_ranks(&[5, 3], &[2], &["tp"]).unwrap();
    let place = Sharding::new(&listed, [("tp", shard(0))], &[4, 1]).unwrap();
    assert_eq!(place.region(5).as_deref(), Some(&[0..2, 0..1][..]));
    assert_eq!(place.region(3).as_deref(), Some(&[2..4, 0..1][..]));
    assert_eq!(place.region(0), None);

    let rows = mesh(&[2, 2]).select(["b"]).unwrap();
    let place = Sharding::new(&rows, [("b", shard(0))], &[4]).unwrap();
    assert_eq!(place.region(1), place.region(3));
}

#[test]
fn errors_name_the_way_out() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let error = |placements: &[(&str, Placement)], shape: &[usize]| -> ShardingError {
        Sharding::new(&mesh, placements, shape).unwrap_err()
    };
    let said = |placements: &[(&str, Placement)]| error(placements, &[7, 6]).to_string();

    assert_eq!(
        said(&[("pt", shard(0))]),
        "axis `pt` is not in the mesh (axes: dp 2 x tp 3); did you mean `tp`?"
    );
    assert_eq!(
        said(&[("dp", shard(0)), ("dp", SUM)]),
        "axis `dp` is placed twice, as shard(0) and as partial(sum): a tensor lies in one way \
         along an axis"
    );
    assert_eq!(
        said(&[("dp", shard(2))]),
        "axis `dp` shards dim 2 and the tensor [7, 6] has dims 0 to 1"
    );
    assert_eq!(
        error(&[("dp", shard(0))], &[]).to_string(),
        "axis `dp` shards dim 0 and the tensor [] has no dims: replicate it"
    );
    assert_eq!(
        said(&[("tp", Placement::ragged(0, [3, 4]))]),
        "axis `tp` has 3 ranks and shards dim 0 into 2 sizes [3, 4]: give each rank one, 0 for none"
    );
    assert_eq!(
        said(&[("tp", Placement::ragged(0, [3, 4, 1]))]),
        "the sizes [3, 4, 1] that axis `tp` shards dim 0 into add up to 8 and there are 7 to divide"
    );
    assert_eq!(
        said(&[("dp", shard(1)), ("tp", Placement::ragged(1, [2, 2, 2]))]),
        "the sizes [2, 2, 2] that axis `tp` shards dim 1 into add up to 6 and there are 3 to divide \
         inside of what `dp` shard"
    );
    assert_eq!(
        said(&[("dp", shard(0)), ("tp", Placement::ragged(0, [2, 1, 1]))]),
        "axis `tp` shards dim 0 into [2, 1, 1] inside of what `dp` shard, whose shards have [3, 4]: \
         one list of sizes divides equal shards only; name `tp` before them, or shard evenly"
    );
    assert_eq!(
        said(&[("dp", SUM), ("tp", MAX)]),
        "axis `dp` holds a partial sum and axis `tp` a partial max: these do not commute, so the \
         value would depend on their order; reduce one of them first"
    );
    assert_eq!(
        error(&[], &[usize::MAX, 0]).to_string(),
        format!(
            "a tensor [{}, 0] has more elements than 2^56, which is more than can be addressed",
            usize::MAX
        )
    );
    let huge = Placement::ragged(0, [usize::MAX, usize::MAX, usize::MAX]);
    assert!(matches!(
        error(&[("tp", huge)], &[7]),
        ShardingError::RaggedSum { .. }
    ));
}
