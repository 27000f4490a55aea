//! Device meshes: the meshes of PyTorch's DeviceMesh tutorial, for all eight ranks in one process.
//!
//! `cargo run --example 08-mesh` shows the view of every rank, `-- 3` only that of rank 3.

use std::fmt::Write;

use meshgrad::mesh::{Mesh, Result};

const WORLD: usize = 8;

/// Computes the groups of a rank by arithmetic, for two hosts of four GPUs: weights are replicated
/// across hosts and sharded within a host.
fn by_hand(rank: usize) -> (Vec<usize>, Vec<usize>) {
    let shard: Vec<usize> = (0..4).map(|at| rank / 4 * 4 + at).collect();
    let replicate: Vec<usize> = (0..2).map(|host| host * 4 + rank % 4).collect();
    (replicate, shard)
}

/// Gets the same groups from a mesh, by names instead of arithmetic.
fn two_axes(rank: usize, out: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let mesh = Mesh::new(&[2, 4], &["replicate", "shard"])?;
    let group = |axis: &str| mesh.group([axis], rank);
    let (replicate, shard) = by_hand(rank);

    for (axis, expected) in [("replicate", replicate), ("shard", shard)] {
        let group = group(axis)?.ok_or("every rank is in the mesh")?;
        assert_eq!(group.ranks(), expected);
        writeln!(out, "  {axis:<10} {group}")?;
    }
    Ok(())
}

/// Hybrid sharding: weights are sharded along one axis and replicated along the other.
fn hybrid_sharding(rank: usize, out: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let mesh = Mesh::new(&[2, 4], &["dp_replicate", "dp_shard"])?;
    let coordinate = mesh.coordinate(rank).ok_or("every rank is in the mesh")?;
    writeln!(
        out,
        "  hybrid     copy {} of the weights, part {} of {}",
        coordinate[0],
        coordinate[1],
        mesh.size("dp_shard")?
    )?;
    Ok(())
}

/// Three axes, and the meshes that parts of a program select from them.
fn three_axes(rank: usize, out: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let mesh = Mesh::new(&[2, 2, 2], &["replicate", "shard", "tp"])?;
    let hsdp = mesh.select(["replicate", "shard"])?;
    let tp = mesh.select(["tp"])?;

    for (name, part) in [("whole", &mesh), ("hsdp", &hsdp), ("tp", &tp)] {
        let names: Vec<&str> = part.axes().iter().map(|axis| axis.name()).collect();
        let mine = part.group(&names, rank)?.ok_or("in the mesh")?;
        writeln!(out, "  {name:<10} {:?} {mine}", part.shape())?;
    }

    // torch cannot group axes in another order, nor flatten axes that are not adjacent.
    let permuted = mesh.group(["tp", "replicate"], rank)?.ok_or("in the mesh")?;
    let flat = mesh.flatten(["replicate", "tp"], "outer")?;
    let outer = flat.group(["outer"], rank)?.ok_or("in the mesh")?;
    writeln!(out, "  tp first   {permuted}\n  outer      {outer} of {flat}")?;
    Ok(())
}

fn view(rank: usize) -> Result<String, Box<dyn std::error::Error>> {
    let mut out = format!("rank {rank}\n");
    two_axes(rank, &mut out)?;
    hybrid_sharding(rank, &mut out)?;
    three_axes(rank, &mut out)?;
    Ok(out)
}

/// Returns the errors of some mistakes. Every rank gets them, before any communication.
fn mistakes() -> Result<String> {
    let mesh = Mesh::new(&[2, 4], &["replicate", "shard"])?;
    let errors = [
        mesh.select(["shards"]).err(),
        Mesh::from_ranks(&[0, 1, 1, 2], &[2, 2], &["dp", "tp"]).err(),
        Mesh::new(&[2, 3], &["dp", "tp"])?.covers(WORLD).err(),
    ];
    let lines = errors.into_iter().flatten().map(|error| format!("  {error}\n"));
    Ok(lines.collect())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let chosen = std::env::args().nth(1).map(|rank| rank.parse());
    match chosen.transpose()? {
        Some(rank) if rank < WORLD => print!("{}", view(rank)?),
        Some(rank) => return Err(format!("rank {rank} is out of range: there are {WORLD}").into()),
        None => {
            for rank in 0..WORLD {
                print!("{}", view(rank)?);
            }
            print!("mistakes\n{}", mistakes()?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_its_view() {
        let views: Result<String, _> = (0..WORLD).map(view).collect();
        insta::assert_snapshot!(views.unwrap());
    }

    #[test]
    fn errors_name_the_remedy() {
        insta::assert_snapshot!(mistakes().unwrap());
    }
}
