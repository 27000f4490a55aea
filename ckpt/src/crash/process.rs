//! What the processes of a drill do: one coordinates, all four write. They talk over a socket of
//! this machine.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::law::Save;
use super::points::Point;
use super::script::{self, WRITERS};
use super::{Failure, points};
use crate::discover::newest_in;
use crate::vfs::{FaultFs, RealFs, Vfs};
use crate::{WriteReport, keep_last_in};

/// Checkpoints that the coordinator keeps.
pub(super) const KEEP: NonZeroUsize = NonZeroUsize::new(2).unwrap();

/// What a process of a drill is told, as one argument of its command line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    pub(super) run: PathBuf,
    pub(super) attempt: u64,
    pub(super) role: Role,
    pub(super) die_at: Option<Point>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Role {
    /// Saves so many times.
    Coordinator { saves: u64 },
    /// Writes its parts until the coordinator hangs up.
    Writer { writer: u64, port: u16 },
}

/// What the coordinator tells the writers.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    folder: PathBuf,
    step: u64,
}

impl Job {
    /// The argument for [`work`].
    pub fn argument(&self) -> String {
        // Paths of ours are UTF-8; another one gives an empty job, which `work` refuses.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Does a job of [`run`](super::run): the whole of what a spawned process has to do. Prints to
/// standard output what its parent waits for.
///
/// # Errors
/// [`Failure::Broken`] when the argument is no job, and when another process of the job is gone.
pub fn work(argument: &str) -> Result<(), Failure> {
    let job: Job = serde_json::from_str(argument)
        .map_err(|error| Failure::Broken(format!("{argument:?} is no job: {error}")))?;

    let rules = job.die_at.iter().map(Point::rule).collect();
    let vfs: Arc<dyn Vfs> = Arc::new(FaultFs::new(Arc::new(RealFs), rules));
    match job.role {
        Role::Coordinator { saves } => coordinate(&vfs, &job, saves),
        Role::Writer { writer, port } => write(&vfs, &job, writer, port),
    }
}

/// Ends this process as a kill does: nothing is cleaned up.
pub(super) fn die() {
    process::exit(points::DEAD);
}

/// Its own line, also where a test's harness has begun one.
fn tell(line: String) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(format!("\n{line}\n").as_bytes())?;
    out.flush()
}

fn coordinate(vfs: &Arc<dyn Vfs>, job: &Job, saves: u64) -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    tell(format!("port {}", listener.local_addr()?.port()))?;
    let mut peers = Vec::new();
    for _ in 1..WRITERS {
        peers.push(Peer::new(listener.accept()?.0)?);
    }

    let newest = newest_in(Arc::clone(vfs), &job.run)?;
    let mut step = newest.committed.and_then(|found| found.step()).unwrap_or(0);
    for _ in 0..saves {
        step += 1;
        save(vfs, job, step, &mut peers)?;
        tell(format!("saved {step}"))?;
        keep_last_in(Arc::clone(vfs), &job.run, KEEP)?;
    }
    Ok(())
}

fn save(vfs: &Arc<dyn Vfs>, job: &Job, step: u64, peers: &mut [Peer]) -> Result<(), Failure> {
    let attempt = job.attempt;
    let save = Save { step, attempt };
    let staging = script::stage(vfs, &job.run, save)?;

    let folder = staging.folder().to_owned();
    let order = Order { folder, step };
    for peer in &mut *peers {
        peer.send(&order)?;
    }
    let mut receipts = vec![script::write(vfs, staging.folder(), save, 0)?];
    for peer in peers {
        let receipt: Option<WriteReport> = peer.receive()?;
        receipts.push(receipt.ok_or_else(|| Failure::Broken("a writer is gone".to_owned()))?);
    }
    script::commit(staging, save, receipts)?;
    Ok(())
}

fn write(vfs: &Arc<dyn Vfs>, job: &Job, writer: u64, port: u16) -> Result<(), Failure> {
    let mut peer = Peer::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)?;
    while let Some(Order { folder, step }) = peer.receive()? {
        let attempt = job.attempt;
        let receipt = script::write(vfs, &folder, Save { step, attempt }, writer)?;
        peer.send(&receipt)?;
    }
    Ok(())
}

/// A process at the other end; messages are lines of JSON.
struct Peer {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Peer {
    fn new(stream: TcpStream) -> io::Result<Peer> {
        stream.set_nodelay(true)?;
        Ok(Peer {
            writer: stream.try_clone()?,
            reader: BufReader::new(stream),
        })
    }

    fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.writer.write_all(&line)
    }

    /// `None` when the other end is gone.
    fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }
}
