//! The thread that moves a rank's data, and the thread that opens its connections.
//!
//! A connection carries frames in one direction, from the rank that opened it, and is opened with
//! the first frame. Opening blocks, so another thread does it.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::acceptor::{Acceptor, HANDSHAKE};
use super::connection::Connection;
use super::frame::{Frame, FrameError};
use super::handshake::{self, Claim, Failure, Purpose, Run};
use super::message::Message;
use super::poll::{Poll, Sleeper};
use super::secret::Secret;
use super::shared::{Ended, Outbox, Shared};

/// The time limit of opening a connection.
const OPEN: Duration = Duration::from_secs(10);
/// How long a lost connection may be that of a rank that is about to be reported as having left.
const GRACE: Duration = Duration::from_secs(2);
/// How long the last frames of a failed world may take.
const FLUSH: Duration = Duration::from_secs(2);

/// A rank's place in its world.
pub(super) struct Place {
    pub(super) rank: usize,
    pub(super) run: Run,
    pub(super) secret: Secret,
    /// Where the ranks accept connections.
    pub(super) listeners: Vec<SocketAddr>,
}

pub(super) struct Progress {
    shared: Arc<Shared>,
    place: Arc<Place>,
    sleeper: Sleeper,
    control: Option<Connection>,
    acceptor: Acceptor,
    incoming: Vec<(usize, Connection)>,
    outgoing: BTreeMap<usize, Outgoing>,
    /// Set when the last frames have to be written.
    until: Option<Instant>,
    has_said_farewell: bool,
}

/// The connection to a rank.
enum Outgoing {
    Opening(VecDeque<Frame>),
    Open(Connection),
    Lost { since: Instant, reason: String },
}

type Opened = (usize, Result<TcpStream, String>);

impl Progress {
    pub(super) fn new(
        shared: Arc<Shared>,
        place: Place,
        sleeper: Sleeper,
        control: Connection,
        acceptor: Acceptor,
    ) -> Progress {
        Progress {
            shared,
            place: Arc::new(place),
            sleeper,
            control: Some(control),
            acceptor,
            incoming: Vec::new(),
            outgoing: BTreeMap::new(),
            until: None,
            has_said_farewell: false,
        }
    }

    /// Runs until this rank has left and its last frames are written.
    pub(super) fn run(mut self) {
        let (to_open, requests) = channel();
        let (done, opened) = channel();
        let (place, shared) = (self.place.clone(), self.shared.clone());
        thread::scope(|scope| {
            let opener = thread::Builder::new().name(format!("opener of rank {}", place.rank));
            let opener =
                opener.spawn_scoped(scope, move || open_all(&place, &shared, &requests, &done));
            if let Err(error) = opener {
                self.end(
                    self.place.rank,
                    format!("the system refused a thread: {error}"),
                );
            }
            while !self.is_done() {
                self.turn(&to_open, &opened);
            }
            drop(to_open);
        });
        self.shared.end(Ended::Left);
    }

    fn turn(&mut self, to_open: &Sender<usize>, opened: &Receiver<Opened>) {
        let outbox = self.shared.take_outbox();
        let is_leaving = outbox.leave;
        self.send(outbox, to_open);
        for (rank, stream) in opened.try_iter() {
            self.opened(rank, stream);
        }
        self.write();
        if is_leaving {
            self.leave();
        }
        self.wait();
        self.read_control();
        let now = Instant::now();
        for admitted in self.acceptor.advance(now) {
            let claim = admitted.claim;
            let is_expected = claim.purpose == Purpose::Data && claim.run == self.place.run;
            let rank = claim.rank as usize;
            if is_expected && rank < self.place.listeners.len() {
                let connection = Connection::new(admitted.stream).ok();
                self.incoming.extend(connection.map(|it| (rank, it)));
            }
        }
        self.read_data();
        self.check_lost(now);
    }

    fn wait(&self) {
        if self.is_done() {
            return;
        }
        let mut poll = Poll::new(&self.sleeper);
        poll.read(self.acceptor.listener());
        self.acceptor.streams().for_each(|stream| poll.read(stream));
        let incoming = self.incoming.iter().map(|(_, connection)| connection);
        for connection in self.control.iter().chain(incoming) {
            poll.connection(connection);
        }
        let mut deadline = self.acceptor.deadline().into_iter().chain(self.until).min();
        for (rank, outgoing) in &self.outgoing {
            match outgoing {
                Outgoing::Open(connection) => poll.connection(connection),
                Outgoing::Lost { since, .. } if self.is_waited_for(*rank) => {
                    deadline = deadline.into_iter().chain([*since + GRACE]).min();
                }
                _ => {}
            }
        }
        poll.wait(deadline);
    }

    fn send(&mut self, outbox: Outbox, to_open: &Sender<usize>) {
        for (rank, frame) in outbox.data {
            let outgoing = self.outgoing.entry(rank).or_insert_with(|| {
                // The thread ends after this one.
                let _ = to_open.send(rank);
                Outgoing::Opening(VecDeque::new())
            });
            let pushed = match outgoing {
                Outgoing::Opening(frames) => {
                    frames.push_back(frame);
                    Ok(())
                }
                Outgoing::Open(connection) => connection.push(frame),
                Outgoing::Lost { .. } => Ok(()),
            };
            if let Err(error) = pushed {
                self.end(self.place.rank, format!("a frame cannot be sent: {error}"));
            }
        }
        for frame in outbox.control {
            self.tell_coordinator(frame);
        }
    }

    /// Says farewell when all frames are written.
    fn leave(&mut self) {
        if self.shared.has_ended() && self.until.is_none() {
            self.until = Some(Instant::now() + FLUSH);
        }
        let is_late = self.until.is_some_and(|until| Instant::now() >= until);
        let is_writing = self.outgoing.values().any(|outgoing| match outgoing {
            Outgoing::Opening(_) => true,
            Outgoing::Open(connection) => connection.is_writing(),
            Outgoing::Lost { .. } => false,
        });
        if self.has_said_farewell || (is_writing && !is_late) {
            return;
        }
        self.has_said_farewell = true;
        let own = |(rank, _): &(usize, String)| *rank == self.place.rank;
        let failure = self.shared.death().filter(own).map(|(_, reason)| reason);
        let sent = self.shared.sent();
        self.tell_coordinator(Message::Leave { sent, failure }.into());
        self.write();
    }

    fn tell_coordinator(&mut self, frame: Frame) {
        let pushed = self.control.as_mut().map(|control| control.push(frame));
        if let Some(Err(error)) = pushed {
            self.end(self.place.rank, format!("a frame cannot be sent: {error}"));
        }
    }

    fn is_done(&self) -> bool {
        let is_writing = self.control.as_ref().is_some_and(Connection::is_writing);
        let is_late = self.until.is_some_and(|until| Instant::now() >= until);
        self.has_said_farewell && (!is_writing || is_late)
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
        if let Some(control) = &mut self.control {
            // A connection that fails is noticed when it is read.
            let _ = control.write();
        }
        for outgoing in self.outgoing.values_mut() {
            if let Outgoing::Open(connection) = outgoing
                && let Err(error) = connection.write()
            {
                *outgoing = Outgoing::lost(error.to_string());
            }
        }
    }

    fn read_control(&mut self) {
        let Some(control) = &mut self.control else {
            return;
        };
        let (frames, result) = control.read();
        frames
            .into_iter()
            .for_each(|frame| self.control_frame(frame));
        if let Err(error) = result {
            self.control = None;
            self.end(0, format!("{error} (rank 0 has the control plane)"));
        }
    }

    fn control_frame(&mut self, frame: Frame) {
        match frame.message {
            Message::Left { rank, sent } => self.shared.left(rank, sent),
            Message::Died { rank, reason } => self.end(rank, reason),
            Message::Gathered { number, lengths } => {
                let mut rest = frame.payload.as_slice();
                let split = |length| {
                    let (part, after) = rest.split_at_checked(length)?;
                    rest = after;
                    Some(part.to_vec())
                };
                match lengths.into_iter().map(split).collect() {
                    Some(parts) => self.shared.gathered(number, parts),
                    None => self.end(0, "it sent parts of a wrong length".to_owned()),
                }
            }
            _ => self.end(0, "it sent a message that is not for a rank".to_owned()),
        }
    }

    fn read_data(&mut self) {
        let shared = &self.shared;
        let mut ended = None;
        self.incoming.retain_mut(|(rank, connection)| {
            let (frames, result) = connection.read();
            for frame in frames {
                if let Err(reason) = shared.deliver(*rank, frame) {
                    ended = Some((*rank, reason.to_owned()));
                    return false;
                }
            }
            match result {
                Ok(()) => return true,
                // The coordinator reports whether the rank left or died.
                Err(FrameError::Closed | FrameError::Io(_)) => {}
                Err(error) => ended = Some((*rank, error.to_string())),
            }
            false
        });
        if let Some((rank, reason)) = ended {
            self.end(rank, reason);
        }
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
    fn check_lost(&mut self, now: Instant) {
        let mut lost = self
            .outgoing
            .iter()
            .filter_map(|(rank, outgoing)| match outgoing {
                Outgoing::Lost { since, reason } if now >= *since + GRACE => {
                    Some((*rank, reason.clone()))
                }
                _ => None,
            });
        if let Some((rank, reason)) = lost.find(|(rank, _)| self.is_waited_for(*rank)) {
            self.end(rank, format!("the connection to it was lost: {reason}"));
        }
    }

    /// Whether a rank neither left nor died.
    fn is_waited_for(&self, rank: usize) -> bool {
        !self.shared.has_ended() && !self.shared.has_left(rank)
    }

    fn end(&self, rank: usize, reason: String) {
        self.shared.end(Ended::Died { rank, reason });
    }
}

impl Outgoing {
    fn lost(reason: String) -> Outgoing {
        Outgoing::Lost {
            since: Instant::now(),
            reason,
        }
    }
}

/// Opens the connections to the requested ranks, one after another.
fn open_all(place: &Place, shared: &Shared, requests: &Receiver<usize>, done: &Sender<Opened>) {
    for rank in requests {
        let stream = match shared.has_ended() {
            true => Err("the world has ended".to_owned()),
            false => open(place, rank),
        };
        if done.send((rank, stream)).is_err() {
            return;
        }
        shared.wake();
    }
}

fn open(place: &Place, rank: usize) -> Result<TcpStream, String> {
    let address = place.listeners[rank];
    let mut stream = TcpStream::connect_timeout(&address, OPEN)
        .map_err(|error| format!("{address}: {error}"))?;
    let claim = Claim {
        purpose: Purpose::Data,
        rank: place.rank as u32, // ranks are below 2^32
        world: place.listeners.len() as u32,
        run: place.run,
    };
    let until = Instant::now() + OPEN.max(HANDSHAKE);
    handshake::connect(&mut stream, &place.secret, claim, until).map_err(|error| match error {
        Failure::Connection(error) => format!("{address}: {error}"),
        Failure::Stranger(reason) => format!("{address}: {reason}"),
    })?;
    Ok(stream)
}
