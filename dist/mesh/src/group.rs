//! Groups of ranks: who communicates with whom, as a value.
//!
//! A group creates nothing. What it would communicate through is decided by what it *is*: its ranks in
//! their order, its lane and its options. Equal groups are one, whoever made them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::text;

/// Ranks in order, with the lane and the options of their communication. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    ranks: Arc<[usize]>,
    lane: Lane,
    options: Arc<GroupOptions>,
}

impl Group {
    /// A group of these ranks in this order, on the main lane with the default options. The ranks must
    /// be distinct: [`Mesh::group`](crate::Mesh::group) makes them so.
    pub(crate) fn new(ranks: impl Into<Arc<[usize]>>) -> Group {
        Group {
            ranks: ranks.into(),
            lane: Lane::default(),
            options: Arc::default(),
        }
    }

    /// Its ranks, in order.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// How many ranks.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Never: a group has ranks.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Whether it is one rank, which has nobody to communicate with.
    pub fn is_singleton(&self) -> bool {
        self.ranks.len() == 1
    }

    /// Where in it a rank stands, if it is a member.
    pub fn index_of(&self, rank: usize) -> Option<usize> {
        self.ranks.iter().position(|member| *member == rank)
    }

    /// Which of the communicators between these ranks.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// How its communicator is to be made.
    pub fn options(&self) -> &GroupOptions {
        &self.options
    }

    /// The same ranks on another lane: another communicator, that runs beside this one.
    pub fn on(mut self, lane: Lane) -> Group {
        self.lane = lane;
        self
    }

    /// The same ranks with other options.
    pub fn with(mut self, options: GroupOptions) -> Group {
        self.options = Arc::new(options);
        self
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", text::ranks(&self.ranks))?;
        match self.lane {
            Lane::Main => Ok(()),
            lane => write!(f, " on lane {lane}"),
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({self})")
    }
}

/// Which of several communicators between the same ranks. Collectives of one communicator run one
/// after the other; what shall overlap takes another lane, and pays for it with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Lane {
    /// What needs nothing of its own.
    #[default]
    Main,
    /// Gathering weights.
    Gather,
    /// Reducing gradients.
    Reduce,
    /// Sending to the next pipeline stage.
    Forward,
    /// Sending to the previous pipeline stage.
    Backward,
    /// Tokens to their experts and back.
    Dispatch,
    /// A user's own.
    Own(u16),
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lane::Main => f.write_str("main"),
            Lane::Gather => f.write_str("gather"),
            Lane::Reduce => f.write_str("reduce"),
            Lane::Forward => f.write_str("forward"),
            Lane::Backward => f.write_str("backward"),
            Lane::Dispatch => f.write_str("dispatch"),
            Lane::Own(number) => write!(f, "own {number}"),
        }
    }
}

/// How a communicator is made. `None` leaves a choice to the transport. Fields that NCCL has are
/// those of its `ncclConfig_t` (NCCL 2.30); other transports ignore what they do not have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct GroupOptions {
    /// How long a collective may take.
    pub timeout: Option<Duration>,
    /// How long making the communicator may take.
    pub bootstrap_timeout: Option<Duration>,
    /// Whether its kernels run on a stream of high priority.
    pub high_priority: Option<bool>,
    /// `minCTAs`: blocks that a collective takes at least.
    pub min_ctas: Option<u32>,
    /// `maxCTAs`: and at most.
    pub max_ctas: Option<u32>,
    /// `cgaClusterSize`: 0 to 8.
    pub cga_cluster_size: Option<u32>,
    /// `netName`: `IB`, `Socket` or a plug-in's name.
    pub net_name: Option<String>,
    /// `trafficClass` of InfiniBand and RoCE.
    pub traffic_class: Option<u32>,
    /// `splitShare`: whether communicators split from it share its resources.
    pub split_share: Option<bool>,
    /// `collnetEnable`: reductions in the switches.
    pub collnet: Option<bool>,
    /// `nvlsCTAs`: blocks for reductions in NVLink switches.
    pub nvls_ctas: Option<u32>,
}
