//! Which rank has which stage.

use meshgrad_error::error;
use meshgrad_mesh::Mesh;
use meshgrad_models::Stage;
use meshgrad_pipeline::{Action, Compute, Lowering, Op, Placement, Program, Schedule, Shape};

use super::pass_order::PassOrder;
use crate::Result;

/// A model cut into stages, which run on the ranks along an axis of a mesh.
///
/// ```
/// use meshgrad_mesh::Mesh;
/// use meshgrad_pipeline::Named;
/// use meshgrad_train::pipeline::Cut;
///
/// // Five layers on rank 1 of two ranks, which has the second and the third of four stages.
/// let mesh = Mesh::new(&[2], &["pp"])?;
/// let cut = Cut::new(&mesh, "pp", 1, Named::Zbv, &[1, 1, 1, 2])?;
/// let layers: Vec<_> = cut.own_stages().iter().map(|stage| stage.layers.clone()).collect();
/// assert_eq!(layers, [1..2, 2..3]);
/// # Ok::<(), meshgrad_train::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cut {
    /// The mesh of all stages.
    pub(super) mesh: Mesh,
    pub(super) axis: String,
    /// This rank in the world.
    pub(super) rank: usize,
    /// This rank along the axis.
    pub(super) own: usize,
    stages: Vec<Stage>,
    order: PassOrder,
    placement: Placement,
}

impl Cut {
    /// Stages with these numbers of layers, on the ranks along `axis` of `mesh`, as rank `rank` of the
    /// world sees them. Which rank has which stages follows from `order`.
    ///
    /// # Errors
    /// When the schedule does not support that many stages; when the mesh has no such axis, or does
    /// not contain the rank.
    pub fn new(
        mesh: &Mesh,
        axis: &str,
        rank: usize,
        order: impl Into<PassOrder>,
        sizes: &[usize],
    ) -> Result<Cut> {
        let own = mesh.local_rank(axis, rank)?;
        let own = own.ok_or_else(|| error!(Invalid, "rank {rank} is not in mesh {mesh}"))?;
        let (order, ranks) = (order.into(), mesh.size(axis)?);
        let shape = Shape::new(ranks, sizes.len(), order.some_count(ranks))?;
        let placement = order.schedule(shape)?.placement().clone();
        Ok(Cut {
            mesh: mesh.clone(),
            axis: axis.to_owned(),
            rank,
            own,
            stages: Stage::of_sizes(sizes)?,
            order,
            placement,
        })
    }

    /// All stages.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The stages of this rank, in ascending order, for [`Model::part`](meshgrad_models::Model::part).
    pub fn own_stages(&self) -> Vec<Stage> {
        let own = self.placement.stages_of(self.own).iter();
        own.map(|stage| self.stages[*stage].clone()).collect()
    }

    /// The mesh on which a stage of this rank computes: all axes but that of the pipeline.
    ///
    /// # Errors
    /// None, since the mesh has the axis.
    pub fn stage_mesh(&self) -> Result<Mesh> {
        self.mesh.at(&self.axis, self.own)
    }

    pub(super) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The program of a training step.
    ///
    /// # Errors
    /// When the schedule does not support that many microbatches, with the nearest numbers that it
    /// supports.
    pub fn program(&self, microbatches: usize) -> Result<Program> {
        let shape = Shape::new(self.placement.ranks(), self.stages.len(), microbatches)?;
        self.order.schedule(shape)?.lower(&Lowering::default())
    }
}

/// The forward passes of one batch.
pub(super) fn evaluation(placement: &Placement) -> Result<Program> {
    let forward = |stage: &usize| Action::from(Compute::new(Op::Forward, *stage, 0));
    let of_rank = |rank| placement.stages_of(rank).iter().map(forward).collect();
    let ranks = (0..placement.ranks()).map(of_rank).collect();
    Schedule::new(placement.clone(), 1, ranks)?.lower(&Lowering::default())
}
