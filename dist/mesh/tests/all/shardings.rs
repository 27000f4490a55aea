//! Shardings, compared with torch's and with enumerated elements.

use std::ops::Range;

use meshgrad_mesh::{Division, Error, Mesh, Placement, Reduction, Region, Sharding};

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
    text.split(sign).map(|number| number.parse().unwrap()).collect()
}

/// Parses torch's placements. `T0` shards dim 0 inside the next axis' shards.
fn parse(mesh: &Mesh, names: &str, shape: &[usize]) -> Sharding {
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

/// A golden line lists the local shape and offsets of each rank: `5x2 on 2 as S0: 3x2@0,0 2x2@3,0`.
#[test]
fn regions_match_torch() {
    let lines = include_str!("../golden/torch-boxes.txt").lines();
    let mut count = 0;
    for line in lines {
        let (head, boxes) = line.split_once(": ").unwrap();
        let (shape, rest) = head.split_once(" on ").unwrap();
        let (sizes, names) = rest.split_once(" as ").unwrap();
        let mesh = mesh(&numbers(sizes, 'x'));
        let sharding = parse(&mesh, names, &numbers(shape, 'x'));
        for (rank, text) in boxes.split(' ').enumerate() {
            let (local, offsets) = text.split_once('@').unwrap();
            assert_eq!(sharding.local_shape(rank), Some(numbers(local, 'x')), "{line}");
            let starts: Vec<usize> = starts(&sharding, rank);
            assert_eq!(starts, numbers(offsets, ','), "{line}: rank {rank}");
            count += 1;
        }
    }
    assert_eq!(count, 497);
}

fn starts(sharding: &Sharding, rank: usize) -> Vec<usize> {
    let region = sharding.region(rank).unwrap();
    let dims = region.dims().iter();
    dims.map(|indices| indices.ranges()[0].start).collect()
}

/// The number of placements in [`orders`].
const KINDS: usize = 7;

/// Shardings of every kind on meshes of one to three axes, in all explicit orders.
fn all_shardings() -> Vec<Sharding> {
    let mut shardings = Vec::new();
    for sizes in [&[4][..], &[2, 3], &[3, 2], &[1, 4], &[2, 2, 2]] {
        let mesh = mesh(sizes);
        for shape in [[1, 3], [5, 7], [8, 0], [7, 1], [11, 6]] {
            for choice in 0..KINDS.pow(sizes.len() as u32) {
                shardings.extend(orders(&mesh, choice, &shape));
            }
        }
    }
    shardings
}

fn orders(mesh: &Mesh, choice: usize, shape: &[usize]) -> Vec<Sharding> {
    let kinds: [Placement; KINDS] = [
        Placement::Replicate,
        shard(0),
        shard(1),
        SUM,
        Placement::head_and_tail(0),
        Placement::in_blocks(1, 3),
        Placement::Shard(1, Division::in_blocks(3, Division::HeadAndTail)),
    ];
    let placements: Vec<(&str, Placement)> = (0..mesh.shape().len())
        .map(|at| {
            let kind = choice / KINDS.pow(at as u32) % KINDS;
            (NAMES[at], kinds[kind].clone())
        })
        .collect();
    let rotated = (0..placements.len()).map(|by| {
        let mut rotated = placements.clone();
        rotated.rotate_left(by);
        rotated
    });
    let mut all: Vec<_> = rotated.collect();
    all.push(placements.into_iter().rev().collect());
    // Blocks may not fit the extent, or the shards of an outer axis.
    all.into_iter().filter_map(|placements| Sharding::new(mesh, placements, shape).ok()).collect()
}

/// In each group along all sharding axes, every element is on exactly one rank.
#[test]
fn regions_tile_the_tensor() {
    for sharding in all_shardings() {
        let axes: Vec<&str> = (0..2).flat_map(|dim| sharding.axes_of_dim(dim)).collect();
        for group in sharding.mesh().groups(&axes).unwrap() {
            let mut owners = vec![0; sharding.shape().iter().product()];
            for rank in group.ranks() {
                for at in elements(&sharding.region(*rank).unwrap(), sharding.shape()[1]) {
                    owners[at] += 1;
                }
            }
            assert!(owners.iter().all(|count| *count == 1), "{sharding:?}: {owners:?}");
        }
    }
}

fn elements(region: &Region, columns: usize) -> Vec<usize> {
    let elements = region.boxes().into_iter().flat_map(|ranges| {
        let inner = ranges[1].clone();
        let row = move |row: usize| inner.clone().map(move |column| row * columns + column);
        ranges[0].clone().flat_map(row)
    });
    elements.collect()
}

#[test]
fn local_shapes_match_the_regions() {
    for sharding in all_shardings() {
        let mut largest = vec![0; 2];
        for rank in sharding.mesh().ranks() {
            let region = sharding.region(rank).unwrap();
            let extents = region.extents();
            assert_eq!(sharding.local_shape(rank).unwrap(), extents, "{sharding:?}");
            assert_eq!(region.elements(), elements(&region, sharding.shape()[1]).len());
            for (dim, indices) in region.dims().iter().enumerate() {
                let end = sharding.shape()[dim];
                assert!(
                    !indices.is_empty() || indices.as_range() == Some(end..end),
                    "{sharding:?}: {indices}"
                );
                largest[dim] = extents[dim].max(largest[dim]);
            }
        }
        assert_eq!(sharding.largest_local_shape(), largest, "{sharding:?}");
        assert_eq!(sharding.region(64), None);
        assert_eq!(sharding.local_shape(64), None);
    }
}

#[test]
fn placements_rebuild_the_same_sharding() {
    for sharding in all_shardings() {
        let again =
            Sharding::new(sharding.mesh(), sharding.placements(), sharding.shape()).unwrap();
        assert_eq!(again, sharding);
        for (axis, placement) in sharding.placements() {
            assert_eq!(sharding.placement(axis).unwrap(), placement);
        }
    }
}

#[test]
fn explicit_order_matters_only_within_one_dim() {
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"]).unwrap();
    let sharding =
        |placements: [(&str, Placement); 2]| Sharding::new(&mesh, placements, &[8, 8]).unwrap();

    let dp_first = sharding([("dp", shard(0)), ("tp", shard(0))]);
    let tp_first = sharding([("tp", shard(0)), ("dp", shard(0))]);
    assert_ne!(dp_first, tp_first);
    assert_eq!(starts(&dp_first, 1), [2, 0]);
    assert_eq!(starts(&tp_first, 1), [4, 0]);
    assert_eq!(tp_first.to_string(), "tp: shard(0), dp: shard(0)");
    assert_eq!(tp_first.axes_of_dim(0), ["tp", "dp"]);

    assert_eq!(
        sharding([("dp", shard(0)), ("tp", shard(1))]),
        sharding([("tp", shard(1)), ("dp", shard(0))])
    );
    assert_eq!(
        sharding([("tp", SUM), ("dp", shard(0))]).to_string(),
        "dp: shard(0), tp: partial(sum)"
    );
}

#[test]
fn equivalent_placements_have_one_canonical_form() {
    let mesh = Mesh::new(&[2, 1, 3], &["dp", "cp", "tp"]).unwrap();
    let sharding =
        |placements: &[(&str, Placement)]| Sharding::new(&mesh, placements, &[6, 7]).unwrap();
    let plain = sharding(&[]);
    assert!(plain.is_replicated());
    assert_eq!(plain.to_string(), "dp: replicate, cp: replicate, tp: replicate");
    for alone in [shard(0), SUM, MAX, Placement::ragged(1, [7])] {
        assert_eq!(sharding(&[("cp", alone)]), plain);
    }
    assert_eq!(sharding(&[("cp", SUM), ("dp", MAX)]), sharding(&[("dp", MAX)]));
    assert_eq!(sharding(&[("tp", Placement::ragged(1, [3, 3, 1]))]), sharding(&[("tp", shard(1))]));
    assert_ne!(sharding(&[("tp", Placement::ragged(1, [3, 2, 2]))]), sharding(&[("tp", shard(1))]));
    let in_blocks = |length, sizes: [usize; 3]| {
        let division = Division::Ragged(sizes.into());
        Placement::Shard(0, Division::in_blocks(length, division))
    };
    assert_eq!(sharding(&[("tp", Placement::in_blocks(0, 6))]), sharding(&[("tp", shard(0))]));
    assert_eq!(
        sharding(&[("tp", in_blocks(2, [0, 2, 0]))]),
        sharding(&[("tp", Placement::ragged(0, [0, 6, 0]))])
    );
    let nested = Division::in_blocks(6, Division::in_blocks(3, Division::Even));
    assert_eq!(
        sharding(&[("tp", Placement::Shard(0, nested))]).to_string(),
        "dp: replicate, cp: replicate, tp: shard(0: even in blocks of 3)"
    );
    assert_eq!(
        sharding(&[("tp", Placement::head_and_tail(0))]).to_string(),
        "dp: replicate, cp: replicate, tp: shard(0: head and tail)"
    );
    assert_eq!(
        sharding(&[("dp", SUM), ("tp", AVG)]).partials(),
        [("dp", Reduction::Sum), ("tp", Reduction::Avg)]
    );
    let no_axes: [(&str, Placement); 0] = [];
    let single = Sharding::new(&Mesh::new(&[], &[]).unwrap(), no_axes, &[2]).unwrap();
    assert_eq!(single.to_string(), "on one rank");
    assert_eq!(single.local_shape(0), Some(vec![2]));
}

/// Ragged sizes apply to the ranks of an axis in order, inside the outer shards.
#[test]
fn ragged_sizes_apply_in_order() {
    let mesh = mesh(&[2, 3]);
    let ragged = Placement::ragged(0, [0, 1, 3]);
    let rows = |sharding: &Sharding| -> Vec<Range<usize>> {
        (0..6).map(|rank| sharding.region(rank).unwrap().dims()[0].as_range().unwrap()).collect()
    };
    let inner = Sharding::new(&mesh, [("a", shard(0)), ("b", ragged.clone())], &[8]).unwrap();
    assert_eq!(rows(&inner), [8..8, 0..1, 1..4, 8..8, 4..5, 5..8]);
    assert_eq!(inner.to_string(), "a: shard(0), b: shard(0: 0 + 1 + 3)");
    let outer = Sharding::new(&mesh, [("b", ragged), ("a", shard(0))], &[4]).unwrap();
    assert_eq!(rows(&outer), [4..4, 0..1, 1..3, 4..4, 4..4, 3..4]);
}

/// Blocks and both ends give several ranges, also inside the shards of other axes.
#[test]
fn blocks_and_both_ends_are_several_ranges() {
    let mesh = mesh(&[2, 3]);
    let rows = |placements: [(&str, Placement); 2], extent: usize| -> Vec<String> {
        let sharding = Sharding::new(&mesh, placements, &[extent]).unwrap();
        let rows = (0..6).map(|rank| sharding.region(rank).unwrap().dims()[0].to_string());
        rows.collect()
    };
    let whole = ("a", Placement::Replicate);
    let halves = rows([whole.clone(), ("b", Placement::in_blocks(0, 5))], 10);
    assert_eq!(halves[..3], ["0..2 + 5..7", "2..4 + 7..9", "4..5 + 9..10"]);
    let ends = rows([whole, ("b", Placement::head_and_tail(0))], 11);
    assert_eq!(ends[..3], ["0..2 + 10..11", "2..4 + 8..10", "4..8"]);

    let batch = [("a", shard(0)), ("b", Placement::in_blocks(0, 6))];
    let inner = ["0..2 + 6..8", "2..4 + 8..10", "4..6 + 10..12", "12..14", "14..16", "16..18"];
    let uneven =
        rows([("a", Placement::ragged(0, [12, 6])), ("b", Placement::in_blocks(0, 6))], 18);
    assert_eq!(uneven, inner);
    assert_eq!(rows(batch, 24)[3], "12..14 + 18..20");
    let fsdp = [("b", Placement::in_blocks(0, 6)), ("a", shard(0))];
    assert_eq!(rows(fsdp, 12)[3..], ["6..8", "8..10", "10..12"]);
}

/// Regions depend on mesh coordinates, not on rank numbers.
#[test]
fn regions_follow_mesh_coordinates() {
    let listed = Mesh::from_ranks(&[5, 3], &[2], &["tp"]).unwrap();
    let sharding = Sharding::new(&listed, [("tp", shard(0))], &[4, 1]).unwrap();
    let ranges = |rank| sharding.region(rank).unwrap().as_box();
    assert_eq!(ranges(5), Some(vec![0..2, 0..1]));
    assert_eq!(ranges(3), Some(vec![2..4, 0..1]));
    assert_eq!(sharding.region(0), None);

    let rows = mesh(&[2, 2]).select(["b"]).unwrap();
    let sharding = Sharding::new(&rows, [("b", shard(0))], &[4]).unwrap();
    assert_eq!(sharding.region(1), sharding.region(3));
}

#[test]
fn errors_name_the_remedy() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let error = |placements: &[(&str, Placement)], shape: &[usize]| -> Error {
        Sharding::new(&mesh, placements, shape).unwrap_err()
    };
    let message = |placements: &[(&str, Placement)]| error(placements, &[7, 6]).to_string();

    assert_eq!(
        message(&[("pt", shard(0))]),
        "axis `pt` is not in the mesh (axes: dp 2 x tp 3); did you mean `tp`?"
    );
    assert_eq!(
        message(&[("dp", shard(0)), ("dp", SUM)]),
        "axis `dp` has two placements, shard(0) and partial(sum): state one"
    );
    assert_eq!(
        message(&[("dp", shard(2))]),
        "axis `dp` shards dim 2, but the tensor [7, 6] has dims 0 to 1"
    );
    assert_eq!(
        error(&[("dp", shard(0))], &[]).to_string(),
        "axis `dp` shards dim 0, but the tensor [] has no dims: replicate it"
    );
    assert_eq!(
        message(&[("tp", Placement::ragged(0, [3, 4]))]),
        "axis `tp` has 3 ranks but shards dim 0 into 2 sizes [3, 4]: give one size per rank, 0 for \
         an empty shard"
    );
    assert_eq!(
        message(&[("tp", Placement::ragged(0, [3, 4, 1]))]),
        "axis `tp` shards dim 0 into sizes [3, 4, 1], which add up to 8, but the extent is 7"
    );
    assert_eq!(
        message(&[("dp", shard(1)), ("tp", Placement::ragged(1, [2, 2, 2]))]),
        "axis `tp` shards dim 1 into sizes [2, 2, 2], which add up to 6, but the extent is 3 inside \
         the shards of `dp`"
    );
    assert_eq!(
        message(&[("dp", shard(0)), ("tp", Placement::ragged(0, [2, 1, 1]))]),
        "axis `tp` shards dim 0 into sizes [2, 1, 1] inside the shards of `dp`, which have different \
         extents [3, 4]: place `tp` before `dp`, or shard evenly"
    );
    let many = error(&[("tp", Placement::in_blocks(0, 1))], &[1 << 40]);
    assert!(many.to_string().contains("the length of a block must"), "{many}");
    for length in [0, 4] {
        assert_eq!(
            message(&[("dp", shard(1)), ("tp", Placement::in_blocks(1, length))]),
            format!(
                "axis `tp` shards dim 1 even in blocks of {length} inside the shards of `dp`, but the \
                 extent is 3: the length of a block must be at least 1 and divide it into at most \
                 2^20 blocks"
            )
        );
    }
    assert_eq!(
        message(&[("dp", SUM), ("tp", MAX)]),
        "axis `dp` is partial(sum) and axis `tp` is partial(max), which do not commute: reduce one \
         of them first"
    );
    assert_eq!(
        error(&[], &[usize::MAX, 0]).to_string(),
        format!("tensor [{}, 0] has more than 2^56 elements", usize::MAX)
    );
    let huge = Placement::ragged(0, [usize::MAX, usize::MAX, usize::MAX]);
    let huge = error(&[("tp", huge)], &[7]).to_string();
    assert!(huge.contains("which add up to 55340232221128654845, but the extent is 7"), "{huge}");
}

#[test]
fn only_whole_tensors_on_every_rank_are_replicated() {
    let mesh = mesh(&[2, 1]);
    let is_replicated = |placements: &[(&str, Placement)]| {
        Sharding::new(&mesh, placements, &[4, 2]).unwrap().is_replicated()
    };
    assert!(is_replicated(&[]));
    // An axis of one rank always replicates, so its reduction mixes with any other.
    assert!(is_replicated(&[("b", shard(0))]));
    assert!(!is_replicated(&[("a", shard(0))]));
    assert!(!is_replicated(&[("a", SUM), ("b", MAX)]));
    assert!(!is_replicated(&[("b", MAX), ("a", SUM)]));
}

/// Some rows of a stored region are the boxes of `row_boxes`, in any order: together they have each
/// element once, at its place.
#[test]
fn rows_of_a_region_are_boxes() {
    let mesh = Mesh::new(&[2, 3], &["dp", "tp"]).unwrap();
    let placements = [
        ("tp", Placement::shard(0)),
        ("tp", Placement::shard(1)),
        ("tp", Placement::shard(2)),
        ("tp", Placement::in_blocks(1, 2)),
        ("dp", Placement::head_and_tail(2)),
    ];
    for shape in [[4, 5, 6], [2, 6, 8], [1, 7, 4]] {
        for placement in &placements {
            let Ok(sharding) = Sharding::new(&mesh, [placement.clone()], &shape) else {
                continue;
            };
            for rank in 0..6 {
                let region = sharding.region(rank).unwrap();
                let elements = global_indices(&region, &shape);
                let columns = region.extents()[2];
                let rows: usize = region.extents()[..2].iter().product();
                for (first, last) in (0..=rows).flat_map(|a| (a..=rows).map(move |b| (a, b))) {
                    let mut found = vec![None; (last - first) * columns];
                    for part in region.row_boxes(first..last) {
                        let start = (part.rows.start - first) * columns;
                        let own = offsets(&part.within, &part.shape);
                        for (own, global) in own.into_iter().zip(offsets(&part.global, &shape)) {
                            assert_eq!(found[start + own].replace(global), None);
                        }
                    }
                    let found: Option<Vec<usize>> = found.into_iter().collect();
                    let expected = &elements[first * columns..last * columns];
                    assert_eq!(found.as_deref(), Some(expected));
                }
            }
        }
    }
}

/// The global index of each stored element.
fn global_indices(region: &Region, shape: &[usize]) -> Vec<usize> {
    let mut indices = vec![0];
    for (set, extent) in region.dims().iter().zip(shape) {
        let of_dim: Vec<usize> = set.ranges().iter().flat_map(Clone::clone).collect();
        let longer = indices.iter();
        indices =
            longer.flat_map(|outer| of_dim.iter().map(move |at| outer * extent + at)).collect();
    }
    indices
}

/// The offsets of the elements of a box in a contiguous tensor.
fn offsets(of: &[Range<usize>], shape: &[usize]) -> Vec<usize> {
    let mut offsets = vec![0];
    for (range, extent) in of.iter().zip(shape) {
        let longer = offsets.iter();
        offsets =
            longer.flat_map(|outer| range.clone().map(move |at| outer * extent + at)).collect();
    }
    offsets
}
