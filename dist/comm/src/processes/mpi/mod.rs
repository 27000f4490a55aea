//! Ranks that MPI started. MPI carries their data. The control plane is the same as that of
//! [`Tcp`]; rank 0 distributes its meeting point and secret over MPI.

mod plane;
mod wire;

use std::fmt::Display;
use std::mem::ManuallyDrop;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use meshgrad_error::{Error, Result, error};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Root};

use self::plane::MpiPlane;
use self::wire::Wire;
use super::data::{DataPlane, Engine};
use super::join::Tcp;
use super::process_rank::ProcessRank;
use super::secret::Secret;
use super::shared::Shared;
use crate::system::system;

/// A rank of a world of processes that `mpirun` or `srun` started, before it joins. MPI carries the
/// data, but this crate computes the sums, so results have the same bits as with all other
/// transports.
///
/// A process can join once, because MPI can be initialized once. The thread that joined must drop
/// the [`ProcessRank`], which finalizes MPI. After a failure, dropping does not finalize MPI, and
/// the process should exit with an error: MPI then stops the others.
///
/// ```no_run
/// use meshgrad_comm::{Collectives, Mpi, Rank, Reduction};
/// use meshgrad_runtime::Tensor;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let world = Mpi::new().join()?;
/// let x = Tensor::scalar(world.device(), 1.0f32)?;
/// let sum = world.world()?.all_reduce(&x, Reduction::Sum)?.wait()?;
/// assert_eq!(sum.item::<f32>()?, world.world_size() as f32);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Mpi {
    threads: Option<usize>,
    deadline: Option<Duration>,
    is_strict: bool,
    world: Option<usize>,
}

impl Mpi {
    /// The rank that MPI gives to this process.
    pub fn new() -> Mpi {
        Mpi::default()
    }

    /// The threads of the rank's device, at least 1. By default its share of the host's cores.
    pub fn threads(mut self, threads: usize) -> Mpi {
        self.threads = Some(threads);
        self
    }

    /// The time limit of collectives whose group has no `timeout` option, and of joining; 5 minutes
    /// by default.
    pub fn deadline(mut self, deadline: Duration) -> Mpi {
        self.deadline = Some(deadline);
        self
    }

    /// As [`Local::strict`](crate::Local::strict).
    pub fn strict(mut self, strict: bool) -> Mpi {
        self.is_strict = strict;
        self
    }

    /// The number of ranks that the launcher has started. Joining fails if MPI found another
    /// number, for example because it does not know the launcher.
    pub fn expect_world(mut self, world: usize) -> Mpi {
        self.world = Some(world);
        self
    }

    /// Initializes MPI and joins. Waits until all ranks have joined.
    ///
    /// # Errors
    /// When MPI has been initialized before or cannot be called from threads, and as
    /// [`Tcp::join`].
    pub fn join(self) -> Result<ProcessRank> {
        let library = Library::initialize()?;
        let all = library.world();
        let (rank, world) = (all.rank() as usize, all.size() as usize);
        if let Some(expected) = self.world.filter(|expected| *expected != world) {
            return Err(mpi_error(format!(
                "it found {world} ranks, but the launcher has started {expected}; use the launcher \
                 of the MPI library that this program was built with, or the transport `tcp`"
            )));
        }
        let local = all.split_shared(0).size() as usize;
        let (listener, address, secret) = meet(&all, local == world)?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.unwrap_or((cores / local).max(1));
        let mut tcp =
            Tcp::new(rank, world, address, secret).threads(threads).strict(self.is_strict);
        if let Some(deadline) = self.deadline {
            tcp = tcp.deadline(deadline).join_deadline(deadline);
        }
        if let Some(listener) = listener {
            tcp = tcp.listener(listener);
        }
        tcp.join_over(Some(Box::new(library)))
    }
}

/// MPI, initialized.
struct Library {
    /// Ends MPI when dropped.
    universe: ManuallyDrop<Universe>,
    wire: Mutex<Option<Wire>>,
    is_unfinished: Arc<AtomicBool>,
}

impl Library {
    fn initialize() -> Result<Library> {
        let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Serialized)
        else {
            return Err(mpi_error("this process has initialized it before"));
        };
        if threading < Threading::Serialized {
            return Err(mpi_error("the library was built without support for threads"));
        }
        let wire = Wire::new(universe.world().duplicate());
        Ok(Library {
            universe: ManuallyDrop::new(universe),
            wire: Mutex::new(Some(wire.map_err(mpi_error)?)),
            is_unfinished: Arc::default(),
        })
    }

    fn world(&self) -> SimpleCommunicator {
        self.universe.world()
    }
}

impl Engine for Library {
    fn data_plane(&self, shared: Arc<Shared>) -> Result<Box<dyn DataPlane>> {
        let mut wire = self.wire.lock().unwrap_or_else(PoisonError::into_inner);
        match wire.take() {
            Some(wire) => {
                let plane = MpiPlane::new(shared, wire, self.is_unfinished.clone());
                Ok(Box::new(plane))
            }
            None => Err(mpi_error("it carries the data of another world")),
        }
    }

    fn finish(self: Box<Self>, has_failed: bool) {
        // Ending MPI waits for all ranks, and for all transfers.
        if !has_failed && !self.is_unfinished.load(Ordering::Relaxed) {
            drop(ManuallyDrop::into_inner(self.universe));
        }
    }
}

/// The bytes in which rank 0 distributes its address and the secret.
const MEETING: usize = 512;

/// Where the control plane meets, and the socket of rank 0.
fn meet(
    all: &SimpleCommunicator,
    is_one_host: bool,
) -> Result<(Option<TcpListener>, String, Secret)> {
    let mut buffer = [0; MEETING];
    let lead = match all.rank() {
        0 => Some(listen(is_one_host)),
        _ => None,
    };
    let lead = lead.map(|listening| -> Result<TcpListener> {
        let (listener, address, secret) = listening?;
        let text = [address.as_bytes(), b"\n", secret.expose()].concat();
        let room = buffer.get_mut(..text.len());
        let room = room.ok_or_else(|| mpi_error(format!("its host has a long name: {address}")))?;
        room.copy_from_slice(&text);
        Ok(listener)
    });
    // Also after a failure: the others wait for it.
    all.process_at_rank(0).broadcast_into(&mut buffer);
    let listener = lead.transpose()?;

    let end = buffer.iter().position(|byte| *byte == 0);
    let text = &buffer[..end.unwrap_or(MEETING)];
    let newline = text.iter().position(|byte| *byte == b'\n');
    let Some(newline) = newline else {
        return Err(mpi_error("rank 0 has no meeting point; see its error"));
    };
    let (address, secret) = (&text[..newline], &text[newline + 1..]);
    let address = String::from_utf8_lossy(address).into_owned();
    Ok((listener, address, Secret::new(secret)?))
}

fn listen(is_one_host: bool) -> Result<(TcpListener, String, Secret)> {
    let failed = system("rank 0 could not listen");
    let (interface, name) = match is_one_host {
        true => ("127.0.0.1", "127.0.0.1".to_owned()),
        false => {
            let name = mpi::environment::processor_name();
            ("0.0.0.0", name.map_err(mpi_error)?)
        }
    };
    let listener = TcpListener::bind((interface, 0)).map_err(&failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Ok((listener, format!("{name}:{port}"), Secret::random()?))
}

fn mpi_error(reason: impl Display) -> Error {
    error!(System, "MPI cannot be used: {reason}")
}
