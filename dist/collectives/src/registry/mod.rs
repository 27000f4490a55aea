//! The registry: creates and shares communicators.
//!
//! A [`Group`](meshgrad_mesh::Group) is a value and creates nothing. A *communicator* costs
//! hundreds of megabytes on a GPU, and all its members have to take part in its creation. The
//! [`Registry`] of a rank has one communicator per distinct group: ordered ranks, channel and
//! options. Requests for equal groups share it, and dropping the last handle destroys it. A group
//! of one rank needs no communicator. Ranks that are not members take no part in a creation.
//!
//! ```text
//! share(name, group)   declares; nothing is sent
//!     |
//!     +-- plan() -> agree(exchange) -> materialize()   planned: ranks compare their plans, then
//!     |                                                create everything in one global order
//!     +-- connect(now)                                 lazy: at first use, without blocking
//! ```
//!
//! Neither path deadlocks. With a plan, all ranks create communicators in the same total order, so
//! all members of the first one that is not ready create it next. This holds even for a transport
//! that blocks in each creation. With lazy creation, a rank continues after each request, and no
//! creation waits for another.
//!
//! The registry does not depend on a transport, read a clock or start a thread. Transports
//! implement [`Connect`], time is an argument, and the caller's loop calls [`Registry::poll`].
//! [`RecordingWorld`] is a transport for tests with all ranks in one process.
//!
//! ```
//! # use std::{num::NonZeroUsize, time::Duration};
//! # use meshgrad_collectives::registry::{GroupPlan, PollStatus, RecordingWorld, Registry};
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
//! let agreed = GroupPlan::agree_all(ranks.iter().map(Registry::plan).collect())?;
//! for (registry, agreed) in ranks.iter().zip(&agreed) {
//!     registry.materialize(agreed, NonZeroUsize::MIN)?;
//! }
//! loop {
//!     let polled: Vec<_> = ranks.iter().map(|registry| registry.poll(Duration::ZERO)).collect();
//!     if polled.iter().all(PollStatus::is_idle) {
//!         break;
//!     }
//! }
//! assert_eq!(all.counts(5).created, 1); // shared by actor and critic
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agreement;
mod connect;
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
pub use plan::{AgreedPlan, GroupPlan, PlannedGroup};
pub use recording::{
    Counts, PendingCreation, RecordedCommunicator, RecordedCreation, RecordingConnector,
    RecordingWorld,
};
pub use report::{CommunicatorReport, Report, Stage};
pub use shared::{Handle, PollStatus, Registry, Share};
pub use slot::BOOTSTRAP_TIMEOUT;
