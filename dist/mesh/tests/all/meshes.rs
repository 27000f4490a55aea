//! Meshes: every operation for every rank, compared with explicit coordinates.

use meshgrad_mesh::{Hosts, Mesh, Size, check_agreement};
use proptest::prelude::*;

use crate::layouts::NO_RANKS;

fn cube() -> Mesh {
    Mesh::new(&[2, 2, 2], &["pp", "dp", "tp"]).unwrap()
}

/// The ranks of a group that must exist.
fn group(mesh: &Mesh, axes: &[&str], rank: usize) -> Vec<usize> {
    mesh.group(axes, rank).unwrap().unwrap().ranks().to_vec()
}

fn groups(mesh: &Mesh, axes: &[&str]) -> Vec<Vec<usize>> {
    let groups = mesh.groups(axes).unwrap();
    groups.iter().map(|group| group.ranks().to_vec()).collect()
}

#[test]
fn selecting_keeps_all_instances() {
    let mesh = cube().select(["tp"]).unwrap();
    assert_eq!((mesh.shape(), mesh.instances()), (vec![2], 4));
    assert_eq!(mesh.ranks(), (0..8).collect::<Vec<_>>());
    assert_eq!(group(&mesh, &["tp"], 5), [4, 5]);
    assert_eq!(groups(&mesh, &["tp"]), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert_eq!(mesh.to_string(), "tp 2 (4 instances)");
}

/// In torch 2.15 `mesh["tp", "pp"]` is a KeyError, unless one of them has size 1.
#[test]
fn axes_are_selected_in_any_order() {
    let permuted = cube().select(["tp", "pp"]).unwrap();
    assert_eq!(group(&permuted, &["tp", "pp"], 2), [2, 6, 3, 7]);
    assert_eq!(permuted.coordinate(6), Some(vec![0, 1]));

    for sizes in [[1, 2, 2], [2, 1, 2], [2, 2, 1], [1, 1, 1]] {
        let mesh = Mesh::new(&sizes, &["pp", "dp", "tp"]).unwrap();
        let permuted = mesh.select(["tp", "dp", "pp"]).unwrap();
        let shape: Vec<usize> = sizes.into_iter().rev().collect();
        assert_eq!(permuted.shape(), shape);
    }
}

/// torch cannot combine the flattened axis with the one in between.
#[test]
fn axes_that_are_not_adjacent_can_be_flattened() {
    let mesh = cube().flatten(["pp", "tp"], "outer").unwrap();
    assert_eq!(mesh.to_string(), "outer 4 x dp 2");
    assert_eq!(groups(&mesh, &["outer"]), [[0, 1, 4, 5], [2, 3, 6, 7]]);
    assert_eq!(group(&mesh, &["dp", "outer"], 0), [0, 1, 4, 5, 2, 3, 6, 7]);
    assert_eq!(mesh.local_rank("outer", 6).unwrap(), Some(2));

    let back = mesh.split("outer", &[("pp", Size::Auto), ("tp", 2.into())]).unwrap();
    assert_eq!(back.select(["pp", "dp", "tp"]).unwrap(), cube());
}

#[test]
fn any_coordinate_can_be_fixed() {
    let second = cube().at("pp", 1).unwrap();
    assert_eq!(second.ranks(), [4, 5, 6, 7]);
    assert_eq!(second.group(["dp"], 1).unwrap(), None);
    assert_eq!(second.coordinate(1), None);
    assert_eq!(second.local_rank("dp", 1).unwrap(), None);
    assert_eq!(group(&second, &["dp"], 5), [5, 7]);
    // The peer in the next stage.
    assert_eq!(cube().peer(1, "pp", 1).unwrap(), Some(5));
    assert_eq!(cube().peer(9, "pp", 1).unwrap(), None);
}

#[test]
fn listed_ranks_keep_their_positions() {
    let mesh = Mesh::from_ranks(&[7, 3, 5, 1], &[2, 2], &["dp", "tp"]).unwrap();
    assert_eq!(group(&mesh, &["tp"], 3), [7, 3]);
    assert_eq!(group(&mesh, &["dp"], 1), [3, 1]);
    assert_eq!(mesh.coordinate(5), Some(vec![1, 0]));
    assert!(!mesh.contains(0));

    let same = Mesh::from_ranks(&[0, 1, 2, 3], &[2, 2], &["dp", "tp"]).unwrap();
    assert_eq!(same, Mesh::new(&[2, 2], &["dp", "tp"]).unwrap());
}

#[test]
fn a_mesh_without_axes_has_one_rank_per_instance() {
    let alone = cube().select::<&str>([]).unwrap();
    assert_eq!((alone.len(), alone.instances()), (1, 8));
    assert_eq!(group(&alone, &[], 3), [3]);
    assert!(alone.group::<&str>([], 3).unwrap().unwrap().is_singleton());
}

#[test]
fn disjoint_meshes_form_a_set() {
    let world = Mesh::new(&[2, 4], &["role", "rank"]).unwrap();
    let trainer = world.at("role", 0).unwrap();
    let rollout = world
        .at("role", 1)
        .unwrap()
        .split("rank", &[("dp", Size::Auto), ("tp", 2.into())])
        .unwrap();
    let set = Mesh::disjoint(&[trainer.clone(), rollout.clone()]).unwrap();
    let parts: Vec<_> = (0..9).map(|rank| set.part_of(rank)).collect();
    let expected: Vec<_> = [0, 0, 0, 0, 1, 1, 1, 1].map(Some).into();
    assert_eq!((&parts[..8], parts[8]), (&expected[..], None));

    let listed = Mesh::from_ranks(&[9, 6], &[2], &["dp"]).unwrap();
    let error = Mesh::disjoint(&[trainer, rollout, listed]).unwrap_err().to_string();
    assert!(error.starts_with("rank 6 is in part 1 ("), "{error}");
    assert!(error.contains(") and in part 2 ("), "{error}");
}

#[test]
fn a_disagreement_names_the_ranks() {
    let right = Mesh::new(&[2, 4], &["dp", "tp"]).unwrap().fingerprint();
    let wrong = Mesh::new(&[4, 2], &["dp", "tp"]).unwrap().fingerprint();
    let mut all = vec![right.clone(); 8];
    assert_eq!(check_agreement(&all), Ok(()));
    assert_eq!(check_agreement(&[]), Ok(()));

    all[5] = wrong.clone();
    let error = check_agreement(&all).unwrap_err().to_string();
    let most = "ranks have different meshes: ranks [0, 1, 2, 3, 4, 6, 7] have dp 2 x tp 4 (digest ";
    assert!(error.starts_with(most), "{error}");
    assert!(error.contains("; ranks [5] have dp 4 x tp 2 (digest "), "{error}");
    assert_ne!(right.digest, wrong.digest);
}

/// Meshes that differ in any way have different fingerprints.
#[test]
fn fingerprints_distinguish_meshes() {
    let mesh = cube();
    let mut others = vec![
        mesh.clone(),
        Mesh::new(&[2, 2, 2], &["pp", "dp", "cp"]).unwrap(),
        Mesh::new(&[2, 2, 2, 1], &["pp", "dp", "tp", "cp"]).unwrap(),
        Mesh::from_ranks(&[1, 0, 2, 3, 4, 5, 6, 7], &[2, 2, 2], &["pp", "dp", "tp"]).unwrap(),
        Mesh::from_ranks(&[0, 1, 2, 3, 4, 5, 7, 6], &[2, 2, 2], &["pp", "dp", "tp"]).unwrap(),
        Mesh::new(&[8], &["world"]).unwrap(),
        mesh.flatten(["dp", "tp"], "x").unwrap(),
        mesh.flatten(["tp", "dp"], "x").unwrap(),
    ];
    for axis in ["pp", "dp", "tp"] {
        others.push(mesh.select([axis]).unwrap());
        others.push(mesh.at(axis, 0).unwrap());
        others.push(mesh.at(axis, 1).unwrap());
    }
    for (at, one) in others.iter().enumerate() {
        for (other_at, other) in others.iter().enumerate() {
            let same = one.fingerprint() == other.fingerprint();
            assert_eq!(same, at == other_at, "{one} and {other}");
            assert_eq!(one == other, at == other_at, "{one} and {other}");
        }
    }
    // Digests are compared across machines, so they must be stable.
    assert_eq!(mesh.fingerprint().digest, 8_212_109_845_703_789_109);
}

#[test]
fn hosts_of_a_group_are_counted() {
    let hosts = Hosts::uniform(4).unwrap();
    assert_eq!(hosts.spanned_by(&[0, 3]), 1);
    assert_eq!(hosts.spanned_by(&[3, 4, 8, 9]), 3);
    let listed = Hosts::Listed(vec![0, 0, 1]);
    assert_eq!((listed.host_of(2), listed.host_of(3)), (Some(1), None));
    assert_eq!(Hosts::uniform(0).unwrap_err().to_string(), NO_RANKS);
    assert_eq!(Hosts::Uniform(0).host_of(3), None);
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A mesh with random sizes, and some of its axes in some order.
fn meshes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    prop::collection::vec(1..=4usize, 1..=5).prop_flat_map(|sizes| {
        let all: Vec<usize> = (0..sizes.len()).collect();
        let some = prop::sample::subsequence(all.clone(), 0..=all.len()).prop_shuffle();
        (Just(sizes), some)
    })
}

/// The coordinate of a rank, by division.
fn counted(sizes: &[usize], rank: usize) -> Vec<usize> {
    let mut rest = rank;
    let mut coordinate: Vec<usize> = sizes
        .iter()
        .rev()
        .map(|size| {
            let along = rest % size;
            rest /= size;
            along
        })
        .collect();
    coordinate.reverse();
    coordinate
}

proptest! {
    /// A group along some axes has the ranks that share all other coordinates, in the order in
    /// which the axes are named.
    #[test]
    fn groups_share_their_other_coordinates((sizes, chosen) in meshes()) {
        let mesh = Mesh::new(&sizes, &NAMES[..sizes.len()]).unwrap();
        let names: Vec<&str> = chosen.iter().map(|axis| NAMES[*axis]).collect();
        let world: usize = sizes.iter().product();

        for rank in 0..world {
            let mine = counted(&sizes, rank);
            prop_assert_eq!(mesh.coordinate(rank), Some(mine.clone()));
            let others = |rank: usize| {
                let coordinate = counted(&sizes, rank);
                (0..sizes.len()).all(|at| chosen.contains(&at) || coordinate[at] == mine[at])
            };
            let key = |rank: &usize| -> Vec<usize> {
                let coordinate = counted(&sizes, *rank);
                chosen.iter().map(|at| coordinate[*at]).collect()
            };
            let mut expected: Vec<usize> = (0..world).filter(|rank| others(*rank)).collect();
            expected.sort_by_key(key);
            prop_assert_eq!(group(&mesh, &names, rank), expected.clone());

            let flat = mesh.flatten(&names, "flat").unwrap();
            prop_assert_eq!(group(&flat, &["flat"], rank), expected.clone());
            let selected = mesh.select(&names).unwrap();
            prop_assert_eq!(group(&selected, &names, rank), expected);
            let selected_coordinate = selected.coordinate(rank).unwrap();
            prop_assert_eq!(selected_coordinate, key(&rank));
        }
        let all = groups(&mesh, &names).concat();
        prop_assert_eq!(all.len(), world);
    }

    #[test]
    fn fixing_a_coordinate_keeps_its_ranks((sizes, chosen) in meshes(), at in any::<prop::sample::Index>()) {
        let mesh = Mesh::new(&sizes, &NAMES[..sizes.len()]).unwrap();
        let world: usize = sizes.iter().product();
        let mut fixed = mesh.clone();
        let mut coordinates = Vec::new();
        for axis in chosen {
            let index = at.index(sizes[axis]);
            fixed = fixed.at(NAMES[axis], index).unwrap();
            coordinates.push((axis, index));
        }
        for rank in 0..world {
            let coordinate = counted(&sizes, rank);
            let kept = coordinates.iter().all(|(axis, index)| coordinate[*axis] == *index);
            prop_assert_eq!(fixed.contains(rank), kept);
        }
        prop_assert_eq!(fixed.ranks().len(), fixed.len());
    }
}
