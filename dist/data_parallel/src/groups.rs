//! The groups of ranks along mesh axes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use meshgrad_comm::{Communicator, GroupConnector, Rank};
use meshgrad_mesh::Mesh;
use meshgrad_runtime::{Device, Error, Result};

/// The groups of this rank along axes of a mesh. Clones share communicators.
#[derive(Clone)]
pub(crate) struct Groups {
    pub(crate) mesh: Mesh,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) device: Device,
    connector: Arc<dyn GroupConnector>,
    /// By the axes.
    connected: Arc<Mutex<Connected>>,
}

type Connected = HashMap<Vec<String>, Arc<dyn Communicator>>;

impl Groups {
    pub(crate) fn new(rank: &dyn Rank, mesh: &Mesh) -> Groups {
        Groups {
            mesh: mesh.clone(),
            rank: rank.rank(),
            world_size: rank.world_size(),
            device: rank.device().clone(),
            connector: rank.connector(),
            connected: Arc::default(),
        }
    }

    /// The ranks that differ along `axes`.
    pub(crate) fn along(&self, axes: &[String]) -> Result<Arc<dyn Communicator>> {
        let mut connected = self
            .connected
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(communicator) = connected.get(axes) {
            return Ok(communicator.clone());
        }
        let group = self.mesh.group(axes, self.rank).map_err(Error::other)?;
        let group = group.ok_or_else(|| Error::Argument {
            op: "home",
            problem: format!("rank {} is not in mesh {}", self.rank, self.mesh),
        })?;
        let communicator = self.connector.connect("home", &group)?;
        connected.insert(axes.to_vec(), communicator.clone());
        Ok(communicator)
    }

    /// All ranks of the mesh.
    pub(crate) fn all(&self) -> Result<Arc<dyn Communicator>> {
        let axes = self.mesh.axes().iter();
        let axes: Vec<String> = axes.map(|axis| axis.name().to_owned()).collect();
        self.along(&axes)
    }

    /// Whether this rank is the first along all axes but these.
    pub(crate) fn is_first_beside(&self, axes: &[&String]) -> bool {
        let coordinate = self.mesh.coordinate(self.rank).unwrap_or_default();
        let mut own = self.mesh.axes().iter().zip(coordinate);
        own.all(|(axis, at)| at == 0 || axes.iter().any(|name| *name == axis.name()))
    }
}
