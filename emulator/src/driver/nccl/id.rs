//! Unique ids, each for the communicators of one world of ranks.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::hub::Hub;
use super::refusal::{INVALID_ARGUMENT, Result, SYSTEM_ERROR, refused};
use super::world_id::WorldId;
use crate::driver::configuration::{Configuration, PROCESSES};

/// The first bytes of our unique ids.
const MARK: &[u8; 8] = b"meshgrad";
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A `ncclUniqueId`.
pub(crate) struct UniqueId {
    pub(super) world: WorldId,
    /// The process that created it.
    process: u32,
    /// The name of its hub's socket; empty if all ranks are in that process.
    pub(super) hub: String,
}

impl UniqueId {
    /// A new id. Starts its hub if ranks may be in several processes.
    pub(crate) fn new(configuration: &Configuration) -> Result<UniqueId> {
        let (number, process) = (NEXT.fetch_add(1, Relaxed), std::process::id());
        let world = WorldId::new(number);
        if !configuration.processes {
            return Ok(UniqueId { world, process, hub: String::new() });
        }
        let random = RandomState::new().hash_one(process);
        let hub = format!("meshgrad-{process}-{number}-{random:016x}");
        let started = Hub::start(world, &hub, configuration);
        started.or_else(|error| {
            refused(SYSTEM_ERROR, format!("the hub of {world} cannot be started: {error}"))
        })?;
        Ok(UniqueId { world, process, hub })
    }

    pub(crate) fn to_bytes(&self) -> [u8; 128] {
        let mut id = [0; 128];
        id[..8].copy_from_slice(MARK);
        id[8..16].copy_from_slice(&self.world.number().to_le_bytes());
        id[16..20].copy_from_slice(&self.process.to_le_bytes());
        id[20..20 + self.hub.len()].copy_from_slice(self.hub.as_bytes());
        id
    }

    /// Reads an id, which must be one that ranks of this process may use.
    pub(crate) fn read(id: &[u8; 128], configuration: &Configuration) -> Result<UniqueId> {
        let number = u64::from_le_bytes(std::array::from_fn(|at| id[8 + at]));
        let process = u32::from_le_bytes(std::array::from_fn(|at| id[16 + at]));
        let hub = String::from_utf8_lossy(&id[20..]);
        let hub = hub.trim_end_matches('\0').to_owned();
        let is_own = process == std::process::id();
        let problem = if &id[..8] != MARK || (is_own && number >= NEXT.load(Relaxed)) {
            "is not one that this process has created".to_owned()
        } else if !is_own && !configuration.processes {
            format!("is of process {process}; set {PROCESSES}=1 for ranks in several processes")
        } else if hub.is_empty() && configuration.processes {
            format!("was created without {PROCESSES}=1, which all processes need")
        } else {
            return Ok(UniqueId { world: WorldId::new(number), process, hub });
        };
        refused(INVALID_ARGUMENT, format!("the unique id {problem}"))
    }
}
