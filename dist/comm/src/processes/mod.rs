//! The transports between processes: over TCP, and over MPI.
//!
//! Rank 0 runs the control plane ([`coordinator`]): all ranks join it, learn each other's
//! addresses, and are notified by it when a rank leaves or dies. Data goes directly between ranks.
//! A process has a fixed number of threads for this, whatever the number of groups: one moves data,
//! one opens connections, and in the process of rank 0 one is the coordinator.
//!
//! - `secret.rs`, `handshake.rs`, `acceptor.rs`: only processes that know the secret get in.
//! - `bytes.rs`, `frame.rs`, `message.rs`, `connection.rs`, `poll.rs`: what is sent, and how.
//! - `coordinator.rs`, `meeting.rs`, `join.rs`: the control plane, and how a rank joins it.
//! - `port.rs`: a port for a rank 0 that is yet to start.
//! - `inquiry.rs`: why collectives do not complete, decided by the coordinator.
//! - `engine.rs`, `call.rs`: the rounds of a collective.
//! - `shared.rs`, `progress.rs`: a rank's open collectives, and the thread that completes them.
//! - `data.rs`, `tcp.rs`: what carries frames between ranks. `mpi/` does it over MPI.
//! - `communicator.rs`, `process_rank.rs`: a communicator, and the rank's view of the world.

mod acceptor;
mod bytes;
mod call;
mod communicator;
mod connection;
mod coordinator;
mod data;
mod engine;
mod frame;
mod handshake;
mod inquiry;
mod join;
mod meeting;
mod message;
#[cfg(feature = "mpi")]
mod mpi;
mod poll;
mod port;
mod process_rank;
mod progress;
mod secret;
mod shared;
mod tcp;

pub use communicator::{TcpCommunicator, TcpConnector, TcpExchange};
pub use join::Tcp;
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use port::free_port;
pub use process_rank::ProcessRank;
pub use secret::Secret;
