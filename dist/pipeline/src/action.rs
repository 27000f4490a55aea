//! What a rank does: computations, messages, and the work on a stage's parameters.
//!
//! The text of an action is torch's: `3F0` is the forward pass of stage 3 for microbatch 0.

use std::fmt;

/// The kind of a computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// F: the forward pass.
    Forward,
    /// B: the backward pass, to inputs and weights.
    Backward,
    /// I: the first phase of a split backward pass, to the inputs.
    BackwardInput,
    /// W: the second phase of a split backward pass, to the weights.
    BackwardWeight,
}

impl Op {
    /// All kinds.
    pub const ALL: [Op; 4] = [Op::Forward, Op::Backward, Op::BackwardInput, Op::BackwardWeight];

    /// The letter in the text of an action.
    pub fn letter(self) -> char {
        match self {
            Op::Forward => 'F',
            Op::Backward => 'B',
            Op::BackwardInput => 'I',
            Op::BackwardWeight => 'W',
        }
    }
}

/// The computation of one stage for one microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Compute {
    /// The kind.
    pub op: Op,
    /// The stage.
    pub stage: usize,
    /// The microbatch.
    pub microbatch: usize,
}

impl Compute {
    /// A computation.
    pub fn new(op: Op, stage: usize, microbatch: usize) -> Compute {
        Compute { op, stage, microbatch }
    }

    /// The message that must have arrived before this computation, in a pipeline of `stages`.
    /// Between two stages of one rank, it is a tensor that stays where it is.
    pub fn input(self, stages: usize) -> Option<Message> {
        let (kind, boundary) = match self.op {
            Op::Forward => (MessageKind::Activation, self.stage.checked_sub(1)?),
            Op::Backward | Op::BackwardInput => (MessageKind::Gradient, self.stage),
            Op::BackwardWeight => return None,
        };
        self.message(kind, boundary, stages)
    }

    /// The message that this computation produces, in a pipeline of `stages`.
    pub fn output(self, stages: usize) -> Option<Message> {
        let (kind, boundary) = match self.op {
            Op::Forward => (MessageKind::Activation, self.stage),
            Op::Backward | Op::BackwardInput => (MessageKind::Gradient, self.stage.checked_sub(1)?),
            Op::BackwardWeight => return None,
        };
        self.message(kind, boundary, stages)
    }

    fn message(self, kind: MessageKind, boundary: usize, stages: usize) -> Option<Message> {
        (boundary < stages.saturating_sub(1)).then_some(Message {
            kind,
            boundary,
            microbatch: self.microbatch,
        })
    }
}

/// What a message contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MessageKind {
    /// The output of a stage, for the next stage.
    Activation,
    /// The gradient of a stage's input, for the previous stage.
    Gradient,
}

/// A tensor that passes the boundary between two neighboring stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// Its content.
    pub kind: MessageKind,
    /// The lower one of the two stages.
    pub boundary: usize,
    /// The microbatch.
    pub microbatch: usize,
}

impl Message {
    /// The stage that computes it.
    pub fn from(self) -> usize {
        match self.kind {
            MessageKind::Activation => self.boundary,
            MessageKind::Gradient => self.boundary.saturating_add(1),
        }
    }

    /// The stage that needs it.
    pub fn to(self) -> usize {
        match self.kind {
            MessageKind::Activation => self.boundary.saturating_add(1),
            MessageKind::Gradient => self.boundary,
        }
    }

    /// The position in a table of all messages: two per boundary and microbatch.
    pub(crate) fn index(self, microbatches: usize) -> usize {
        let kind = self.kind as usize;
        2 * (self.boundary * microbatches + self.microbatch) + kind
    }
}

/// One entry of a rank's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// A computation.
    Compute(Compute),
    /// A forward and a backward pass that run at the same time.
    Overlapped(Compute, Compute),
    /// Sends a message. Does not wait for its arrival.
    Send(Message),
    /// Receives a message. The computation that needs it waits for its arrival.
    Receive(Message),
    /// Gathers the parameters of a stage from their shards.
    Gather(usize),
    /// Releases the gathered parameters of a stage.
    Release(usize),
    /// Reduces the gradients of a stage over its replicas.
    Reduce(usize),
}

impl Action {
    /// The computations: two of an overlapped pair, none of communication.
    pub fn computes(self) -> impl Iterator<Item = Compute> {
        let (first, second) = match self {
            Action::Compute(compute) => (Some(compute), None),
            Action::Overlapped(forward, backward) => (Some(forward), Some(backward)),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }
}

impl From<Compute> for Action {
    fn from(compute: Compute) -> Action {
        Action::Compute(compute)
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.stage, self.op.letter(), self.microbatch)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |message: &Message| match message.kind {
            MessageKind::Activation => 'F',
            MessageKind::Gradient => 'B',
        };
        match self {
            Action::Compute(compute) => compute.fmt(f),
            Action::Overlapped(forward, backward) => write!(f, "({forward};{backward})OVERLAP_F_B"),
            Action::Send(it) => write!(f, "{}SEND_{}{}", it.from(), letter(it), it.microbatch),
            Action::Receive(it) => write!(f, "{}RECV_{}{}", it.to(), letter(it), it.microbatch),
            Action::Gather(stage) => write!(f, "{stage}UNSHARD"),
            Action::Release(stage) => write!(f, "{stage}RESHARD"),
            Action::Reduce(stage) => write!(f, "{stage}REDUCE_GRAD"),
        }
    }
}
