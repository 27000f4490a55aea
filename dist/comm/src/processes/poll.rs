//! Waiting for many sockets at once, and for other threads.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::Connection;

/// Wakes the thread that waits with the other half.
pub(super) struct Waker(UnixStream);

/// The half of the waiting thread.
pub(super) struct Sleeper(UnixStream);

impl Waker {
    pub(super) fn pair() -> io::Result<(Waker, Sleeper)> {
        let (waker, sleeper) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        sleeper.set_nonblocking(true)?;
        Ok((Waker(waker), Sleeper(sleeper)))
    }

    pub(super) fn wake(&self) {
        // If the buffer is full, the thread is about to wake up. If it has ended, nothing waits.
        let _ = (&self.0).write(&[0]);
    }
}

/// The sockets to wait for.
pub(super) struct Poll<'a> {
    sleeper: &'a Sleeper,
    fds: Vec<PollFd<'a>>,
    /// The longest wait.
    limit: Option<Duration>,
}

impl<'a> Poll<'a> {
    /// Waits for the waker.
    pub(super) fn new(sleeper: &'a Sleeper) -> Poll<'a> {
        let mut poll = Poll { sleeper, fds: Vec::new(), limit: None };
        poll.read(&sleeper.0);
        poll
    }

    pub(super) fn read(&mut self, socket: &'a impl AsFd) {
        self.fds.push(PollFd::new(socket, PollFlags::IN));
    }

    /// Waits until the connection can be read, and written if it has something to write.
    pub(super) fn connection(&mut self, connection: &'a Connection) {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, connection.is_writing());
        self.fds.push(PollFd::new(connection.stream(), flags));
    }

    /// Waits until the connection can be written, if it has something to write.
    pub(super) fn write(&mut self, connection: &'a Connection) {
        if connection.is_writing() {
            let flags = PollFlags::OUT;
            self.fds.push(PollFd::new(connection.stream(), flags));
        }
    }

    /// Waits at most until `deadline`.
    pub(super) fn until(&mut self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        self.at_most(left + Duration::from_millis(1)); // waking late is better than waking twice
    }

    /// Waits at most this long.
    pub(super) fn at_most(&mut self, limit: Duration) {
        self.limit = Some(self.limit.map_or(limit, |other| other.min(limit)));
    }

    /// Waits until a socket is ready, the waker was used or the time is over.
    pub(super) fn wait(mut self) {
        let timeout = self.limit.and_then(|limit| Timespec::try_from(limit).ok());
        // An interrupted wait is repeated by the caller's loop.
        let _ = poll(&mut self.fds, timeout.as_ref());
        let mut bytes = [0; 64];
        while matches!((&self.sleeper.0).read(&mut bytes), Ok(1..)) {}
    }
}
