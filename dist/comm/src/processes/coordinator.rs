//! The control plane: a thread of rank 0's process that all ranks are connected to.
//!
//! It admits ranks until the world is complete, hands out the addresses of all, gathers bytes for
//! [`Exchange`](meshgrad_collectives::registry::Exchange), decides why collectives do not
//! complete, and reports ranks that leave or die.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use meshgrad_error::Result;

use super::acceptor::{Acceptor, Admitted};
use super::connection::Connection;
use super::frame::{Frame, FrameError};
use super::handshake::{Purpose, Run};
use super::inquiry::Inquiries;
use super::message::Message;
use super::poll::{Poll, Sleeper, Waker};
use super::secret::{self, Secret};
use crate::system::system;

/// How long the last messages may take when the coordinator ends.
const FLUSH: Duration = Duration::from_secs(2);

/// The running thread.
pub(super) struct Coordinator {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl Coordinator {
    /// Starts it for a world of `world` ranks, which must join before `deadline`. A rank that has
    /// waited for `notice` learns for which.
    pub(super) fn start(
        listener: TcpListener,
        world: usize,
        secret: Secret,
        deadline: Instant,
        notice: Duration,
    ) -> Result<Coordinator> {
        let failed = system("the coordinator could not be started");
        let acceptor = Acceptor::new(listener, secret).map_err(&failed)?;
        let (waker, sleeper) = Waker::pair().map_err(&failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let state = State {
            world,
            run: secret::random()?,
            acceptor,
            clients: BTreeMap::new(),
            leaving: Vec::new(),
            gathers: BTreeMap::new(),
            inquiries: Inquiries::default(),
            has_started: false,
            deadline,
            notice,
            began: Instant::now(),
        };
        let stopped = stop.clone();
        let thread = thread::Builder::new()
            .name("coordinator".to_owned())
            .spawn(move || state.serve(&stopped, &sleeper))
            .map_err(failed)?;
        Ok(Coordinator { thread: Some(thread), stop, waker })
    }

    /// Waits until all ranks have left.
    pub(super) fn finish(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic of the thread closed all its connections, so the other ranks know.
            let _ = thread.join();
        }
    }
}

/// Ends the thread, whether ranks have left or not.
impl Drop for Coordinator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        self.finish();
    }
}

struct State {
    world: usize,
    run: Run,
    acceptor: Acceptor,
    clients: BTreeMap<usize, Client>,
    /// Connections that are closed after their last message.
    leaving: Vec<Connection>,
    gathers: BTreeMap<u64, BTreeMap<usize, Vec<u8>>>,
    inquiries: Inquiries,
    /// Whether all ranks have joined.
    has_started: bool,
    deadline: Instant,
    notice: Duration,
    began: Instant,
}

struct Client {
    connection: Connection,
    from: SocketAddr,
    has_joined: bool,
    /// Where the rank accepts data, over TCP.
    listener: Option<SocketAddr>,
    /// When it is told for which ranks it waits; `None` if it was.
    notice: Option<Instant>,
}

impl State {
    fn serve(mut self, stop: &AtomicBool, sleeper: &Sleeper) {
        while !stop.load(Ordering::Relaxed) && !self.is_over() {
            self.wait(sleeper);
            let now = Instant::now();
            self.read(); // first, so that a rank whose process was replaced can join again
            for admitted in self.acceptor.advance(now) {
                self.admit(admitted);
            }
            let ranks: Vec<usize> = self.clients.keys().copied().collect();
            for message in self.inquiries.advance(now, &ranks) {
                self.tell_all(|_| message.clone());
            }
            self.notify_waiting(now);
            self.write();
            if !self.has_started && now >= self.deadline {
                self.give_up();
                break;
            }
        }
        self.read(); // why rank 0 stopped it
        self.flush(sleeper);
    }

    /// Whether all ranks have left.
    fn is_over(&self) -> bool {
        self.has_started && self.clients.is_empty()
    }

    fn wait(&self, sleeper: &Sleeper) {
        let mut poll = Poll::new(sleeper);
        poll.read(self.acceptor.listener());
        self.acceptor.streams().for_each(|stream| poll.read(stream));
        let clients = self.clients.values().map(|client| &client.connection);
        for connection in clients.chain(&self.leaving) {
            poll.connection(connection);
        }
        let notices = self.clients.values().filter_map(|client| client.notice);
        let next = notices.chain([self.deadline]).min();
        let join = next.filter(|_| !self.has_started);
        let deadlines = [self.acceptor.deadline(), self.inquiries.deadline(), join];
        for deadline in deadlines.into_iter().flatten() {
            poll.until(deadline);
        }
        poll.wait();
    }

    /// Admits a rank, or sends it the reason for the refusal.
    fn admit(&mut self, admitted: Admitted) {
        let Ok(mut connection) = Connection::new(admitted.stream) else {
            return;
        };
        let claim = admitted.claim;
        let (rank, world) = (claim.rank as usize, claim.world as usize);
        let other = self.clients.get(&rank).map(|client| client.from);
        let refusal = match other {
            _ if claim.purpose != Purpose::Control => {
                Some("it connected to the coordinator as to a rank".to_owned())
            }
            _ if world != self.world => Some(format!(
                "its world has {world} ranks, but that of rank 0 has {}; start all ranks with the \
                 same world size",
                self.world
            )),
            _ if rank >= world => Some(format!("the world has {world} ranks")),
            _ if self.has_started => Some("all ranks have already joined".to_owned()),
            Some(other) => Some(format!(
                "rank {rank} has already joined from {other}; give each process its own rank"
            )),
            None => None,
        };
        match refusal {
            Some(reason) => {
                if connection.push(Message::Refused { reason }.into()).is_ok() {
                    self.leaving.push(connection);
                }
            }
            None => {
                let client = Client {
                    connection,
                    from: admitted.from,
                    has_joined: false,
                    listener: None,
                    notice: Some(Instant::now() + self.notice),
                };
                self.clients.insert(rank, client);
            }
        }
    }

    fn read(&mut self) {
        let mut received = Vec::new();
        for (rank, client) in &mut self.clients {
            received.push((*rank, client.connection.read()));
        }
        for (rank, (frames, result)) in received {
            frames.into_iter().for_each(|frame| self.handle(rank, frame));
            if let Err(error) = result {
                self.lost(rank, &error);
            }
        }
    }

    fn handle(&mut self, rank: usize, frame: Frame) {
        match frame.message {
            Message::Join { listener } => {
                if let Some(client) = self.clients.get_mut(&rank) {
                    client.has_joined = true;
                    client.listener = listener;
                }
                self.start_when_complete();
            }
            Message::Gather { number } => {
                let parts = self.gathers.entry(number).or_default();
                parts.insert(rank, frame.payload.to_vec());
                if parts.len() == self.world {
                    self.gathered(number);
                }
            }
            Message::Expired { key, limit, grace, is_control } => {
                self.inquiries.expired(key, limit, grace, is_control);
            }
            Message::Failed { communicator, error } => self.inquiries.failed(communicator, error),
            Message::Answer { number } => match serde_json::from_slice(&frame.payload) {
                Ok(answer) => self.inquiries.answer(rank, number, answer),
                Err(error) => self.died(rank, &format!("its answer cannot be read: {error}")),
            },
            Message::Leave { sent, failure } => {
                self.remove(rank);
                for (other, client) in &mut self.clients {
                    let message = match &failure {
                        Some((failed, reason)) => {
                            Message::Died { rank: *failed, reason: reason.clone() }
                        }
                        None => {
                            Message::Left { rank, sent: sent.get(*other).copied().unwrap_or(0) }
                        }
                    };
                    // A connection that fails is noticed when it is read.
                    let _ = client.connection.push(message.into());
                }
            }
            _ => self.died(rank, "it sent a message that is not for the coordinator"),
        }
    }

    fn start_when_complete(&mut self) {
        let joined = self.clients.values().filter(|client| client.has_joined);
        if self.has_started || joined.count() < self.world {
            return;
        }
        let listeners = self.clients.values().filter_map(|client| client.listener);
        let listeners: Vec<SocketAddr> = listeners.collect();
        let of_host = |address: &SocketAddr| address.ip().is_loopback();
        if listeners.iter().any(of_host) && !listeners.iter().all(of_host) {
            let reason = format!(
                "ranks joined from {listeners:?}, and loopback addresses cannot be reached from \
                 other hosts; set MASTER_ADDR to an address of rank 0 that all hosts reach"
            );
            return self.refuse_all(&reason);
        }
        self.has_started = true;
        let run = self.run;
        self.tell_all(|_| Message::Members { run, listeners: listeners.clone() });
    }

    fn gathered(&mut self, number: u64) {
        let Some(parts) = self.gathers.remove(&number) else {
            return;
        };
        let lengths = parts.values().map(Vec::len).collect();
        let payload: Vec<u8> = parts.into_values().flatten().collect();
        let frame =
            Frame { message: Message::Gathered { number, lengths }, payload: payload.into() };
        for client in self.clients.values_mut() {
            // A connection that fails is noticed when it is read.
            let _ = client.connection.push(frame.clone());
        }
    }

    /// A connection ended. Before the world is complete, the rank may join again.
    fn lost(&mut self, rank: usize, error: &FrameError) {
        match self.has_started {
            true => self.died(rank, &error.to_string()),
            false => drop(self.clients.remove(&rank)),
        }
    }

    /// Reports the end of a rank that has not left.
    fn died(&mut self, rank: usize, reason: &str) {
        if self.clients.remove(&rank).is_none() {
            return;
        }
        self.tell_all(|_| Message::Died { rank, reason: reason.to_owned() });
    }

    fn remove(&mut self, rank: usize) {
        if let Some(client) = self.clients.remove(&rank) {
            self.leaving.push(client.connection);
        }
    }

    /// Tells ranks that have waited for a while which ranks are missing.
    fn notify_waiting(&mut self, now: Instant) {
        if self.has_started {
            return;
        }
        let missing = self.missing();
        for client in self.clients.values_mut() {
            if client.notice.take_if(|due| *due <= now).is_some() {
                let message = Message::Waiting { missing: missing.clone() };
                // A connection that fails is noticed when it is read.
                let _ = client.connection.push(message.into());
            }
        }
    }

    /// The ranks that have not joined.
    fn missing(&self) -> Vec<usize> {
        let has_joined = |rank: &usize| self.clients.get(rank).is_some_and(|it| it.has_joined);
        (0..self.world).filter(|rank| !has_joined(rank)).collect()
    }

    fn give_up(&mut self) {
        let missing = self.missing();
        let waited = self.began.elapsed().as_secs_f32();
        let reason = format!(
            "ranks {missing:?} of {} did not join within {waited:.1} s; see whether their \
             processes run and have the same MASTER_ADDR, MASTER_PORT and MESHGRAD_SECRET",
            self.world
        );
        self.refuse_all(&reason);
    }

    fn refuse_all(&mut self, reason: &str) {
        self.tell_all(|_| Message::Incomplete { reason: reason.to_owned() });
        let clients = std::mem::take(&mut self.clients);
        let connections = clients.into_values().map(|client| client.connection);
        self.leaving.extend(connections);
        self.has_started = true; // no rank can join any more
    }

    fn tell_all(&mut self, message: impl Fn(usize) -> Message) {
        for (rank, client) in &mut self.clients {
            // A connection that fails is noticed when it is read.
            let _ = client.connection.push(message(*rank).into());
        }
    }

    /// Rank 0 is last: its process may end as soon as it knows of a failure, and this thread with
    /// it.
    fn write(&mut self) {
        for client in self.clients.values_mut().rev() {
            // A connection that fails is noticed when it is read.
            let _ = client.connection.write();
        }
        self.leaving.retain_mut(|connection| connection.write().is_ok() && connection.is_writing());
    }

    /// Writes what is left, for a short time.
    fn flush(mut self, sleeper: &Sleeper) {
        let until = Instant::now() + FLUSH;
        let is_writing = |state: &State| {
            let clients = state.clients.values().map(|client| &client.connection);
            clients.chain(&state.leaving).any(Connection::is_writing)
        };
        self.write();
        while is_writing(&self) && Instant::now() < until {
            let mut poll = Poll::new(sleeper);
            let clients = self.clients.values().map(|client| &client.connection);
            for connection in clients.chain(&self.leaving) {
                poll.write(connection);
            }
            poll.until(until);
            poll.wait();
            self.write();
        }
    }
}
