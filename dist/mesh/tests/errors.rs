//! What is said about each mistake. Where torch 2.15 has words for the same mistake they stand above
//! ours, to be compared: ours name the axis, both values and the way out.
//!
//! After a wanted change run `INSTA_UPDATE=always cargo test -p meshgrad-mesh --test errors` and read
//! the diff.

use std::fmt::Write;

use meshgrad_mesh::{Mesh, RankLayout, Result, Size, check_agreement};

fn mesh() -> Mesh {
    Mesh::new(&[2, 2, 2], &["pp", "dp", "tp"]).unwrap()
}

fn nothing<T>(result: Result<T>) -> Result<()> {
    result.map(|_| ())
}

/// The mistake, what torch says, what we say.
fn mistakes() -> Vec<(&'static str, &'static str, Result<()>)> {
    let mesh = mesh();
    let disagreeing: Vec<_> = (0..8)
        .map(|rank| match rank {
            6 => Mesh::new(&[4, 2], &["dp", "tp"]),
            _ => Mesh::new(&[2, 4], &["dp", "tp"]),
        })
        .map(|mesh| mesh.unwrap().fingerprint())
        .collect();
    let overlapping = [
        Mesh::from_ranks(&[0, 1, 2, 3], &[4], &["dp"]).unwrap(),
        Mesh::from_ranks(&[3, 4], &[2], &["dp"]).unwrap(),
    ];

    vec![
        (
            "a rank twice",
            "nothing on ranks 0, 2, ..., which then hang; on rank 1: Each device mesh dimension should get \
             only one process group, but got 1 in [1, 2]!",
            nothing(Mesh::from_ranks(&[0, 1, 1, 2], &[2, 2], &["dp", "tp"])),
        ),
        (
            "more places than ranks",
            "Mesh should not be bigger than default world size 8, but found 16 ranks!",
            Mesh::new(&[4, 4], &["dp", "tp"]).unwrap().covers(8),
        ),
        (
            "ranks that are in no place",
            "nothing",
            Mesh::new(&[3, 2], &["dp", "tp"]).unwrap().covers(8),
        ),
        (
            "a list of another length",
            "cannot be written: a tensor of ranks has its shape",
            nothing(Mesh::from_ranks(&[0, 1, 2], &[2, 2], &["dp", "tp"])),
        ),
        (
            "sizes without names",
            "mesh_shape and mesh_dim_names should have same length! Found len(mesh_dim_names): 1 and \
             len(mesh_shape):2.",
            nothing(Mesh::new(&[2, 4], &["dp"])),
        ),
        (
            "a name twice",
            "Each mesh_dim_name must be unique. Found repeated mesh_dim_name in mesh_dim_names ('dp', 'dp')",
            nothing(Mesh::new(&[2, 4], &["dp", "dp"])),
        ),
        (
            "no name",
            "nothing",
            nothing(Mesh::new(&[2, 4], &["dp", ""])),
        ),
        (
            "size 0",
            "integer modulo by zero",
            nothing(Mesh::new(&[2, 0], &["dp", "tp"])),
        ),
        (
            "too many",
            "[enforce fail at alloc_cpu.cpp:127] ... you tried to allocate 4398046511104 bytes",
            nothing(Mesh::new(&[1 << 20, 1 << 20], &["dp", "tp"])),
        ),
        (
            "an axis that is not there",
            "Invalid mesh_dim_names ('ttp',) specified. Valid mesh_dim_names are ['pp', 'dp', 'tp'].",
            nothing(mesh.select(["ttp"])),
        ),
        (
            "an axis that is not there, and nothing like it",
            "Mesh dimension 'expert' does not exist. Available mesh dimensions are: \
             mesh_dim_names=('pp', 'dp', 'tp')",
            nothing(mesh.group(["expert"], 0)),
        ),
        (
            "an axis twice",
            "Slicing overlapping dim_names ('dp', 'dp') is not allowed.",
            nothing(mesh.select(["dp", "dp"])),
        ),
        (
            "a name that is taken",
            "tp already exists for submesh of the DeviceMesh(...). The mesh_dim_names of submesh and \
             flattened mesh are ('pp', 'dp', 'tp'). Please specify another valid mesh_dim_name.",
            nothing(mesh.flatten(["pp", "dp"], "tp")),
        ),
        (
            "a transposed slice",
            "Invalid mesh_dim_names ('tp', 'dp') specified. Mesh dim indices should be in ascending order.",
            nothing(mesh.select(["tp", "dp"])),
        ),
        (
            "a product that is wrong",
            "The product of mesh_sizes=(3,) is 3, but the original dimension at dim=1 has size 2. These \
             must be equal for unflatten to work correctly.",
            nothing(mesh.split("dp", &[("a", 3.into())])),
        ),
        (
            "a product that is too small",
            "The product of mesh_sizes=(2, 2) is 4, but the original dimension at dim=0 has size 8. \
             These must be equal for unflatten to work correctly.",
            nothing(
                Mesh::new(&[8], &["dp"])
                    .unwrap()
                    .split("dp", &[("a", 2.into()), ("b", 2.into())]),
            ),
        ),
        (
            "two sizes to be found out",
            "The product of mesh_sizes=(-1, -1) is 1, ...: it finds out none",
            nothing(mesh.split("dp", &[("a", Size::Auto), ("b", Size::Auto)])),
        ),
        (
            "a coordinate that is not there",
            "cannot be asked: a mesh has the coordinates of its rank",
            nothing(mesh.at("pp", 2)),
        ),
        (
            "parts with a common rank",
            "Cannot concatenate overlapping meshes",
            nothing(Mesh::disjoint(&overlapping)),
        ),
        (
            "a rank with another mesh",
            "nothing: a silent hang",
            check_agreement(&disagreeing),
        ),
        (
            "a layout that overlaps itself",
            "Please use a non-overlapping layout... (where it is checked)",
            nothing(RankLayout::new([(2, 2), (3, 1)])),
        ),
        (
            "a layout that does not fill its world",
            "nothing: the groups [0, 1, 2], [3, 4, 5], [6, 7, 8]",
            nothing(RankLayout::contiguous(3).unwrap().complement(8)),
        ),
        (
            "a split that does not fit",
            "nothing: it answers (2, 3):(6, 1), which is not split",
            nothing(RankLayout::new([(2, 6), (3, 1)]).unwrap().split(&[3, 2])),
        ),
        (
            "a choice of what is not there",
            "nothing: it answers 8:1",
            nothing(
                RankLayout::contiguous(4)
                    .unwrap()
                    .compose(&RankLayout::contiguous(8).unwrap()),
            ),
        ),
    ]
}

#[test]
fn every_mistake_has_its_words() {
    let mut text = String::new();
    for (mistake, torch, ours) in mistakes() {
        let ours = match ours {
            Ok(()) => "no mistake: it works".to_owned(),
            Err(error) => error.to_string(),
        };
        writeln!(text, "{mistake}\n  torch: {torch}\n  ours:  {ours}\n").unwrap();
    }
    insta::assert_snapshot!(text);
}
