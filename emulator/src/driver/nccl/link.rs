//! A rank's connection to the hub of its world, and its calls as stream operations.
//!
//! A call is two operations: one reads what the rank sends and posts it to the hub, the other waits for the answer
//! and writes what the rank receives. A thread receives the answers.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::call::Part;
use super::protocol::{Join, Posted, Reply, address};
use super::refusal::{IN_PROGRESS, REMOTE_ERROR, Refusal, Result, SUCCESS, refused};
use crate::memory::{AddressSpace, MemoryError};

/// A rank's connection to the hub of its world.
pub(crate) struct Link {
    size: usize,
    /// The calls of a communicator run one after the other, so one thread at a time sends.
    stream: UnixStream,
    requests: AtomicU64,
    received: Mutex<Received>,
}

#[derive(Default)]
struct Received {
    is_complete: bool,
    /// Whether the hub has closed the connection, or its process has ended.
    is_closed: bool,
    /// Whether this rank has aborted or destroyed its communicator.
    has_left: bool,
    /// What each request receives, or what differs between the members of its call.
    answers: BTreeMap<u64, std::result::Result<Vec<u8>, String>>,
}

/// Calls of a rank that start and end together, each with the number of its request.
pub(crate) struct Exchange {
    link: Arc<Link>,
    parts: Vec<(u64, Part)>,
}

impl Link {
    /// Joins a world, but does not wait for other ranks.
    pub(super) fn join(hub: &str, rank: usize, size: usize) -> Result<Link> {
        let join = || {
            let stream = UnixStream::connect_addr(&address(hub)?)?;
            Join { rank, size, process: std::process::id() }.send(&stream)?;
            Reply::receive(&stream).map(|reply| (stream, reply))
        };
        match join() {
            Ok((_, Reply::Refused(code, message))) => {
                Err(Refusal { code, message, fault_of: None })
            }
            Ok((stream, _)) => {
                Ok(Link { size, stream, requests: AtomicU64::new(0), received: Mutex::default() })
            }
            Err(error) => refused(
                REMOTE_ERROR,
                format!("the communicator, or the process that created its id, has ended: {error}"),
            ),
        }
    }

    /// Receives until the connection ends. Calls `notify` after each message.
    pub(super) fn listen(&self, notify: impl Fn()) {
        while let Ok(reply) = Reply::receive(&self.stream) {
            match reply {
                Reply::Complete => self.lock().is_complete = true,
                Reply::Answer(request, answer) => {
                    self.lock().answers.insert(request, answer);
                }
                Reply::Joined | Reply::Refused(..) => break,
            }
            notify();
        }
        self.lock().is_closed = true;
        notify();
    }

    fn lock(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A code of `ncclResult_t`, apart from errors of this rank.
    pub(super) fn status(&self) -> i32 {
        match *self.lock() {
            Received { is_closed: true, .. } => REMOTE_ERROR,
            Received { is_complete: true, .. } => SUCCESS,
            _ => IN_PROGRESS,
        }
    }

    /// Tells the hub that this rank makes no more calls. It then closes the connection.
    pub(super) fn finish(&self) {
        // An error means that the connection has ended.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends the operations of this rank without results.
    pub(super) fn leave(&self) {
        self.lock().has_left = true;
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Exchange {
    pub(super) fn new(link: Arc<Link>, parts: Vec<Part>) -> Exchange {
        let number = |part| (link.requests.fetch_add(1, Relaxed), part);
        let parts = parts.into_iter().map(number).collect();
        Exchange { link, parts }
    }

    /// Reads and posts what this rank sends.
    pub(crate) fn post(&self, space: &AddressSpace) -> std::result::Result<(), MemoryError> {
        for (request, part) in &self.parts {
            let Part { slot, member, call, buffers } = *part;
            let mut data = vec![0; call.extents(member, self.link.size).0];
            space.read_any(buffers.send, &mut data)?;
            let posted = Posted { request: *request, slot, member, call, data };
            // A call is never answered if the connection has ended.
            let _ = posted.send(&self.link.stream);
        }
        Ok(())
    }

    /// Whether all calls have been answered, the members of one called different things, or the rank has left.
    pub(crate) fn may_end(&self) -> bool {
        let received = self.link.lock();
        let mut answers = self.parts.iter().map(|(request, _)| received.answers.get(request));
        let is_answered = || answers.clone().all(|it| it.is_some());
        received.has_left || is_answered() || answers.any(|it| it.is_some_and(|it| it.is_err()))
    }

    /// Writes what this rank receives. Returns what differs between the members of a call.
    pub(crate) fn receive(
        &self,
        space: &AddressSpace,
    ) -> std::result::Result<Option<String>, MemoryError> {
        let mut received = self.link.lock();
        let take = |(request, part): &(u64, Part)| Some((received.answers.remove(request)?, *part));
        let answers: Vec<_> = self.parts.iter().filter_map(take).collect();
        if received.has_left {
            return Ok(None);
        }
        drop(received);
        for (answer, part) in answers {
            match answer {
                Ok(data) => space.write(part.buffers.receive, &data)?,
                Err(message) => return Ok(Some(message)),
            }
        }
        Ok(None)
    }
}
