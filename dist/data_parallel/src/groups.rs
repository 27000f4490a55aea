//! The groups of ranks along mesh axes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use meshgrad_collectives::{Communicator, GroupConnector, Rank};
use meshgrad_error::{ensure, error};
use meshgrad_mesh::{Group, Mesh};
use meshgrad_runtime::{Device, Error, Result};

/// The groups of this rank along axes of a mesh. Clones share communicators.
#[derive(Clone)]
pub(crate) struct Groups {
    pub(crate) mesh: Mesh,
    /// The stages of a pipeline, of which this rank's computes on `mesh`.
    stages: Option<Stages>,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) device: Device,
    connector: Arc<dyn GroupConnector>,
    /// By the axes.
    connected: Arc<Mutex<Connected>>,
}

#[derive(Clone)]
struct Stages {
    /// The mesh of all stages.
    mesh: Mesh,
    axis: String,
    own: usize,
}

type Connected = HashMap<Vec<String>, Arc<dyn Communicator>>;

impl Groups {
    pub(crate) fn new(rank: &dyn Rank, mesh: &Mesh) -> Groups {
        Groups {
            mesh: mesh.clone(),
            stages: None,
            rank: rank.rank(),
            world_size: rank.world_size(),
            device: rank.device().clone(),
            connector: rank.connector(),
            connected: Arc::default(),
        }
    }

    /// The groups of a stage: `mesh` without `axis`, along which the stages are.
    pub(crate) fn of_stage(rank: &dyn Rank, mesh: &Mesh, axis: &str) -> Result<Groups> {
        let own = mesh.local_rank(axis, rank.rank())?;
        let own = own.ok_or_else(|| outside(rank.rank(), mesh))?;
        let stage = mesh.at(axis, own)?;
        let stages = Stages { mesh: mesh.clone(), axis: axis.to_owned(), own };
        Ok(Groups { stages: Some(stages), ..Groups::new(rank, &stage) })
    }

    /// Those of another mesh with the ranks of `self.mesh`.
    pub(crate) fn on_mesh(&self, mesh: &Mesh) -> Groups {
        Groups { mesh: mesh.clone(), stages: None, connected: Arc::default(), ..self.clone() }
    }

    /// Whether this is one of several stages, which may lack modules.
    pub(crate) fn is_stage(&self) -> bool {
        self.stages.is_some()
    }

    /// The number of this rank's stage; 0 without stages.
    pub(crate) fn stage(&self) -> usize {
        self.stages.as_ref().map_or(0, |stages| stages.own)
    }

    /// Checks the stages that have copies of the unit `modules`.
    pub(crate) fn check_stages(&self, modules: &str, stages: &[usize]) -> Result<()> {
        let Some(last) = stages.iter().max() else {
            return Ok(());
        };
        let along = self.stages()?;
        let count = along.mesh.size(&along.axis)?;
        ensure!(
            *last < count,
            Invalid,
            "the unit `{modules}` is tied to stage {last}, but there are {count} stages, from 0; \
             name stages of the pipeline"
        );
        Ok(())
    }

    fn stages(&self) -> Result<&Stages> {
        self.stages.as_ref().ok_or_else(|| {
            error!(
                Invalid,
                "a unit is tied between stages of a pipeline, but these homes have no stages; \
                 create them by `DataParallel::of_stage`"
            )
        })
    }

    /// The ranks of some stages with this rank's coordinates within the stage.
    pub(crate) fn across(&self, stages: &[usize]) -> Result<Arc<dyn Communicator>> {
        let along = self.stages()?;
        let ranks = stages.iter().map(|stage| {
            let rank = along.mesh.peer(self.rank, &along.axis, *stage);
            rank?.ok_or_else(|| outside(self.rank, &along.mesh))
        });
        let ranks: Vec<usize> = ranks.collect::<Result<_>>()?;
        let group = Group::new(ranks)?;
        self.connector.connect("home", &group)
    }

    /// The ranks that differ along `axes`.
    pub(crate) fn along(&self, axes: &[String]) -> Result<Arc<dyn Communicator>> {
        self.connect(&self.mesh, axes)
    }

    /// All ranks of the mesh, and of all stages.
    pub(crate) fn all(&self) -> Result<Arc<dyn Communicator>> {
        let mesh = self.stages.as_ref().map_or(&self.mesh, |it| &it.mesh);
        let axes = mesh.axes().iter();
        let axes: Vec<String> = axes.map(|axis| axis.name().to_owned()).collect();
        self.connect(mesh, &axes)
    }

    /// `mesh` is that of this stage or, with the axis of the stages in `axes`, of all.
    fn connect(&self, mesh: &Mesh, axes: &[String]) -> Result<Arc<dyn Communicator>> {
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(communicator) = connected.get(axes) {
            return Ok(communicator.clone());
        }
        let group = mesh.group(axes, self.rank)?;
        let group = group.ok_or_else(|| outside(self.rank, mesh))?;
        let communicator = self.connector.connect("home", &group)?;
        connected.insert(axes.to_vec(), communicator.clone());
        Ok(communicator)
    }

    /// Whether this rank is the first along all axes but these.
    pub(crate) fn is_first_beside(&self, axes: &[&String]) -> bool {
        let coordinate = self.mesh.coordinate(self.rank).unwrap_or_default();
        let mut own = self.mesh.axes().iter().zip(coordinate);
        own.all(|(axis, at)| at == 0 || axes.iter().any(|name| *name == axis.name()))
    }
}

fn outside(rank: usize, mesh: &Mesh) -> Error {
    error!(Invalid, "home: rank {rank} is not in mesh {mesh}")
}
