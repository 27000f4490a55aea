//! What a rank communicates, in the order of its program.

use std::fmt;

use meshgrad_collectives::Request;
use meshgrad_mesh::Group;

/// The collectives of one rank, and where it waits for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommLog {
    rank: usize,
    groups: Vec<Group>,
    events: Vec<CommEvent>,
}

/// An event in a rank's log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommEvent {
    /// The rank starts a collective.
    Start(LoggedCall),
    /// The rank waits for the collective that the event with this number started.
    Wait(usize),
}

/// A call of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedCall {
    /// Its communicator, as an index in [`CommLog::groups`]. The group has the channel.
    pub group: usize,
    /// The call: its kind, counts and source line.
    pub request: Request,
    /// The bytes of this rank's input or output, whichever is larger.
    pub bytes: u64,
    /// The number of collectives that were fused, including this one.
    pub fused: usize,
}

impl CommLog {
    pub(super) fn new(rank: usize) -> CommLog {
        CommLog { rank, groups: Vec::new(), events: Vec::new() }
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The groups that the rank has requested, each once.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The events, in program order.
    pub fn events(&self) -> &[CommEvent] {
        &self.events
    }

    /// The calls, in program order.
    pub fn calls(&self) -> impl Iterator<Item = &LoggedCall> {
        self.events.iter().filter_map(|event| match event {
            CommEvent::Start(call) => Some(call),
            CommEvent::Wait(_) => None,
        })
    }

    /// The number of a group.
    pub(super) fn group(&mut self, group: &Group) -> usize {
        let known = self.groups.iter().position(|known| known == group);
        known.unwrap_or_else(|| {
            self.groups.push(group.clone());
            self.groups.len() - 1
        })
    }

    /// Logs a call and returns the number of the event.
    pub(super) fn start(&mut self, call: LoggedCall) -> usize {
        self.events.push(CommEvent::Start(call));
        self.events.len() - 1
    }

    pub(super) fn wait(&mut self, call: usize) {
        self.events.push(CommEvent::Wait(call));
    }
}

/// One line per event.
impl fmt::Display for CommLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rank {}", self.rank)?;
        for (number, event) in self.events.iter().enumerate() {
            match event {
                CommEvent::Start(call) => {
                    let (group, request) = (&self.groups[call.group], &call.request);
                    let (what, bytes, at) = (&request.fingerprint, call.bytes, request.caller);
                    writeln!(f, "{number:>4}  {what}  {bytes} B  {group}  {at}")?;
                }
                CommEvent::Wait(call) => writeln!(f, "{number:>4}  wait for {call}")?,
            }
        }
        Ok(())
    }
}
