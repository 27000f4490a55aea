//! A rank and its communicators for redistributions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Result};

use crate::communicator::Communicator;
use crate::rank::{GroupConnector, Rank};

/// A rank and the communicators that it has used.
pub(super) struct Member {
    pub(super) rank: usize,
    pub(super) device: Device,
    connector: Arc<dyn GroupConnector>,
    communicators: Mutex<HashMap<Group, Arc<dyn Communicator>>>,
}

impl Member {
    pub(super) fn new(rank: &dyn Rank) -> Member {
        Member {
            rank: rank.rank(),
            device: rank.device().clone(),
            connector: rank.connector(),
            communicators: Mutex::default(),
        }
    }

    pub(super) fn communicator(&self, group: &Group) -> Result<Arc<dyn Communicator>> {
        let kept = &self.communicators;
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(communicator) = kept.get(group) {
            return Ok(communicator.clone());
        }
        let communicator = self.connector.connect("redistribute", group)?;
        kept.insert(group.clone(), communicator.clone());
        Ok(communicator)
    }
}
