//! Frames between ranks over MPI.
//!
//! A frame is one message with its head and its payload. A large payload is a message of its own,
//! which is not copied; MPI keeps the order of both kinds.

use std::collections::{HashMap, VecDeque};
use std::os::raw::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use meshgrad_error::Result;

use super::wire::{Receiving, Sending, Wire};
use crate::processes::bytes::Bytes;
use crate::processes::data::DataPlane;
use crate::processes::frame::{self, Frame, FrameError};
use crate::processes::message::{CallKey, Message};
use crate::processes::poll::Poll;
use crate::processes::shared::Shared;

const FRAME: c_int = 0;
const PAYLOAD: c_int = 1;
/// The longest payload in the message of its frame.
const SHORT: usize = 4096;

/// How long after the last message a waiting rank polls without pauses.
const SPIN: Duration = Duration::from_millis(1);
/// The pause between polls after that.
const PAUSE: Duration = Duration::from_micros(50);
/// How long sends to a rank that has left may take.
const LINGER: Duration = Duration::from_millis(500);
/// The pause of a rank that neither waits nor sends.
const IDLE: Duration = Duration::from_millis(10);

pub(super) struct MpiPlane {
    shared: Arc<Shared>,
    wire: Wire,
    sending: Vec<Transfer>,
    /// When this rank noticed that a rank to which it was sending had left.
    left: HashMap<usize, Instant>,
    frames: VecDeque<(usize, Receiving)>,
    payloads: Vec<Payload>,
    /// When something last arrived or was sent.
    active: Instant,
    /// Set if transfers are unfinished at the end.
    is_unfinished: Arc<AtomicBool>,
}

/// A message that is being sent.
struct Transfer {
    receiver: usize,
    /// The collective whose tensor it reads.
    call: Option<CallKey>,
    sending: Sending,
}

/// The payload of a frame that is being received.
struct Payload {
    rank: usize,
    message: Option<Message>,
    receiving: Receiving,
}

impl MpiPlane {
    pub(super) fn new(shared: Arc<Shared>, wire: Wire, is_unfinished: Arc<AtomicBool>) -> MpiPlane {
        MpiPlane {
            shared,
            wire,
            sending: Vec::new(),
            left: HashMap::new(),
            frames: VecDeque::new(),
            payloads: Vec::new(),
            active: Instant::now(),
            is_unfinished,
        }
    }

    fn start(&mut self, receiver: usize, frame: &Frame, mut head: Vec<u8>) -> Result<()> {
        let is_short = frame.payload.len() <= SHORT;
        if is_short {
            head.extend_from_slice(&frame.payload);
        }
        self.transfer(receiver, None, head.into(), FRAME)?;
        if is_short {
            return Ok(());
        }
        let call = match &frame.message {
            Message::Part { key, .. } => Some(*key),
            _ => None,
        };
        self.transfer(receiver, call, frame.payload.clone(), PAYLOAD)
    }

    fn transfer(
        &mut self,
        receiver: usize,
        call: Option<CallKey>,
        bytes: Bytes,
        tag: c_int,
    ) -> Result<()> {
        self.sending.push(Transfer {
            receiver,
            call,
            sending: self.wire.send(bytes, receiver, tag)?,
        });
        Ok(())
    }

    fn advance_sends(&mut self) -> Result<()> {
        let mut failed = None;
        self.sending.retain_mut(|transfer| match transfer.sending.is_done() {
            Ok(is_done) => !is_done,
            Err(error) => {
                failed = Some(error);
                true
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Reports collectives whose tensor will not be received, because the receiver has left.
    fn check_left(&mut self) {
        for transfer in &self.sending {
            let receiver = transfer.receiver;
            if !self.shared.has_left(receiver) {
                continue;
            }
            let noticed = *self.left.entry(receiver).or_insert_with(Instant::now);
            if let Some(call) = transfer.call
                && noticed.elapsed() >= LINGER
            {
                self.shared.not_received(call, receiver);
            }
        }
    }

    /// Whether a transfer can still complete. A rank that has left receives nothing more, but the
    /// last sends to it may still be completing.
    fn is_open(&self, transfer: &Transfer) -> bool {
        let noticed = self.left.get(&transfer.receiver);
        noticed.is_none_or(|noticed| noticed.elapsed() < LINGER)
    }

    fn advance_receives(&mut self) -> Result<()> {
        while let Some(frame) = self.wire.receive_any(FRAME)? {
            self.frames.push_back(frame);
        }
        // In the order in which the frames arrived: their payloads arrive in the same order.
        while let Some((rank, receiving)) = self.frames.front_mut() {
            let Some(bytes) = receiving.take()? else {
                break;
            };
            let rank = *rank;
            self.frames.pop_front();
            self.frame(rank, &bytes)?;
        }
        let mut payloads = std::mem::take(&mut self.payloads);
        for payload in &mut payloads {
            let Some(bytes) = payload.receiving.take()? else {
                continue;
            };
            if let Some(message) = payload.message.take() {
                self.deliver(payload.rank, message, bytes.into());
            }
        }
        payloads.retain(|payload| payload.message.is_some());
        payloads.append(&mut self.payloads);
        self.payloads = payloads;
        Ok(())
    }

    fn frame(&mut self, rank: usize, bytes: &[u8]) -> Result<()> {
        match frame::split_head(bytes) {
            Ok((message, length, rest)) if rest.len() == length => {
                self.deliver(rank, message, rest.to_vec().into());
            }
            Ok((message, length, _)) => self.payloads.push(Payload {
                rank,
                message: Some(message),
                receiving: self.wire.receive(length, rank, PAYLOAD)?,
            }),
            Err(error) => self.shared.died(rank, error.to_string()),
        }
        Ok(())
    }

    fn deliver(&mut self, rank: usize, message: Message, payload: Bytes) {
        self.active = Instant::now();
        if let Err(reason) = self.shared.deliver(rank, Frame { message, payload }) {
            self.shared.died(rank, reason);
        }
    }

    /// A failure of MPI itself ends the world.
    fn check(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.shared.died(self.shared.rank, error.to_string());
        }
    }
}

impl DataPlane for MpiPlane {
    fn send(&mut self, rank: usize, frame: Frame) -> Result<(), FrameError> {
        let head = frame.head()?;
        if !self.shared.has_ended() && !self.shared.has_left(rank) {
            self.active = Instant::now();
            let started = self.start(rank, &frame, head);
            self.check(started);
        }
        Ok(())
    }

    fn flush(&mut self) {
        if !self.shared.has_ended() {
            let advanced = self.advance_sends();
            self.check(advanced);
            self.check_left();
        }
    }

    fn receive(&mut self) {
        if !self.shared.has_ended() {
            let advanced = self.advance_receives();
            self.check(advanced);
        }
    }

    fn is_writing(&self) -> bool {
        !self.shared.has_ended() && self.sending.iter().any(|transfer| self.is_open(transfer))
    }

    /// MPI cannot wake the thread, so it has to poll.
    fn watch<'a>(&'a mut self, poll: &mut Poll<'a>) {
        let is_receiving = !self.frames.is_empty() || !self.payloads.is_empty();
        let is_busy = self.is_writing() || is_receiving || self.shared.is_waiting();
        if !is_busy || self.shared.has_ended() {
            poll.at_most(IDLE);
        } else if self.active.elapsed() < SPIN {
            thread::yield_now();
            poll.at_most(Duration::ZERO);
        } else {
            poll.at_most(PAUSE);
        }
    }
}

impl Drop for MpiPlane {
    fn drop(&mut self) {
        let unfinished = self.sending.len() + self.frames.len() + self.payloads.len();
        self.is_unfinished.store(unfinished > 0, Ordering::Relaxed);
        // MPI may be waiting for a rank that has died, so its memory and the communicator leak.
    }
}
