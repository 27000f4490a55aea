//! The accepting side: admits connections whose processes know the secret.
//!
//! A connection that does not finish its handshake in time is closed. If too many are open, the
//! oldest is closed. A process without the secret has no other effect.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::handshake::{self, Claim, RESPONSE};
use super::secret::{self, Secret};

/// The time limit of a handshake.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);
/// The pause after a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);
/// The most handshakes at a time.
const MAX_PENDING: usize = 256;

pub(super) struct Acceptor {
    listener: TcpListener,
    secret: Secret,
    pending: Vec<Pending>,
}

/// A connection that has not been authenticated.
struct Pending {
    stream: TcpStream,
    from: SocketAddr,
    nonce: [u8; 32],
    response: Vec<u8>,
    until: Instant,
}

/// A connection of a process that knows the secret.
pub(super) struct Admitted {
    pub(super) stream: TcpStream,
    pub(super) from: SocketAddr,
    pub(super) claim: Claim,
}

impl Acceptor {
    pub(super) fn new(listener: TcpListener, secret: Secret) -> io::Result<Acceptor> {
        listener.set_nonblocking(true)?;
        Ok(Acceptor { listener, secret, pending: Vec::new() })
    }

    pub(super) fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// The connections to poll for reading.
    pub(super) fn streams(&self) -> impl Iterator<Item = &TcpStream> {
        self.pending.iter().map(|pending| &pending.stream)
    }

    /// When the first handshake runs out of time.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.pending.iter().map(|pending| pending.until).min()
    }

    /// Accepts connections and continues handshakes, without blocking. Returns the connections that
    /// finished.
    pub(super) fn advance(&mut self, now: Instant) -> Vec<Admitted> {
        loop {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    // For example, too many open files: the connection waits.
                    thread::sleep(ACCEPT_AGAIN);
                    break;
                }
            };
            if let Some(pending) = Pending::new(stream, from, now) {
                self.pending.push(pending);
            }
            if self.pending.len() > MAX_PENDING {
                self.pending.remove(0);
            }
        }
        let mut admitted = Vec::new();
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.read() {
                Ok(false) if now < pending.until => self.pending.push(pending),
                Ok(true) => admitted.extend(pending.finish(&self.secret)),
                _ => {} // a stranger, closed here
            }
        }
        admitted
    }
}

impl Pending {
    /// Sends the challenge. It fits into the buffer of a new socket.
    fn new(mut stream: TcpStream, from: SocketAddr, now: Instant) -> Option<Pending> {
        let nonce = secret::random().ok()?;
        stream.set_nonblocking(true).ok()?;
        stream.write_all(&handshake::challenge(&nonce)).ok()?;
        Some(Pending {
            stream,
            from,
            nonce,
            response: Vec::with_capacity(RESPONSE),
            until: now + HANDSHAKE,
        })
    }

    /// Whether the whole response has arrived.
    fn read(&mut self) -> io::Result<bool> {
        let missing = (RESPONSE - self.response.len()) as u64;
        let read = (&self.stream).take(missing).read_to_end(&mut self.response);
        match read {
            Ok(_) if self.response.len() < RESPONSE => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn finish(mut self, secret: &Secret) -> Option<Admitted> {
        let response = self.response.as_slice().try_into().ok()?;
        let (claim, proof) = handshake::check(secret, &self.nonce, response)?;
        self.stream.write_all(&proof).ok()?;
        Some(Admitted { stream: self.stream, from: self.from, claim })
    }
}
