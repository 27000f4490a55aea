//! Frames between ranks over TCP.
//!
//! A connection carries frames in one direction, from the rank that opened it, and is opened with
//! the first frame. Opening blocks, so another thread does it.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::acceptor::{Acceptor, Admitted, HANDSHAKE};
use super::connection::Connection;
use super::data::DataPlane;
use super::frame::{Frame, FrameError};
use super::handshake::{self, Claim, Failure, Purpose, Run};
use super::poll::Poll;
use super::secret::Secret;
use super::shared::Shared;

/// The time limit of opening a connection.
const OPEN: Duration = Duration::from_secs(10);
/// How long after a connection is lost its rank may still be reported as having left.
const GRACE: Duration = Duration::from_secs(2);

/// Where the ranks are.
pub(super) struct Addresses {
    pub(super) run: Run,
    pub(super) secret: Secret,
    /// Where each rank accepts connections.
    pub(super) listeners: Vec<SocketAddr>,
}

/// Connections to and from other ranks.
pub(super) struct TcpData {
    shared: Arc<Shared>,
    run: Run,
    acceptor: Acceptor,
    incoming: Vec<(usize, Connection)>,
    outgoing: BTreeMap<usize, Outgoing>,
    opener: Opener,
}

/// The connection to a rank.
enum Outgoing {
    Opening(VecDeque<Frame>),
    Open(Connection),
    Lost { since: Instant, reason: String },
}

type Opened = (usize, Result<TcpStream, String>);

/// The thread that opens connections.
struct Opener {
    requests: Option<Sender<usize>>,
    opened: Receiver<Opened>,
    thread: Option<JoinHandle<()>>,
}

impl TcpData {
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn start(
        shared: Arc<Shared>,
        addresses: Addresses,
        acceptor: Acceptor,
    ) -> std::io::Result<TcpData> {
        Ok(TcpData {
            run: addresses.run,
            opener: Opener::start(shared.clone(), addresses)?,
            shared,
            acceptor,
            incoming: Vec::new(),
            outgoing: BTreeMap::new(),
        })
    }

    fn admit(&mut self, admitted: Admitted) {
        let claim = admitted.claim;
        let is_expected = claim.purpose == Purpose::Data && claim.run == self.run;
        let rank = claim.rank as usize;
        if is_expected && rank < self.shared.world {
            let connection = Connection::new(admitted.stream).ok();
            self.incoming.extend(connection.map(|it| (rank, it)));
        }
    }

    fn opened(&mut self, rank: usize, stream: Result<TcpStream, String>) {
        let Some(Outgoing::Opening(frames)) = self.outgoing.remove(&rank) else {
            return;
        };
        let open = || -> Result<Connection, String> {
            let mut connection = Connection::new(stream?).map_err(|error| error.to_string())?;
            for frame in frames {
                connection.push(frame).map_err(|error| error.to_string())?;
            }
            Ok(connection)
        };
        let outgoing = match open() {
            Ok(connection) => Outgoing::Open(connection),
            Err(reason) => Outgoing::lost(reason),
        };
        self.outgoing.insert(rank, outgoing);
    }

    fn write(&mut self) {
        for outgoing in self.outgoing.values_mut() {
            if let Outgoing::Open(connection) = outgoing
                && let Err(error) = connection.write()
            {
                *outgoing = Outgoing::lost(error.to_string());
            }
        }
    }

    fn read(&mut self) {
        let shared = &self.shared;
        self.incoming.retain_mut(|(rank, connection)| {
            let (frames, result) = connection.read();
            for frame in frames {
                if let Err(reason) = shared.deliver(*rank, frame) {
                    shared.died(*rank, reason);
                    return false;
                }
            }
            match result {
                Ok(()) => return true,
                // The coordinator reports whether the rank left or died.
                Err(FrameError::Closed | FrameError::Io(_)) => {}
                Err(error) => shared.died(*rank, error.to_string()),
            }
            false
        });
        for outgoing in self.outgoing.values_mut() {
            if let Outgoing::Open(connection) = outgoing {
                // Nothing is sent in this direction, so only the end of the connection is read.
                if let (_, Err(error)) = connection.read() {
                    *outgoing = Outgoing::lost(error.to_string());
                }
            }
        }
    }

    /// Ends the world if a connection is lost but its rank neither left nor died.
    fn check_lost(&self, now: Instant) {
        let lost = self.outgoing.iter().find_map(|(rank, outgoing)| {
            let (since, reason) = outgoing.lost_since()?;
            (now >= since + GRACE && self.is_waited_for(*rank)).then_some((*rank, reason))
        });
        if let Some((rank, reason)) = lost {
            let reason = format!("the connection to it was lost: {reason}");
            self.shared.died(rank, reason);
        }
    }

    /// Whether a rank neither left nor died.
    fn is_waited_for(&self, rank: usize) -> bool {
        !self.shared.has_ended() && !self.shared.has_left(rank)
    }
}

impl DataPlane for TcpData {
    fn send(&mut self, rank: usize, frame: Frame) -> Result<(), FrameError> {
        let opener = &self.opener;
        let outgoing = self.outgoing.entry(rank).or_insert_with(|| {
            opener.request(rank);
            Outgoing::Opening(VecDeque::new())
        });
        match outgoing {
            Outgoing::Opening(frames) => frames.push_back(frame),
            Outgoing::Open(connection) => connection.push(frame)?,
            Outgoing::Lost { .. } => {}
        }
        Ok(())
    }

    fn flush(&mut self) {
        while let Ok((rank, stream)) = self.opener.opened.try_recv() {
            self.opened(rank, stream);
        }
        self.write();
    }

    fn receive(&mut self) {
        let now = Instant::now();
        for admitted in self.acceptor.advance(now) {
            self.admit(admitted);
        }
        self.read();
        self.check_lost(now);
    }

    fn is_writing(&self) -> bool {
        self.outgoing.values().any(|outgoing| match outgoing {
            Outgoing::Opening(_) => true,
            Outgoing::Open(connection) => connection.is_writing(),
            Outgoing::Lost { .. } => false,
        })
    }

    fn watch<'a>(&'a mut self, poll: &mut Poll<'a>) {
        poll.read(self.acceptor.listener());
        self.acceptor.streams().for_each(|stream| poll.read(stream));
        for (_, connection) in &self.incoming {
            poll.connection(connection);
        }
        if let Some(deadline) = self.acceptor.deadline() {
            poll.until(deadline);
        }
        for (rank, outgoing) in &self.outgoing {
            if let Outgoing::Open(connection) = outgoing {
                poll.connection(connection);
            }
            if let Some((since, _)) = outgoing.lost_since()
                && self.is_waited_for(*rank)
            {
                poll.until(since + GRACE);
            }
        }
    }
}

impl Outgoing {
    fn lost(reason: String) -> Outgoing {
        Outgoing::Lost { since: Instant::now(), reason }
    }

    fn lost_since(&self) -> Option<(Instant, &str)> {
        match self {
            Outgoing::Lost { since, reason } => Some((*since, reason)),
            _ => None,
        }
    }
}

impl Opener {
    fn start(shared: Arc<Shared>, addresses: Addresses) -> std::io::Result<Opener> {
        let (requests, to_open) = channel();
        let (done, opened) = channel();
        let thread = thread::Builder::new().name(format!("opener of rank {}", shared.rank));
        let thread = thread.spawn(move || open_all(&addresses, &shared, &to_open, &done))?;
        Ok(Opener { requests: Some(requests), opened, thread: Some(thread) })
    }

    fn request(&self, rank: usize) {
        if let Some(requests) = &self.requests {
            // The thread ends after this one.
            let _ = requests.send(rank);
        }
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // Nothing waits for the connections any more.
            let _ = thread.join();
        }
    }
}

/// Opens the connections to the requested ranks, one after another.
fn open_all(
    addresses: &Addresses,
    shared: &Shared,
    requests: &Receiver<usize>,
    done: &Sender<Opened>,
) {
    for rank in requests {
        let stream = match shared.has_ended() {
            true => Err("the world has ended".to_owned()),
            false => open(addresses, shared.rank, rank),
        };
        if done.send((rank, stream)).is_err() {
            return;
        }
        shared.wake();
    }
}

fn open(addresses: &Addresses, own: usize, rank: usize) -> Result<TcpStream, String> {
    let address = addresses.listeners[rank];
    let mut stream = TcpStream::connect_timeout(&address, OPEN)
        .map_err(|error| format!("{address}: {error}"))?;
    let claim = Claim {
        purpose: Purpose::Data,
        rank: own as u32, // ranks are below 2^32
        world: addresses.listeners.len() as u32,
        run: addresses.run,
    };
    let until = Instant::now() + OPEN.max(HANDSHAKE);
    handshake::connect(&mut stream, &addresses.secret, claim, until).map_err(
        |error| match error {
            Failure::Connection(error) => format!("{address}: {error}"),
            Failure::Stranger(reason) => format!("{address}: {reason}"),
        },
    )?;
    Ok(stream)
}
