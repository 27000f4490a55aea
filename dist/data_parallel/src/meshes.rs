//! The meshes that the parameters of a model are on.

use meshgrad_autograd::Param;
use meshgrad_error::{ensure, error};
use meshgrad_mesh::Mesh;
use meshgrad_runtime::Result;

use crate::groups::Groups;
use crate::strategy::Strategy;

/// The mesh on which a model computes, and others that some of its parameters are on.
#[derive(Clone)]
pub(crate) struct Meshes {
    pub(crate) main: Groups,
    others: Vec<OtherMesh>,
}

#[derive(Clone)]
struct OtherMesh {
    groups: Groups,
    shard: Vec<String>,
    replicate: Vec<String>,
}

impl Meshes {
    pub(crate) fn new(main: Groups) -> Meshes {
        Meshes { main, others: Vec::new() }
    }

    /// Adds a mesh, whose axes are those over which rows are divided and over which they are copied.
    pub(crate) fn add(&mut self, mesh: &Mesh, shard: Vec<String>, replicate: Vec<String>) {
        let groups = self.main.on_mesh(mesh);
        self.others.push(OtherMesh { groups, shard, replicate });
    }

    /// Checks that all meshes have the same ranks, and the named axes.
    pub(crate) fn check(&self) -> Result<()> {
        let main = &self.main.mesh;
        for OtherMesh { groups, shard, replicate } in &self.others {
            let mesh = &groups.mesh;
            ensure!(
                sorted(mesh) == sorted(main),
                Invalid,
                "data parallelism: mesh {mesh} has other ranks than {main}, the mesh on which the model \
                 computes; use a mesh of the same ranks, such as another domain of the configuration"
            );
            shard.iter().chain(replicate).try_for_each(|axis| mesh.axis(axis).map(drop))?;
        }
        Ok(())
    }

    /// The groups of the mesh that `param` is on, and its unit's strategy there.
    pub(crate) fn of(&self, param: &Param, strategy: &Strategy) -> Result<(&Groups, Strategy)> {
        let shape = param.sharded_shape();
        let mesh = shape.sharding().map_or(&self.main.mesh, |sharding| sharding.mesh());
        if *mesh == self.main.mesh {
            return Ok((&self.main, strategy.clone()));
        }
        let other = self.others.iter().find(|other| other.groups.mesh == *mesh);
        let OtherMesh { groups, shard, replicate } = other.ok_or_else(|| {
            error!(
                Invalid,
                "`{}` is on mesh {mesh}, and its home on mesh {}; use one mesh for both, or name the \
                 axes of its mesh with `DataParallel::mesh`",
                param.name(),
                self.main.mesh
            )
        })?;
        Ok((groups, strategy.over(shard, replicate)))
    }
}

fn sorted(mesh: &Mesh) -> Vec<usize> {
    let mut ranks = mesh.ranks();
    ranks.sort_unstable();
    ranks
}
