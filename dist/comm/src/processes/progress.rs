//! The thread that moves a rank's data and receives messages of the coordinator.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::data::DataPlane;
use super::frame::Frame;
use super::message::Message;
use super::poll::{Poll, Sleeper};
use super::shared::{Ended, Outbox, Shared};

/// How long the last frames of a failed world may take.
const FLUSH: Duration = Duration::from_secs(2);

pub(super) struct Progress {
    shared: Arc<Shared>,
    sleeper: Sleeper,
    control: Option<Connection>,
    data: Box<dyn DataPlane>,
    /// Set when the last frames have to be written.
    until: Option<Instant>,
    has_said_farewell: bool,
}

impl Progress {
    pub(super) fn new(
        shared: Arc<Shared>,
        sleeper: Sleeper,
        control: Connection,
        data: Box<dyn DataPlane>,
    ) -> Progress {
        Progress {
            shared,
            sleeper,
            control: Some(control),
            data,
            until: None,
            has_said_farewell: false,
        }
    }

    /// Runs until this rank has left and its last frames are written.
    pub(super) fn run(mut self) {
        let _end = End(self.shared.clone());
        while !self.is_done() {
            self.turn();
        }
    }

    fn turn(&mut self) {
        let outbox = self.shared.take_outbox();
        let is_leaving = outbox.leave;
        self.send(outbox);
        self.data.flush();
        self.shared.settle_sent();
        if let Some(control) = &mut self.control {
            // A connection that fails is noticed when it is read.
            let _ = control.write();
        }
        if is_leaving {
            self.leave();
        }
        self.wait();
        self.read_control();
        self.data.receive();
    }

    fn wait(&mut self) {
        if self.is_done() {
            return;
        }
        let mut poll = Poll::new(&self.sleeper);
        if let Some(control) = &self.control {
            poll.connection(control);
        }
        if let Some(until) = self.until {
            poll.until(until);
        }
        self.data.watch(&mut poll);
        poll.wait();
    }

    fn send(&mut self, outbox: Outbox) {
        for (rank, frame) in outbox.data {
            if let Err(error) = self.data.send(rank, frame) {
                self.fail(format!("a frame cannot be sent: {error}"));
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
        if self.has_said_farewell || (self.data.is_writing() && !self.is_late()) {
            return;
        }
        self.has_said_farewell = true;
        let failure = self.shared.death().map(|failed| (failed.rank, failed.reason));
        let sent = self.shared.sent();
        self.tell_coordinator(Message::Leave { sent, failure }.into());
        if let Some(control) = &mut self.control {
            let _ = control.write(); // as above
        }
    }

    fn tell_coordinator(&mut self, frame: Frame) {
        let pushed = self.control.as_mut().map(|control| control.push(frame));
        if let Some(Err(error)) = pushed {
            self.fail(format!("a frame cannot be sent: {error}"));
        }
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    fn is_done(&self) -> bool {
        let is_writing = self.control.as_ref().is_some_and(Connection::is_writing);
        self.has_said_farewell && (!is_writing || self.is_late())
    }

    fn read_control(&mut self) {
        let Some(control) = &mut self.control else {
            return;
        };
        let (frames, result) = control.read();
        frames.into_iter().for_each(|frame| self.control_frame(frame));
        if let Err(error) = result {
            self.control = None;
            // The coordinator closes it after the farewell.
            if !self.has_said_farewell {
                let reason = format!("{error} (rank 0 has the control plane)");
                self.shared.died(0, reason);
            }
        }
    }

    fn control_frame(&mut self, frame: Frame) {
        match frame.message {
            Message::Left { rank, sent } => self.shared.left(rank, sent),
            Message::Died { rank, reason } => self.shared.died(rank, reason),
            Message::Inquiry { number, late } => self.shared.inquire(number, late),
            Message::Verdict { communicators, error } => {
                self.shared.verdict(&communicators, &error.into())
            }
            Message::Gathered { number, lengths } => {
                let mut rest: &[u8] = &frame.payload;
                let split = |length| {
                    let (part, after) = rest.split_at_checked(length)?;
                    rest = after;
                    Some(part.to_vec())
                };
                match lengths.into_iter().map(split).collect() {
                    Some(parts) => self.shared.gathered(number, parts),
                    None => self.shared.died(0, "it sent parts of a wrong length"),
                }
            }
            _ => self.shared.died(0, "it sent a message that is not for a rank"),
        }
    }

    /// Ends the world because of this rank.
    fn fail(&self, reason: String) {
        self.shared.died(self.shared.rank, reason);
    }
}

/// Ends the world when the thread ends, even by a panic: no other thread would complete
/// collectives.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        match thread::panicking() {
            true => self.0.died(self.0.rank, "its thread for collectives panicked"),
            false => self.0.end(Ended::Left),
        }
    }
}
