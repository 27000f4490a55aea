//! Tickets: what identifies a collective on all members.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use meshgrad_runtime::DType;

/// A kind of collective, or one side of a transfer between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Reduces the tensors of all members; every member gets the result.
    AllReduce,
    /// Concatenates the tensors of all members; every member gets the result.
    AllGather,
    /// Reduces the tensors of all members; every member gets its rows of the result.
    ReduceScatter,
    /// Every member sends a block of rows to every member.
    AllToAll,
    /// Copies the root's tensor to every member.
    Broadcast,
    /// Reduces the tensors of all members; the root gets the result.
    Reduce,
    /// Concatenates the tensors of all members; the root gets the result.
    Gather,
    /// Every member gets its rows of the root's tensor.
    Scatter,
    /// Completes when every member has started it.
    Barrier,
    /// Sends a tensor to one member.
    Send,
    /// Receives a tensor from one member.
    Recv,
    /// Launches a graph, whose collectives were compared when it was captured. Only transports call it.
    Graph,
}

impl Collective {
    /// Every kind.
    pub const ALL: [Collective; 12] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::Barrier,
        Collective::Send,
        Collective::Recv,
        Collective::Graph,
    ];

    /// Its name: the name of the method of [`Collectives`](crate::Collectives), if there is one.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::Barrier => "barrier",
            Collective::Send => "send",
            Collective::Recv => "recv",
            Collective::Graph => "graph",
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum, for all dtypes but bool. Integers wrap.
    Sum,
    /// The sum divided by the number of ranks before it is rounded, for floats.
    Mean,
    /// The maximum, for all dtypes; true if any is, for bool. The first NaN, if there is one.
    Max,
    /// The minimum, for all dtypes; true if all are, for bool. The first NaN, if there is one.
    Min,
}

impl Reduction {
    /// Every reduction.
    pub const ALL: [Reduction; 4] =
        [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min];

    /// Whether it is defined for elements of `dtype`.
    pub fn allows(self, dtype: DType) -> bool {
        match self {
            Reduction::Sum => dtype != DType::Bool,
            Reduction::Mean => dtype.is_float(),
            Reduction::Max | Reduction::Min => true,
        }
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::Max => "max",
            Reduction::Min => "min",
        })
    }
}

/// How many elements a collective moves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Counts {
    /// The same number for every member: of the whole tensor, or of one member's part.
    Even(usize),
    /// The number for each member.
    Ragged(Arc<[usize]>),
    /// The numbers that this member sends to each member and receives from each.
    Pairwise {
        /// To each member.
        send: Arc<[usize]>,
        /// From each member.
        recv: Arc<[usize]>,
    },
}

impl Counts {
    /// Whether calls with these counts can belong to one collective. The counts of pairs are
    /// compared when all members are known.
    fn agree(&self, other: &Counts) -> bool {
        match (self, other) {
            (Counts::Pairwise { .. }, Counts::Pairwise { .. }) => true,
            _ => self == other,
        }
    }

    /// The elements for or from member `index`; what it sends, for pairs.
    pub fn of(&self, index: usize) -> usize {
        match self {
            Counts::Even(count) => *count,
            Counts::Ragged(counts) | Counts::Pairwise { send: counts, .. } => counts[index],
        }
    }

    /// The elements of members before `index`: the offset of its part.
    pub fn before(&self, index: usize) -> usize {
        (0..index).map(|before| self.of(before)).sum()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Counts::Even(count) => write!(f, "{count}"),
            Counts::Ragged(counts) => write!(f, "{counts:?}"),
            Counts::Pairwise { send, recv } => write!(f, "{send:?} to {recv:?}"),
        }
    }
}

/// What all members must agree on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// The kind.
    pub collective: Collective,
    /// The dtype; `None` for a barrier and a graph.
    pub dtype: Option<DType>,
    /// The number of elements; of a graph, how many were captured before it.
    pub counts: Counts,
    /// The reduction, if it reduces.
    pub reduction: Option<Reduction>,
    /// The root's index in the group, if it has one.
    pub root: Option<usize>,
}

impl Fingerprint {
    /// Whether calls with these fingerprints can belong to one collective or transfer.
    pub fn agrees_with(&self, other: &Fingerprint) -> bool {
        let side = |collective| match collective {
            Collective::Send | Collective::Recv => None,
            other => Some(other),
        };
        side(self.collective) == side(other.collective)
            && self.dtype == other.dtype
            && self.counts.agree(&other.counts)
            && (self.reduction, self.root) == (other.reduction, other.root)
    }
}

/// `reduce(f32 x 12, mean, root 1)`
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.collective)?;
        match (self.collective, self.dtype) {
            (Collective::Graph, _) => write!(f, "{}", self.counts)?,
            (_, Some(dtype)) => write!(f, "{dtype} x {}", self.counts)?,
            (_, None) => {}
        }
        if let Some(reduction) = self.reduction {
            write!(f, ", {reduction}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        f.write_str(")")
    }
}

/// The other member of a transfer, by its index in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// The member to send to.
    To(usize),
    /// The member to receive from.
    From(usize),
}

/// One rank's call of a collective, without its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What all members must agree on.
    pub fingerprint: Fingerprint,
    /// The peer of a transfer.
    pub peer: Option<Peer>,
    /// The source line of the call.
    pub caller: &'static Location<'static>,
}

/// One rank's call of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The number of this collective in its communicator, from 0. Transfers are numbered for each
    /// ordered pair of members.
    pub number: u64,
    /// The call.
    pub request: Request,
}

/// Numbers the collectives that a rank starts in one communicator.
#[derive(Debug)]
pub struct Counters {
    collectives: AtomicU64,
    sends: Box<[AtomicU64]>,
    receives: Box<[AtomicU64]>,
}

impl Counters {
    /// Counters of a communicator with `size` members, at 0.
    pub fn new(size: usize) -> Counters {
        let zeros = || (0..size).map(|_| AtomicU64::new(0)).collect();
        Counters { collectives: AtomicU64::new(0), sends: zeros(), receives: zeros() }
    }

    /// Gives a call its number. A peer must be below `size`.
    pub fn ticket(&self, request: Request) -> Ticket {
        let counter = match request.peer {
            None => &self.collectives,
            Some(Peer::To(index)) => &self.sends[index],
            Some(Peer::From(index)) => &self.receives[index],
        };
        Ticket { number: counter.fetch_add(1, Ordering::Relaxed), request }
    }
}
