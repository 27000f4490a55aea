//! Transports: what carries the collectives of [`meshgrad_collectives`] between ranks.
//!
//! - [`Local`] is the transport between threads of one process.
//! - [`Plan`] moves nothing and logs what each rank communicates; [`check_logs`] finds mismatches
//!   and deadlocks.
//! - [`Tcp`] is the transport between processes over TCP; `Mpi`, with the feature `mpi`, is the
//!   one over MPI.
//! - [`NcclRank`] is a rank of one of these whose tensors are on a GPU and travel over NCCL.
//! - [`launch`] starts processes and finds out which rank a process is.
//! - [`ranks::run`] runs a main function on threads, or on the processes of a launcher.
//! - [`conformance`] has the checks that every transport must pass; [`speed`] measures it.
//! - [`TracedRank`] counts and records what a rank communicates, and [`chrome_trace`] draws it.

mod by_dtype;
pub mod conformance;
mod contribution;
mod first_failure;
mod hang;
pub mod launch;
mod local;
mod members;
mod nccl;
mod needed;
mod plan;
mod processes;
pub mod ranks;
mod reduce;
mod shares;
pub mod speed;
mod system;
mod traces;
mod verdict;

pub use local::{Local, LocalCommunicator, LocalConnector, LocalRank};
pub use meshgrad_collectives::{
    Clock, Collective, Collectives, CommError, Communicator, ControlChannel, GroupConnector, Rank,
    Redistributor, Reduction, Transferred, Uniform, Verdict,
};
pub use meshgrad_error::{Error, FailedRank, Kind, Result};
pub use nccl::NcclRank;
pub use plan::{
    Checked, CommEvent, CommLog, LoggedCall, Plan, PlanCommunicator, PlanRank, check_logs,
};
#[cfg(feature = "mpi")]
pub use processes::Mpi;
pub use processes::{
    ProcessRank, Secret, Tcp, TcpCommunicator, TcpConnector, TcpExchange, free_port,
};
pub use traces::{CollectiveSpan, CommStats, RankTrace, Recording, Span, TracedRank, chrome_trace};

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/communication.md")]
struct Guide;
