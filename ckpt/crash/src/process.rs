//! What the processes of a crash test do: one coordinates, all four write. They communicate over a
//! local TCP socket.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use meshgrad_ckpt::vfs::{RealFs, Vfs};
use meshgrad_ckpt::{WriteReport, keep_last_in, newest_in};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::fault_fs::FaultFs;
use crate::invariant::Save;
use crate::outcome::Failure;
use crate::point::Point;
use crate::script::{self, WRITERS};

/// Checkpoints that the coordinator keeps.
pub(crate) const KEEP: NonZeroUsize = NonZeroUsize::new(2).unwrap();

/// The task of one process, passed as one argument of its command line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    pub(crate) run: PathBuf,
    pub(crate) attempt: u64,
    pub(crate) role: Role,
    pub(crate) die_at: Option<Point>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Saves this many times.
    Coordinator { saves: u64 },
    /// Writes its parts until the coordinator closes the connection.
    Writer { writer: u64, port: u16 },
}

/// What the coordinator sends to the writers.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    folder: PathBuf,
    step: u64,
}

impl Job {
    /// The argument for [`run_job`].
    pub fn argument(&self) -> String {
        // Our paths are UTF-8. Any other path gives an empty job, which `run_job` rejects.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Runs a job, the whole task of a spawned process. Prints the lines that the parent process waits
/// for.
///
/// # Errors
/// [`Failure::Broken`] when the argument is not a job, or another process of the test has exited.
pub fn run_job(argument: &str) -> Result<(), Failure> {
    let job: Job = serde_json::from_str(argument)
        .map_err(|error| Failure::Broken(format!("{argument:?} is not a job: {error}")))?;

    let rules = job.die_at.iter().map(Point::rule).collect();
    let vfs: Arc<dyn Vfs> = Arc::new(FaultFs::new(Arc::new(RealFs), rules));
    match job.role {
        Role::Coordinator { saves } => coordinate(&vfs, &job, saves),
        Role::Writer { writer, port } => write(&vfs, &job, writer, port),
    }
}

/// Prints a separate line, even if a test harness has printed part of one before.
fn print_line(line: String) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(format!("\n{line}\n").as_bytes())?;
    out.flush()
}

fn coordinate(vfs: &Arc<dyn Vfs>, job: &Job, saves: u64) -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    print_line(format!("port {}", listener.local_addr()?.port()))?;
    let mut peers = Vec::new();
    for _ in 1..WRITERS {
        peers.push(Peer::new(listener.accept()?.0)?);
    }

    let newest = newest_in(Arc::clone(vfs), &job.run)?;
    let mut step = newest.committed.and_then(|found| found.step()).unwrap_or(0);
    for _ in 0..saves {
        step += 1;
        save(vfs, job, step, &mut peers)?;
        print_line(format!("saved {step}"))?;
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
    let mut reports = vec![script::write(vfs, staging.folder(), save, 0)?];
    for peer in peers {
        let report: Option<WriteReport> = peer.receive()?;
        reports.push(report.ok_or_else(|| Failure::Broken("a writer has exited".to_owned()))?);
    }
    script::commit(staging, save, reports)?;
    Ok(())
}

fn write(vfs: &Arc<dyn Vfs>, job: &Job, writer: u64, port: u16) -> Result<(), Failure> {
    let mut peer = Peer::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)?;
    while let Some(Order { folder, step }) = peer.receive()? {
        let attempt = job.attempt;
        let report = script::write(vfs, &folder, Save { step, attempt }, writer)?;
        peer.send(&report)?;
    }
    Ok(())
}

/// The process at the other end of a connection; messages are lines of JSON.
struct Peer {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Peer {
    fn new(stream: TcpStream) -> io::Result<Peer> {
        stream.set_nodelay(true)?;
        Ok(Peer { writer: stream.try_clone()?, reader: BufReader::new(stream) })
    }

    fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.writer.write_all(&line)
    }

    /// Receives a message; `None` when the other end has closed the connection.
    fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }
}
