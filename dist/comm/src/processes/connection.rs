//! Non-blocking connections: frames in, frames out.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;

use super::frame::{Frame, FrameError, FrameReader};

/// The most parts of frames that a system call writes.
const AT_ONCE: usize = 64;

/// A connection that has been authenticated.
pub(super) struct Connection {
    stream: TcpStream,
    reader: FrameReader,
    queue: VecDeque<Outgoing>,
}

/// A frame that is being written.
struct Outgoing {
    head: Vec<u8>,
    frame: Frame,
    written: usize,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, reader: FrameReader::default(), queue: VecDeque::new() })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Reads a frame, if a whole one has arrived.
    pub(super) fn read_one(&mut self) -> Result<Option<Frame>, FrameError> {
        self.reader.read(&mut &self.stream)
    }

    /// Reads the frames that have arrived. They are valid even if the connection fails after them.
    pub(super) fn read(&mut self) -> (Vec<Frame>, Result<(), FrameError>) {
        let mut frames = Vec::new();
        loop {
            match self.read_one() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => return (frames, Ok(())),
                Err(error) => return (frames, Err(error)),
            }
        }
    }

    /// Whether frames wait to be written.
    pub(super) fn is_writing(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn push(&mut self, frame: Frame) -> Result<(), FrameError> {
        self.queue.push_back(Outgoing { head: frame.head()?, frame, written: 0 });
        Ok(())
    }

    /// Writes queued frames until the socket is full, many of them with one system call.
    pub(super) fn write(&mut self) -> io::Result<()> {
        while !self.queue.is_empty() {
            let parts = self.queue.iter().flat_map(Outgoing::rest).map(IoSlice::new);
            let parts: Vec<IoSlice<'_>> = parts.take(AT_ONCE).collect();
            match (&self.stream).write_vectored(&parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes what has been written.
    fn advance(&mut self, mut written: usize) {
        while let Some(first) = self.queue.front_mut() {
            let rest: usize = first.rest().iter().map(|part| part.len()).sum();
            if written < rest {
                first.written += written;
                return;
            }
            written -= rest;
            self.queue.pop_front();
        }
    }
}

impl Outgoing {
    /// What has not been written of the head and of the payload.
    fn rest(&self) -> [&[u8]; 2] {
        let in_head = self.written.min(self.head.len());
        [&self.head[in_head..], &self.frame.payload[self.written - in_head..]]
    }
}
