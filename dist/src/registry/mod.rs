//! Which communicators exist, and when they are made.
//!
//! A [`Group`](meshgrad_mesh::Group) is a value and makes nothing. What sends is a *communicator*,
//! which costs hundreds of megabytes on a GPU and a meeting of all its members to make. The
//! [`Registry`] of a rank has one for each *key*, which is the whole group: its ranks in order, its
//! channel and its options. Whoever asks for an equal group shares it, under a name that only the
//! [`Report`] knows; the last one to leave drops it. A group of one rank makes nothing, and ranks
//! that are not members do nothing, not even wait.
//!
//! ```text
//! share(name, group)   declares: a value changes hands, nothing is sent
//!     |
//!     +-- plan() -> agree(exchange) -> materialize()   at once: all ranks say what they need, and
//!     |                                                only if they agree is anything made, in an
//!     |                                                order that follows from the keys alone
//!     +-- connect(now)                                 lazily: at first use, never waiting inside
//! ```
//!
//! Neither path can end in a circle of ranks that wait for each other. At once, all ranks make the
//! keys in the same total order, so the first key that is not made yet is the next one of all its
//! members, and it gets made; that holds also when a rank makes one at a time, with a transport
//! that blocks. Lazily, a rank asks and goes on, so it may be in the midst of many creations, and
//! none of them waits for another.
//!
//! Nothing here knows a transport, reads a clock or starts a thread. A transport is what implements
//! [`Connect`]; time is an argument; and whoever has a loop calls [`Registry::poll`] in it.
//! [`RecordingWorld`] is the transport of tests: it lets all ranks of a world meet in one process and
//! counts.
//!
//! ```
//! # use std::{num::NonZeroUsize, time::Duration};
//! # use meshgrad_dist::registry::{Plan, RecordingWorld, Registry, PollStatus};
//! # use meshgrad_mesh::Mesh;
//! let mesh = Mesh::new(&[2, 4], &["dp", "tp"])?;
//! let all = RecordingWorld::new();
//! let ranks: Vec<_> = (0..8).map(|rank| Registry::new(rank, all.connector(rank))).collect();
//!
//! let mut handles = Vec::new();
//! for registry in &ranks {
//!     for name in ["actor.tp", "critic.tp"] {
//!         let group = mesh.group(["tp"], registry.rank())?.expect("a member");
//!         handles.push(registry.share(name, &group)?);
//!     }
//! }
//!
//! let agreed = Plan::agree_all(ranks.iter().map(Registry::plan).collect())?;
//! for (registry, agreed) in ranks.iter().zip(&agreed) {
//!     registry.materialize(agreed, NonZeroUsize::MIN)?;
//! }
//! loop {
//!     let turns: Vec<_> = ranks.iter().map(|registry| registry.poll(Duration::ZERO)).collect();
//!     if turns.iter().all(PollStatus::is_idle) {
//!         break;
//!     }
//! }
//! assert_eq!(all.counts(5).created, 1); // shared by actor and critic
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agreement;
mod connect;
mod error;
mod key;
mod plan;
mod recording;
mod report;
mod shared;
mod slot;
mod state;
mod text;

pub use agreement::{Exchange, PlanDigest};
pub use connect::{Connect, Creation, Progress};
pub use error::{RegistryError, Result};
pub use plan::{AgreedPlan, Plan, PlannedGroup};
pub use recording::{
    Counts, Misuse, PendingCreation, RecordedCommunicator, RecordedCreation, RecordingConnector,
    RecordingWorld,
};
pub use report::{CommunicatorReport, Report, Stage};
pub use shared::{Handle, PollStatus, Registry, Share};
pub use slot::BOOTSTRAP_TIMEOUT;
