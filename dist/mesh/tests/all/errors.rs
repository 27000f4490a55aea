//! Compares the error message of each mistake with torch 2.15's. Our messages name the axis, both
//! values and the remedy.
//!
//! After an intended change run `INSTA_UPDATE=always cargo test -p meshgrad-mesh --test errors` and
//! read the diff.

use std::fmt::Write;

use meshgrad_mesh::{Mesh, RankLayout, Result, Size, check_agreement};

fn mesh() -> Mesh {
    Mesh::new(&[2, 2, 2], &["pp", "dp", "tp"]).unwrap()
}

fn nothing<T>(result: Result<T>) -> Result<()> {
    result.map(|_| ())
}

/// Each mistake with torch's message and our result.
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
            "no error on ranks 0, 2, ..., which then hang; on rank 1: Each device mesh dimension should get \
             only one process group, but got 1 in [1, 2]!",
            nothing(Mesh::from_ranks(&[0, 1, 1, 2], &[2, 2], &["dp", "tp"])),
        ),
        (
            "more positions than ranks",
            "Mesh should not be bigger than default world size 8, but found 16 ranks!",
            Mesh::new(&[4, 4], &["dp", "tp"]).unwrap().covers(8),
        ),
        (
            "ranks that are not in the mesh",
            "no error",
            Mesh::new(&[3, 2], &["dp", "tp"]).unwrap().covers(8),
        ),
        (
            "a list of the wrong length",
            "cannot happen: the ranks are a tensor, which has a shape",
            nothing(Mesh::from_ranks(&[0, 1, 2], &[2, 2], &["dp", "tp"])),
        ),
        (
            "sizes without names",
            "mesh_shape and mesh_dim_names should have same length! Found len(mesh_dim_names): 1 and \
             len(mesh_shape):2.",
            nothing(Mesh::new(&[2, 4], &["dp"])),
        ),
        (
            "a duplicate name",
            "Each mesh_dim_name must be unique. Found repeated mesh_dim_name in mesh_dim_names ('dp', 'dp')",
            nothing(Mesh::new(&[2, 4], &["dp", "dp"])),
        ),
        ("an empty name", "no error", nothing(Mesh::new(&[2, 4], &["dp", ""]))),
        ("size 0", "integer modulo by zero", nothing(Mesh::new(&[2, 0], &["dp", "tp"]))),
        (
            "too many ranks",
            "[enforce fail at alloc_cpu.cpp:127] ... you tried to allocate 4398046511104 bytes",
            nothing(Mesh::new(&[1 << 20, 1 << 20], &["dp", "tp"])),
        ),
        (
            "an unknown axis",
            "Invalid mesh_dim_names ('ttp',) specified. Valid mesh_dim_names are ['pp', 'dp', 'tp'].",
            nothing(mesh.select(["ttp"])),
        ),
        (
            "an unknown axis without a similar name",
            "Mesh dimension 'expert' does not exist. Available mesh dimensions are: \
             mesh_dim_names=('pp', 'dp', 'tp')",
            nothing(mesh.group(["expert"], 0)),
        ),
        (
            "an axis named twice",
            "Slicing overlapping dim_names ('dp', 'dp') is not allowed.",
            nothing(mesh.select(["dp", "dp"])),
        ),
        (
            "a name that is in use",
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
            "a wrong product",
            "The product of mesh_sizes=(3,) is 3, but the original dimension at dim=1 has size 2. These \
             must be equal for unflatten to work correctly.",
            nothing(mesh.split("dp", &[("a", 3.into())])),
        ),
        (
            "a product that is too small",
            "The product of mesh_sizes=(2, 2) is 4, but the original dimension at dim=0 has size 8. \
             These must be equal for unflatten to work correctly.",
            nothing(
                Mesh::new(&[8], &["dp"]).unwrap().split("dp", &[("a", 2.into()), ("b", 2.into())]),
            ),
        ),
        (
            "two inferred sizes",
            "infers no sizes: The product of mesh_sizes=(-1, -1) is 1, ...",
            nothing(mesh.split("dp", &[("a", Size::Auto), ("b", Size::Auto)])),
        ),
        (
            "a coordinate out of range",
            "cannot happen: a mesh has only the coordinates of its own rank",
            nothing(mesh.at("pp", 2)),
        ),
        (
            "parts with a common rank",
            "Cannot concatenate overlapping meshes",
            nothing(Mesh::disjoint(&overlapping)),
        ),
        ("a rank with a different mesh", "no error: a silent hang", check_agreement(&disagreeing)),
        (
            "a layout that overlaps itself",
            "only some functions check this: Please use a non-overlapping layout...",
            nothing(RankLayout::new([(2, 2), (3, 1)])),
        ),
        (
            "a layout that does not fill its world",
            "no error: the groups [0, 1, 2], [3, 4, 5], [6, 7, 8]",
            nothing(RankLayout::contiguous(3).unwrap().complement(8)),
        ),
        (
            "a split that does not fit",
            "no error: it returns (2, 3):(6, 1), which is not split",
            nothing(RankLayout::new([(2, 6), (3, 1)]).unwrap().split(&[3, 2])),
        ),
        (
            "a composition out of range",
            "no error: it returns 8:1",
            nothing(
                RankLayout::contiguous(4).unwrap().compose(&RankLayout::contiguous(8).unwrap()),
            ),
        ),
    ]
}

#[test]
fn every_mistake_has_a_message() {
    let mut text = String::new();
    for (mistake, torch, ours) in mistakes() {
        let ours = match ours {
            Ok(()) => "works".to_owned(),
            Err(error) => error.to_string(),
        };
        writeln!(text, "{mistake}\n  torch: {torch}\n  ours:  {ours}\n").unwrap();
    }
    insta::assert_snapshot!(text);
}
